# fails first: test_12_the_policy_says_who_goes_first_and_who_may_not
# Keeps the policy's order and not its veto.


class Scheduler:
    def _plan_waiting(self, plan, budget):
        num_places = self.max_num_seqs - len(self.running)
        for request in list(self.policy.order(self.waiting, plan.now))[:num_places]:
            if budget == 0 or not self._admit(request):
                break
            num_tokens = self._num_tokens_now(request, budget)
            plan.introduce(request)
            self._plan_row(request, num_tokens, plan)
            budget -= num_tokens
        return budget
