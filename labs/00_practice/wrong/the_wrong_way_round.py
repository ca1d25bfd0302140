# fails first: test_1_a_number_you_can_do_by_hand
# Before minus after.


class RequestMetrics:
    @property
    def ttft_s(self):
        if self.first_token_time is None:
            return None
        return self.arrival_time - self.first_token_time
