# fails first: test_1_a_number_you_can_do_by_hand
# When it came, not how long that took.


class RequestMetrics:
    @property
    def ttft_s(self):
        return self.first_token_time
