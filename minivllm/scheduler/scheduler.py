"""Who runs in the next step, and for how many tokens. Decides; never computes.

There is no prefill phase and no decode phase. Each step computes some more tokens of each running
request, within one budget of tokens: a long prompt in pieces, an answer token by token, a
preempted request from its start again are all the same thing.
"""

from __future__ import annotations

from collections import deque
from itertools import islice

from ..kvcache.kv_cache_manager import KVCacheManager
from ..outputs import EngineCoreOutput, ModelRunnerOutput, SchedulerOutput
from ..request import Request, RequestStatus
from .plan import StepPlan
from .policy import Fcfs, Policy
from .preemption import choose_victim


class Scheduler:
    """Holds every request that is not finished: waiting, or running (owning blocks)."""

    def __init__(
        self,
        kv: KVCacheManager,
        *,
        max_num_seqs: int,  # requests in one step
        max_num_batched_tokens: int,  # tokens in one step
        max_model_len: int,  # tokens of one request, prompt and answer
        eos_token_ids: tuple[int, ...] = (),
        policy: Policy | None = None,
        debug: bool = False,  # tell the worker which blocks to poison
    ) -> None:
        assert max_model_len <= kv.max_tokens, "one request must fit alone"
        self.kv = kv
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_model_len = max_model_len
        self.eos_token_ids = frozenset(eos_token_ids)
        self.policy = policy or Fcfs()
        self.debug = debug

        self.requests: dict[str, Request] = {}
        self.waiting: deque[Request] = deque()  # preempted ones at the left
        self.running: list[Request] = []  # in order of admission
        self.finished_ids: list[str] = []  # the worker has not been told yet
        self.num_steps = 0

    def add_request(self, request: Request) -> None:
        assert request.request_id not in self.requests, f"{request.request_id} exists already"
        assert request.num_tokens <= self.max_model_len, "admission was not checked"
        self.requests[request.request_id] = request
        self.waiting.append(request)

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
        freed = self.kv.take_freed_blocks()
        return plan.seal(finished, freed if self.debug else [])

    def _plan_running(self, plan: StepPlan, budget: int) -> int:
        """Give each running request its next tokens, in order of admission, until the budget is
        spent. Returns what is left of the budget. A request without room for its tokens stops
        the last ones, or is stopped itself."""
        for request in list(self.running):
            if request.status is not RequestStatus.RUNNING:
                continue  # stopped a moment ago, to make room
            num_tokens = self._num_tokens_now(request, budget)
            if num_tokens > 0 and self._make_room(request, num_tokens, plan):
                plan.add(request, num_tokens, self.kv)
                budget -= num_tokens
        return budget

    def _plan_waiting(self, plan: StepPlan, budget: int) -> int:
        """Admit waiting requests in the policy's order while budget, places and blocks last, and
        stop at the first that must wait: whoever stands behind it does not overtake it.
        Returns what is left of the budget."""
        num_places = self.max_num_seqs - len(self.running)
        for request in list(islice(self.policy.order(self.waiting, plan.now), num_places)):
            if budget == 0 or self.policy.may_admit(request, len(self.running)):
                break
            if not self._admit(request):
                break
            num_tokens = self._num_tokens_now(request, budget)
            block_ids = self.kv.allocate_slots(request, num_tokens)
            assert block_ids is not None, "a request that fits whole has room for a part"
            plan.introduce(request)
            plan.add(request, num_tokens, self.kv)
            budget -= num_tokens
        return budget

    def _num_tokens_now(self, request: Request, budget: int) -> int:
        """How many of a request's tokens to compute in this step."""
        return min(request.num_uncomputed_tokens, budget)

    def _admit(self, request: Request) -> bool:
        """Let a waiting request own blocks, cached ones first. False, and nothing is changed,
        when the blocks at hand do not hold all the tokens it has now: a request that started
        with less would soon be stopped again."""
        self.kv.attach(request, self.kv.get_computed_blocks(request))
        if not self.kv.fits_whole(request):
            self.kv.free(request)
            request.num_computed_tokens = 0
            return False
        if request.num_preemptions == 0:
            request.num_cached_tokens = request.num_computed_tokens
        self.waiting.remove(request)
        self.running.append(request)
        request.status = RequestStatus.RUNNING
        return True

    def _make_room(self, request: Request, num_tokens: int, plan: StepPlan) -> bool:
        """Allocate slots for a running request's next tokens, stopping others while there are
        too few blocks. False if the request itself had to be stopped."""
        while self.kv.allocate_slots(request, num_tokens) is None:
            victim = choose_victim(self.running)
            self._preempt(victim, plan)
            if victim is request:
                return False
        return True

    def _preempt(self, request: Request, plan: StepPlan) -> None:
        """Take a running request's blocks away. It waits at the head of the queue, keeps all its
        tokens, and computes their KV again."""
        self.running.remove(request)
        self.waiting.appendleft(request)
        self.kv.free(request)
        request.status = RequestStatus.WAITING
        request.num_computed_tokens = request.num_in_flight_tokens = 0
        request.num_preemptions += 1
        plan.preempted_ids.append(request.request_id)

    def update_from_output(
        self, plan: SchedulerOutput, result: ModelRunnerOutput
    ) -> list[EngineCoreOutput]:
        """Take in what a step computed: counters move, tokens are appended, requests end.

        A row whose request is gone, or was stopped since, is ignored. Returns what each request
        gained, in the order of the plan's rows.
        """
        errors = dict(result.errors)
        outputs = []
        for index, row in enumerate(plan.rows):
            request = self.requests.get(row.request_id)
            if request is None or request.status is not RequestStatus.RUNNING:
                continue
            new_token_ids: tuple[int, ...] = ()
            if row.request_id in errors:
                request.error = errors[row.request_id]
                request.finish("error")
            else:
                request.num_in_flight_tokens -= len(row.token_ids)
                request.num_computed_tokens += len(row.token_ids)
                new_token_ids = self._accept(request, result.sampled[index])
                self.kv.publish(request)
            outputs.append(self._output(request, new_token_ids, index, result))
            if request.is_finished:
                self._leave(request)
        return outputs

    def _accept(self, request: Request, sampled: tuple[int, ...]) -> tuple[int, ...]:
        """Append sampled ids up to and including the one that ends the request. Returns those."""
        for index, token_id in enumerate(sampled):
            request.token_ids.append(token_id)
            stop = self._stop_at_last(request)
            if stop is not None:
                request.finish(*stop)
                return sampled[: index + 1]
        if request.is_scoring and request.num_uncomputed_tokens == 0:
            request.finish("length")
        return sampled

    def _stop_at_last(self, request: Request) -> tuple[str, int | None] | None:
        """Finish and stop reason if the last token ends the request, else None. A token that
        stops counts as part of the answer; before min_tokens none does."""
        params, last = request.sampling_params, request.token_ids[-1]
        if request.num_output_tokens >= params.min_tokens:
            if last in self.eos_token_ids and not params.ignore_eos:
                return "stop", None
            if last in params.stop_token_ids:
                return "stop", last
        is_full = request.num_tokens >= self.max_model_len
        if is_full or request.num_output_tokens == params.max_tokens:
            return "length", None
        return None

    def _leave(self, request: Request) -> None:
        """Forget a finished request and take its blocks back."""
        del self.requests[request.request_id]
        if request.request_id in self.kv.tables:
            self.running.remove(request)
            self.kv.free(request)
            self.finished_ids.append(request.request_id)
        else:
            self.waiting.remove(request)

    @staticmethod
    def _output(
        request: Request, new_token_ids: tuple[int, ...], index: int, result: ModelRunnerOutput
    ) -> EngineCoreOutput:
        return EngineCoreOutput(
            request_id=request.request_id,
            new_token_ids=new_token_ids,
            logprobs=result.logprobs[index][: len(new_token_ids)] if result.logprobs else (),
            prompt_logprobs=result.prompt_logprobs[index] if result.prompt_logprobs else None,
            finish_reason=request.finish_reason,
            stop_reason=request.stop_reason,
            error=request.error,
            num_cached_tokens=request.num_cached_tokens,
            num_preemptions=request.num_preemptions,
        )

    def check(self) -> None:
        """Every request is in one queue, and exactly the running ones own blocks."""
        self.kv.check()
        assert len(self.running) <= self.max_num_seqs
        known = {r.request_id for r in self.waiting} | {r.request_id for r in self.running}
        assert len(self.waiting) + len(self.running) == len(known) == len(self.requests)
        assert known == self.requests.keys()
        assert {r.request_id for r in self.running} == self.kv.tables.keys()
        for request in self.requests.values():
            request.check()
            assert not request.is_finished
        for request in self.running:
            assert request.status is RequestStatus.RUNNING
            num_slots = len(self.kv.tables[request.request_id]) * self.kv.block_size
            assert request.num_planned_tokens <= num_slots
