# fails first: test_17_the_hunt_nobody_is_computed_who_was_just_stopped
# Mends the order and the budget, and asks nobody whether it still runs.


class Scheduler:
    def schedule(self, now=0.0):
        self.num_steps += 1
        plan = StepPlan(self.num_steps, now)
        budget = self.max_num_batched_tokens
        for request in list(self.running):
            num_tokens = self._num_tokens_now(request, budget)
            if num_tokens > 0:
                self._make_room(request, num_tokens, plan)
                self._plan_row(request, num_tokens, plan)
                budget -= num_tokens
        if not plan.preempted_ids:
            self._plan_waiting(plan, budget)
        finished, self.finished_ids = self.finished_ids, []
        evicted, freed = self.kv.take_evicted_blocks(), self.kv.take_freed_blocks()
        self.stats.num_evicted_blocks += len(evicted)
        return plan.seal(finished, self.kv.take_moves(), freed if self.debug else [])
