"""Who runs in the next step, and for how many tokens. Decides; never computes.

There is no prefill phase and no decode phase. Each step computes some more tokens of each running
request, within one budget of tokens: a long prompt in pieces, an answer token by token, a
preempted request from its start again are all the same thing.
"""

from __future__ import annotations

from collections import deque
from itertools import islice

from ..kvcache.kv_cache_manager import KVCacheManager
from ..metrics.stats import SchedulerStats
from ..metrics.trace import Trace
from ..outputs import EngineCoreOutput, ModelRunnerOutput, SchedulerOutput
from ..request import Request, RequestStatus
from .forks import Forks, has_computed
from .plan import StepPlan
from .policy import Fcfs, Policy
from .preemption import choose_victim
from .report import report
from .stopping import stop_at_last

WAITING, RUNNING = RequestStatus.WAITING, RequestStatus.RUNNING


class Scheduler:
    """Holds every request that is not finished: waiting, or running (owning blocks)."""

    def __init__(
        self,
        kv: KVCacheManager,
        *,
        max_num_seqs: int,  # requests in one step
        max_num_batched_tokens: int,  # tokens in one step
        max_model_len: int,  # tokens of one request, prompt and answer
        long_prefill_token_threshold: int = 0,  # most tokens of one request in a step; 0: no limit
        eos_token_ids: tuple[int, ...] = (),
        policy: Policy | None = None,
        preemption: str = "recompute",  # or "swap", or "reserve": then nobody is ever stopped
        trace: Trace | None = None,  # is told why
        debug: bool = False,  # tell the worker which blocks to poison
    ) -> None:
        assert max_model_len <= kv.max_tokens, "one request must fit alone"
        self.kv = kv
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_model_len = max_model_len
        self.max_chunk = long_prefill_token_threshold or max_num_batched_tokens
        self.eos_token_ids = frozenset(eos_token_ids)
        self.policy = policy or Fcfs(kv)
        self.preemption = preemption
        self.trace = trace
        self.debug = debug

        self.requests: dict[str, Request] = {}
        self.waiting: deque[Request] = deque()  # those that were stopped at the left
        self.running: list[Request] = []  # in order of rank, then of admission
        self.forks = Forks()  # those that wait for another's blocks
        self.finished_ids: list[str] = []  # the worker has not been told yet
        self.num_steps = 0
        self.stats = SchedulerStats()

    def add_request(self, request: Request) -> None:
        """Queue a request; one that forks another waits until it can share that one's blocks."""
        assert request.request_id not in self.requests, f"{request.request_id} exists already"
        assert request.num_tokens <= self.max_model_len, "admission was not checked"
        self.requests[request.request_id] = request
        parent = self.requests.get(request.fork_of)
        if parent is None or has_computed(parent, request):
            self.waiting.append(request)
        else:
            self.forks.hold(request)

    def abort(self, request_id: str) -> bool:
        """End a request in any state. False if there is none: it may have ended just now."""
        request = self.requests.get(request_id)
        if request is None:
            return False
        request.finish("abort")
        self._leave(request)
        return True

    @property
    def has_unfinished_requests(self) -> bool:
        return bool(self.requests)

    def schedule(self, now: float = 0.0) -> SchedulerOutput:
        """Plan one step: running requests first, then waiting ones with what is left of the
        budget. Nobody is admitted in a step that had to stop somebody for want of memory."""
        self.num_steps += 1
        plan = StepPlan(self.num_steps, now)
        budget = self._plan_running(plan, self.max_num_batched_tokens)
        if not plan.preempted_ids:
            self._plan_waiting(plan, budget)
        finished, self.finished_ids = self.finished_ids, []
        evicted, freed = self.kv.take_evicted_blocks(), self.kv.take_freed_blocks()
        self.stats.num_evicted_blocks += len(evicted)
        if evicted and self.trace:
            self.trace.note("evicted", None, block_ids=evicted)
        return plan.seal(finished, self.kv.take_moves(), freed if self.debug else [])

    def _plan_running(self, plan: StepPlan, budget: int) -> int:
        """Give each running request its next tokens, in their order, until the budget is spent.
        Returns what is left of the budget. A request without room for its tokens stops the last
        ones, or is stopped itself."""
        for request in list(self.running):
            if request.status is WAITING:
                continue  # stopped a moment ago, to make room
            num_tokens = self._num_tokens_now(request, budget)
            if num_tokens > 0 and self._make_room(request, num_tokens, plan):
                self._plan_row(request, num_tokens, plan)
                budget -= num_tokens
        return budget

    def _plan_waiting(self, plan: StepPlan, budget: int) -> int:
        """Admit waiting requests in the policy's order while budget, places and blocks last, up
        to the first that must wait: nobody overtakes it. Returns what is left of the budget."""
        num_places = self.max_num_seqs - len(self.running)
        if budget == 0 or num_places == 0 or not self.waiting:
            return budget
        for request in list(islice(self.policy.order(self.waiting, plan.now), num_places)):
            must_wait = budget == 0 or self.policy.may_admit(request, plan) is not None
            if must_wait or not self._admit(request):
                break
            num_tokens = self._num_tokens_now(request, budget)
            plan.introduce(request)
            self._plan_row(request, num_tokens, plan)
            budget -= num_tokens
        return budget

    def _num_tokens_now(self, request: Request, budget: int) -> int:
        """How many of a request's tokens to compute in this step: what it has, but no more than
        the budget, and than one request may take of a step."""
        return min(request.num_uncomputed_tokens, budget, self.max_chunk)

    def _plan_row(self, request: Request, num_tokens: int, plan: StepPlan) -> None:
        plan.add(request, num_tokens, self.kv)
        self.policy.served(request, num_tokens)
        if self.trace and request.num_uncomputed_tokens > 0:
            self.trace.note("chunked", request.request_id, num_tokens=num_tokens)

    def _admit(self, request: Request) -> bool:
        """Let a waiting request own blocks for all the tokens it has (if blocks are reserved: it
        may ever have). False, and nothing is changed, when there are not enough beside those that
        running ones need for their next token: who starts with less is soon stopped again."""
        num_tokens = self._num_tokens_to_hold(request)
        num_spare = sum(self.kv.is_full(r) for r in self.running if not r.holds_blocks)
        if not self._start_table(request, num_tokens, num_spare):
            return False
        self.kv.copy_if_shared(request)
        self.kv.allocate_slots(request, num_tokens - request.num_planned_tokens)
        if request.num_preemptions == 0:
            request.num_cached_tokens = request.num_computed_tokens
            self.stats.num_prompt_tokens += request.num_prompt_tokens
            self.stats.num_cached_tokens += request.num_cached_tokens
        self.waiting.remove(request)
        self.running.append(request)
        self.running.sort(key=self.policy.rank)
        request.status = RUNNING
        if self.trace:
            self.trace.note("admitted", request.request_id, hit=request.num_computed_tokens)
        return True

    def _num_tokens_to_hold(self, request: Request) -> int:
        if self.preemption != "reserve":
            return request.num_tokens
        most = request.num_prompt_tokens + request.sampling_params.max_tokens
        return min(most, self.max_model_len)

    def _start_table(self, request: Request, num_tokens: int, num_spare: int) -> bool:
        """Begin a block table with what there is already: KV in host memory, the blocks of the
        request it forks, or cached ones. False, and nothing is changed, if the request could not
        grow to num_tokens and leave num_spare blocks."""
        if self.kv.is_swapped_out(request):
            if not self.kv.fits(request, num_tokens, num_spare):
                return False
            self.kv.swap_in(request)
            return True
        parent = self.requests.get(request.fork_of)
        is_new = request.num_output_tokens == 0
        if is_new and parent is not None and self.kv.can_fork(parent, request):
            self.kv.fork(parent, request)
        else:
            self.kv.attach(request, self.kv.get_computed_blocks(request))
        if self.kv.fits(request, num_tokens, num_spare):
            return True
        self.kv.free(request)
        request.num_computed_tokens = 0
        return False

    def _make_room(self, request: Request, num_tokens: int, plan: StepPlan) -> bool:
        """Allocate slots for a running request's next tokens, stopping others while there are
        too few blocks. False if the request itself had to be stopped."""
        while not (
            self.kv.copy_if_shared(request)
            and self.kv.allocate_slots(request, num_tokens) is not None
        ):
            victim = choose_victim(self.running)
            self._preempt(victim, plan)
            if self.trace:
                self.trace.note("preempted", victim.request_id, for_id=request.request_id)
            if victim is request:
                return False
        return True

    def _preempt(self, request: Request, plan: StepPlan) -> None:
        """Take a running request's blocks away. It waits at the head of the queue with all its
        tokens; their KV moves to host memory if it may and fits there, or is computed again."""
        self.running.remove(request)
        self.waiting.appendleft(request)
        request.status = WAITING
        request.num_in_flight_tokens = 0
        request.num_preemptions += 1
        self.stats.num_preemptions += 1
        if self.preemption == "swap" and self.kv.swap_out(request):
            self.stats.num_swaps += 1
        else:
            self.kv.free(request)
            request.num_computed_tokens = 0
        plan.preempted_ids.append(request.request_id)

    def update_from_output(
        self, plan: SchedulerOutput, result: ModelRunnerOutput
    ) -> list[EngineCoreOutput]:
        """Take in what a step computed: counters move, tokens are appended, requests end. A row
        whose request is gone, or was stopped since, is ignored; result.errors ends its requests
        with that error. Returns what each request gained, in the order of the plan's rows."""
        errors = dict(result.errors)
        outputs = []
        for index, row in enumerate(plan.rows):
            request = self.requests.get(row.request_id)
            if request is None or request.status is WAITING:
                continue
            new_token_ids: tuple[int, ...] = ()
            if row.request_id in errors:
                request.error = errors[row.request_id]
                request.finish("error")
            else:
                request.num_in_flight_tokens -= len(row.token_ids)
                request.num_computed_tokens += len(row.token_ids)
                new_token_ids = self._accept(request, result.sampled[index])
                self._share(request)
            outputs.append(report(request, new_token_ids, result, index))
            if request.finish_reason is not None:
                self._leave(request)
        return outputs

    def _accept(self, request: Request, sampled: tuple[int, ...]) -> tuple[int, ...]:
        """Append sampled ids up to and including the one that ends the request. Returns those.
        A request that holds its blocks appends none: it waits to be forked."""
        if request.holds_blocks:
            return sampled
        for index, token_id in enumerate(sampled):
            request.token_ids.append(token_id)
            stop = stop_at_last(request, self.eos_token_ids, self.max_model_len)
            if stop is not None:
                request.finish(*stop)
                return sampled[: index + 1]
        if request.is_scoring and request.num_uncomputed_tokens == 0:
            request.finish("length")
        return sampled

    def _share(self, request: Request) -> None:
        """Offer what is computed: full blocks to the cache, all blocks to those that fork it."""
        self.kv.publish(request)
        if self.forks.held:
            self.waiting.extendleft(reversed(self.forks.release(request)))

    def _leave(self, request: Request) -> None:
        """Forget a finished request, take its blocks back, and let those go that wait for it."""
        del self.requests[request.request_id]
        self.stats.count_end(request)
        self.waiting.extendleft(reversed(self.forks.release(request)))
        if request.request_id in self.kv.tables:
            self.running.remove(request)
            self.finished_ids.append(request.request_id)
        elif request in self.waiting:
            self.waiting.remove(request)
        else:
            self.forks.remove(request)
        self.kv.forget(request)

    def check(self) -> None:
        """Every request is in one queue, and exactly the running ones own blocks."""
        self.kv.check()
        assert len(self.running) <= self.max_num_seqs
        queued = [r.request_id for r in [*self.waiting, *self.running, *self.forks]]
        assert len(queued) == len(set(queued)) and set(queued) == self.requests.keys()
        assert {r.request_id for r in self.running} == self.kv.tables.keys()
        assert self.kv.host.tables.keys() <= {r.request_id for r in self.waiting}
        for request in self.requests.values():
            request.check()
            assert not request.is_finished
            is_here = request.status is RUNNING or self.kv.is_swapped_out(request)
            assert is_here or request.num_computed_tokens == 0
        for request in self.running:
            num_slots = len(self.kv.tables[request.request_id]) * self.kv.block_size
            assert request.num_planned_tokens <= num_slots
