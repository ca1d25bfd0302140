# fails first: test_6_a_stop_in_between_changes_nothing
# A request that was stopped once counts as never answered.


class RequestMetrics:
    @property
    def ttft_s(self):
        if self.first_token_time is None or self.num_preemptions:
            return None
        return self.first_token_time - self.arrival_time
