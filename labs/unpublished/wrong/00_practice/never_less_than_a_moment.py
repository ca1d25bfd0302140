# fails first: test_4_an_instant_answer_took_no_time
# Guards a division that somebody else may do.


class RequestMetrics:
    @property
    def ttft_s(self):
        if self.first_token_time is None:
            return None
        return max(self.first_token_time - self.arrival_time, 1e-9)
