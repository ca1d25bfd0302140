# fails first: test_13_nobody_waits_for_ever
# A request that was stopped for another is planned all the same.


class Scheduler:
    def _plan_running(self, plan, budget):
        for request in list(self.running):
            num_tokens = self._num_tokens_now(request, budget)
            if num_tokens > 0 and self._make_room(request, num_tokens, plan):
                self._plan_row(request, num_tokens, plan)
                budget -= num_tokens
        return budget
