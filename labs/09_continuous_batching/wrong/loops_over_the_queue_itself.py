# fails first: test_1_one_request_one_step
# Admitting takes the request out of the queue that the loop goes through.


class Scheduler:
    def _plan_waiting(self, plan, budget):
        num_places = self.max_num_seqs - len(self.running)
        for request in self.policy.order(self.waiting, plan.now):
            if (
                num_places == len(self.running)
                or budget == 0
                or self.policy.may_admit(request, plan)
                or not self._admit(request)
            ):
                break
            num_tokens = self._num_tokens_now(request, budget)
            plan.introduce(request)
            self._plan_row(request, num_tokens, plan)
            budget -= num_tokens
        return budget
