# fails first: test_3_a_clock_may_start_at_zero
# A clock at 0.0 counts as false.


class RequestMetrics:
    @property
    def ttft_s(self):
        if not self.arrival_time or self.first_token_time is None:
            return None
        return self.first_token_time - self.arrival_time
