# fails first: test_11_a_head_that_does_not_fit_is_not_overtaken
# Lets short requests go first: good for the mean, bad for the long one.


class Scheduler:
    def _plan_waiting(self, plan, budget):
        num_places = self.max_num_seqs - len(self.running)
        queue = list(self.policy.order(self.waiting, plan.now))[: 2 * num_places]
        for request in sorted(queue, key=lambda r: r.num_tokens)[:num_places]:
            must_wait = budget == 0 or self.policy.may_admit(request, plan) is not None
            if must_wait or not self._admit(request):
                break
            num_tokens = self._num_tokens_now(request, budget)
            plan.introduce(request)
            self._plan_row(request, num_tokens, plan)
            budget -= num_tokens
        return budget
