# fails first: test_15_the_hunt_a_newcomer_does_not_take_the_last_block
# Mends the budget and the stopped, and goes on admitting before those who run are served.


class Scheduler:
    def schedule(self, now=0.0):
        self.num_steps += 1
        plan = StepPlan(self.num_steps, now)
        for request in list(self.policy.order(self.waiting, now)):
            has_place = len(self.running) < self.max_num_seqs
            if not has_place or not self._start_table(request, request.num_tokens, 0):
                break
            self.kv.allocate_slots(request, request.num_tokens - request.num_planned_tokens)
            self.waiting.remove(request)
            self.running.append(request)
            request.status = RUNNING
            plan.introduce(request)
        self._plan_running(plan, self.max_num_batched_tokens)
        finished, self.finished_ids = self.finished_ids, []
        evicted, freed = self.kv.take_evicted_blocks(), self.kv.take_freed_blocks()
        self.stats.num_evicted_blocks += len(evicted)
        return plan.seal(finished, self.kv.take_moves(), freed if self.debug else [])
