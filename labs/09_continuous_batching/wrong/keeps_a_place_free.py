# fails first: test_9_the_last_free_place_is_used_the_step_it_opens
# One place too few: the last one is never used.


class Scheduler:
    def _plan_waiting(self, plan, budget):
        num_places = self.max_num_seqs - len(self.running) - 1
        for request in list(self.policy.order(self.waiting, plan.now))[: max(num_places, 0)]:
            if budget == 0 or self.policy.may_admit(request, plan) or not self._admit(request):
                break
            num_tokens = self._num_tokens_now(request, budget)
            plan.introduce(request)
            self._plan_row(request, num_tokens, plan)
            budget -= num_tokens
        return budget
