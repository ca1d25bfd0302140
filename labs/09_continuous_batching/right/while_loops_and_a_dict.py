# Right, written another way: queues walked by hand, rows by request, early returns.
from collections import deque


class Scheduler:
    def schedule(self, now=0.0):
        self.num_steps, plan = self.num_steps + 1, StepPlan(self.num_steps + 1, now)
        left = self._plan_running(plan, self.max_num_batched_tokens)
        if len(plan.preempted_ids) == 0:
            self._plan_waiting(plan, left)
        gone = self.kv.take_evicted_blocks()
        if gone:
            self.stats.num_evicted_blocks += len(gone)
            if self.trace is not None:
                self.trace.note("evicted", None, block_ids=gone)
        freed = self.kv.take_freed_blocks()
        sealed = plan.seal(self.finished_ids, self.kv.take_moves(), freed if self.debug else ())
        self.finished_ids = []
        return sealed

    def _plan_running(self, plan, budget):
        todo = deque(self.running)
        while todo and budget:
            request = todo.popleft()
            if request not in self.running:
                continue
            size = self._num_tokens_now(request, budget)
            if size == 0:
                continue
            if not self._make_room(request, size, plan):
                continue
            self._plan_row(request, size, plan)
            budget = budget - size
        return budget

    def _plan_waiting(self, plan, budget):
        queue = iter(tuple(self.policy.order(self.waiting, plan.now)))
        while budget > 0 and len(self.running) < self.max_num_seqs:
            request = next(queue, None)
            if request is None or self.policy.may_admit(request, plan) is not None:
                return budget
            if not self._admit(request):
                return budget
            plan.introduce(request)
            size = self._num_tokens_now(request, budget)
            self._plan_row(request, size, plan)
            budget -= size
        return budget

    def update_from_output(self, plan, result):
        failed = dict(result.errors)
        gained = {}
        for index, (row, sampled) in enumerate(zip(plan.rows, result.sampled)):
            request = self.requests.get(row.request_id)
            if request is not None and request.status is RUNNING:
                gained[row.request_id] = self._take_in(request, row, sampled, failed, result, index)
        return list(gained.values())

    def _take_in(self, request, row, sampled, failed, result, index):
        tokens = ()
        if row.request_id in failed:
            request.error = failed[row.request_id]
            request.finish("error")
        else:
            count = len(row.token_ids)
            request.num_computed_tokens, request.num_in_flight_tokens = (
                request.num_computed_tokens + count,
                request.num_in_flight_tokens - count,
            )
            tokens = self._accept(request, sampled)
            self._share(request)
        message = report(request, tokens, result, index)
        if request.is_finished:
            self._leave(request)
        return message
