# fails first: test_14_any_company_gives_the_solo_tokens_as_soon_as_can_be
# Admits one request and leaves the rest for the next step.


class Scheduler:
    def _plan_waiting(self, plan, budget):
        num_places = self.max_num_seqs - len(self.running)
        for request in list(self.policy.order(self.waiting, plan.now))[:num_places]:
            if budget == 0 or self.policy.may_admit(request, plan) or not self._admit(request):
                break
            num_tokens = self._num_tokens_now(request, budget)
            plan.introduce(request)
            self._plan_row(request, num_tokens, plan)
            budget -= num_tokens
            break
        return budget
