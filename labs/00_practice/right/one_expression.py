# Right, written another way.


class RequestMetrics:
    @property
    def ttft_s(self):
        first = self.first_token_time
        return first if first is None else -(self.arrival_time - first)
