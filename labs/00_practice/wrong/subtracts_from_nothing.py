# fails first: test_2_there_is_none_before_the_first_token
# None minus a number.


class RequestMetrics:
    @property
    def ttft_s(self):
        return self.first_token_time - self.arrival_time
