# fails first: test_13_nobody_waits_for_ever
# Does not look whether there is room now, or the request itself was stopped.


class Scheduler:
    def _plan_running(self, plan, budget):
        for request in list(self.running):
            if request.status is WAITING:
                continue
            num_tokens = self._num_tokens_now(request, budget)
            if num_tokens > 0:
                self._make_room(request, num_tokens, plan)
                self._plan_row(request, num_tokens, plan)
                budget -= num_tokens
        return budget
