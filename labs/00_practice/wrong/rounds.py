# fails first: test_7_keeps_every_digit
# Two digits are for whoever prints it.


class RequestMetrics:
    @property
    def ttft_s(self):
        if self.first_token_time is None:
            return None
        return round(self.first_token_time - self.arrival_time, 2)
