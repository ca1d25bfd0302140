# fails first: test_6_never_more_than_the_budget_nor_max_num_seqs
# Admits as long as there is budget, however many run already.


class Scheduler:
    def _plan_waiting(self, plan, budget):
        for request in list(self.policy.order(self.waiting, plan.now)):
            if budget == 0 or self.policy.may_admit(request, plan) or not self._admit(request):
                break
            num_tokens = self._num_tokens_now(request, budget)
            plan.introduce(request)
            self._plan_row(request, num_tokens, plan)
            budget -= num_tokens
        return budget
