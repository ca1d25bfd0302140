# fails first: test_1_one_request_one_step
# The worker gets a row of a request that it was never told of.


class Scheduler:
    def _plan_waiting(self, plan, budget):
        num_places = self.max_num_seqs - len(self.running)
        for request in list(self.policy.order(self.waiting, plan.now))[:num_places]:
            if budget == 0 or self.policy.may_admit(request, plan) or not self._admit(request):
                break
            num_tokens = self._num_tokens_now(request, budget)
            self._plan_row(request, num_tokens, plan)
            budget -= num_tokens
        return budget
