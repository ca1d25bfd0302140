# fails first: test_2_running_requests_go_first_and_in_their_order
# Goes through the running requests from the last admitted to the first.


class Scheduler:
    def _plan_running(self, plan, budget):
        for request in reversed(list(self.running)):
            if request.status is WAITING:
                continue
            num_tokens = self._num_tokens_now(request, budget)
            if num_tokens > 0 and self._make_room(request, num_tokens, plan):
                self._plan_row(request, num_tokens, plan)
                budget -= num_tokens
        return budget
