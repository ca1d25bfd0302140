# fails first: test_5_later_tokens_change_nothing
# The time of the whole answer so far.


class RequestMetrics:
    @property
    def ttft_s(self):
        if self.first_token_time is None:
            return None
        return (self.last_token_time or self.first_token_time) - self.arrival_time
