# fails first: test_1_a_number_you_can_do_by_hand
# The right time in the wrong unit.


class RequestMetrics:
    @property
    def ttft_s(self):
        if self.first_token_time is None:
            return None
        return (self.first_token_time - self.arrival_time) * 1000
