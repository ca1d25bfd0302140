# What a bug hunt starts from: the loop as it is drawn on whiteboards. It has three faults.
# ruff: noqa: F821 (it is a part of an engine file)


class Scheduler:
    def schedule(self, now=0.0):
        self.num_steps += 1
        plan = StepPlan(self.num_steps, now)
        # Admit while there are blocks for the first in the queue.
        for request in list(self.policy.order(self.waiting, now)):
            has_place = len(self.running) < self.max_num_seqs
            if not has_place or not self._start_table(request, request.num_tokens, 0):
                break
            self.kv.allocate_slots(request, request.num_tokens - request.num_planned_tokens)
            self.waiting.remove(request)
            self.running.append(request)
            request.status = RUNNING
            plan.introduce(request)
        # Then each who runs gets a chunk of its prompt, or one token more.
        for request in list(self.running):
            num_tokens = min(request.num_uncomputed_tokens, self.max_chunk)
            self._make_room(request, num_tokens, plan)
            self._plan_row(request, num_tokens, plan)
        # Tell the worker who has ended, and what became of blocks.
        finished, self.finished_ids = self.finished_ids, []
        evicted, freed = self.kv.take_evicted_blocks(), self.kv.take_freed_blocks()
        self.stats.num_evicted_blocks += len(evicted)
        return plan.seal(finished, self.kv.take_moves(), freed if self.debug else [])
