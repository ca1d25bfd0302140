# fails first: test_4_an_instant_answer_took_no_time
# A first token at 0.0 counts as no token.


class RequestMetrics:
    @property
    def ttft_s(self):
        if not self.first_token_time:
            return None
        return self.first_token_time - self.arrival_time
