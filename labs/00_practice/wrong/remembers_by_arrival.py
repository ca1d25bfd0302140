# fails first: test_8_the_chat_shows_it
# Two requests that arrive together get the first one's number.

_known = {}


class RequestMetrics:
    @property
    def ttft_s(self):
        if self.first_token_time is None:
            return None
        return _known.setdefault(self.arrival_time, self.first_token_time - self.arrival_time)
