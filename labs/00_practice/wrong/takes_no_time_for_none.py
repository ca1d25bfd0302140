# fails first: test_4_an_instant_answer_took_no_time
# 0.0 or None is None.


class RequestMetrics:
    @property
    def ttft_s(self):
        if self.first_token_time is None:
            return None
        return (self.first_token_time - self.arrival_time) or None
