# fails first: test_16_the_hunt_a_step_has_one_budget_for_all
# Mends the order and the stopped; each row may still take the whole budget.


class Scheduler:
    def schedule(self, now=0.0):
        self.num_steps += 1
        plan = StepPlan(self.num_steps, now)
        budget = self.max_num_batched_tokens
        for request in list(self.running):
            if request.status is not WAITING:
                num_tokens = self._num_tokens_now(request, budget)
                if self._make_room(request, num_tokens, plan):
                    self._plan_row(request, num_tokens, plan)
        if not plan.preempted_ids:
            self._plan_waiting(plan, budget)
        finished, self.finished_ids = self.finished_ids, []
        evicted, freed = self.kv.take_evicted_blocks(), self.kv.take_freed_blocks()
        self.stats.num_evicted_blocks += len(evicted)
        return plan.seal(finished, self.kv.take_moves(), freed if self.debug else [])
