# fails first: test_2_running_requests_go_first_and_in_their_order
# Static batches: nobody starts while anybody runs.


class Scheduler:
    def _plan_waiting(self, plan, budget):
        if self.running:
            return budget
        num_places = self.max_num_seqs - len(self.running)
        for request in list(self.policy.order(self.waiting, plan.now))[:num_places]:
            if budget == 0 or self.policy.may_admit(request, plan) or not self._admit(request):
                break
            num_tokens = self._num_tokens_now(request, budget)
            plan.introduce(request)
            self._plan_row(request, num_tokens, plan)
            budget -= num_tokens
        return budget
