# fails first: test_2_there_is_none_before_the_first_token
# No token yet, said as a very fast one.


class RequestMetrics:
    @property
    def ttft_s(self):
        if self.first_token_time is None:
            return 0.0
        return self.first_token_time - self.arrival_time
