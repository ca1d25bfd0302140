# fails first: test_12_the_policy_says_who_goes_first_and_who_may_not
# Takes the queue as it stands.


class Scheduler:
    def _plan_waiting(self, plan, budget):
        num_places = self.max_num_seqs - len(self.running)
        for request in list(self.waiting)[:num_places]:
            if budget == 0 or self.policy.may_admit(request, plan) or not self._admit(request):
                break
            num_tokens = self._num_tokens_now(request, budget)
            plan.introduce(request)
            self._plan_row(request, num_tokens, plan)
            budget -= num_tokens
        return budget
