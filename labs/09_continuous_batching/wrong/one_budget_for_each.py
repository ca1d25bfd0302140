# fails first: test_2_running_requests_go_first_and_in_their_order
# Running requests spend the budget, and the waiting ones get it all again.


class Scheduler:
    def _plan_running(self, plan, budget):
        for request in list(self.running):
            if request.status is WAITING:
                continue
            num_tokens = self._num_tokens_now(request, budget)
            if num_tokens > 0 and self._make_room(request, num_tokens, plan):
                self._plan_row(request, num_tokens, plan)
        return budget
