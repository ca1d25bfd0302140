# fails first: test_11_a_head_that_does_not_fit_is_not_overtaken
# Who does not fit is left standing, and all that fit go by.


class Scheduler:
    def _plan_waiting(self, plan, budget):
        num_places = self.max_num_seqs - len(self.running)
        for request in list(self.policy.order(self.waiting, plan.now))[:num_places]:
            if budget == 0 or self.policy.may_admit(request, plan):
                break
            if not self._admit(request):
                continue
            num_tokens = self._num_tokens_now(request, budget)
            plan.introduce(request)
            self._plan_row(request, num_tokens, plan)
            budget -= num_tokens
        return budget
