"""The real scheduler, caches and policies under a virtual clock. Every time here is modelled."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from ..config import EngineConfig
from ..engine.core import EngineCore, make_scheduler
from ..executor.sim import SimExecutor
from ..metrics.trace import Trace
from ..outputs import EngineCoreOutput
from .roofline import Deployment
from .workload import WorkloadRequest


@dataclass(slots=True)
class Record:
    """What happened to one request. Times are virtual seconds since the start."""

    request: WorkloadRequest
    arrival_time: float
    token_times: list[float] = field(default_factory=list)  # when each new token was there
    admitted_time: float | None = None  # the start of its first step
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    finish_reason: str | None = None
    error: str | None = None

    @property
    def ttft_s(self) -> float:
        """Time to first token."""
        return self.token_times[0] - self.arrival_time

    @property
    def tpot_s(self) -> float:
        """Time per output token: the mean gap after the first; 0 for an answer of one token."""
        gaps = len(self.token_times) - 1
        return (self.token_times[-1] - self.token_times[0]) / gaps if gaps else 0.0

    @property
    def itl_s(self) -> list[float]:
        """Inter-token latencies: each gap by itself."""
        return [b - a for a, b in zip(self.token_times, self.token_times[1:])]

    @property
    def latency_s(self) -> float:
        return self.token_times[-1] - self.arrival_time


class Step(NamedTuple):
    """One step of the engine, as a chart needs it."""

    start: float  # seconds
    end: float
    num_rows: int
    num_tokens: int
    num_running: int  # those that end with this step among them
    num_waiting: int
    kv_use: float  # share of the blocks that requests read, after the step


@dataclass(slots=True)
class Simulation:
    """A run that has ended."""

    deployment: Deployment
    config: EngineConfig
    num_blocks: int
    records: list[Record]
    steps: list[Step]
    num_preemptions: int
    num_swaps: int
    num_evicted_blocks: int

    @property
    def makespan_s(self) -> float:
        """From the start of the clock to the last token."""
        return self.steps[-1].end if self.steps else 0.0


def simulate_workload(
    requests: Iterable[WorkloadRequest],
    deployment: Deployment,
    config: EngineConfig,
    *,
    check_plans: bool = False,
    trace: Callable[[str], object] | None = None,
    progress: Callable[[int, int, float], object] = lambda num_done, num, now: None,
) -> Simulation:
    """Serve the requests, each when it comes, and return what happened once all have ended.

    trace: takes the lines of a trace. progress: called after each step with requests that have
    ended, all requests, virtual seconds. Raises ValueError where the model does not fit, or a
    request is longer than the model or its KV memory allows.
    """
    executor = SimExecutor(config, deployment, check_plans=check_plans)
    num_blocks = config.num_blocks or deployment.num_blocks(config.gpu_memory_utilization)
    executor.initialize(num_blocks, config.num_host_blocks)
    limit = config.max_model_len or deployment.model.max_position_embeddings
    max_model_len = min(limit, (num_blocks - 1) * config.block_size)
    writer = Trace(trace, clock="modelled", model=deployment.model.name) if trace else None
    scheduler = make_scheduler(config, num_blocks, max_model_len, trace=writer)
    core = EngineCore(scheduler, executor, executor.clock)
    run = _Run(core, executor, list(requests), max_model_len)
    run.until_done(progress)
    return Simulation(
        deployment=deployment,
        config=config,
        num_blocks=num_blocks,
        records=[run.records[request.request_id] for request in run.requests],
        steps=run.steps,
        num_preemptions=scheduler.stats.num_preemptions,
        num_swaps=scheduler.stats.num_swaps,
        num_evicted_blocks=scheduler.stats.num_evicted_blocks,
    )


class _Run:
    """Feeds arrivals to an engine and writes down what it says."""

    def __init__(
        self,
        core: EngineCore,
        executor: SimExecutor,
        requests: list[WorkloadRequest],
        max_model_len: int,
    ) -> None:
        self.core = core
        self.executor = executor
        self.requests = requests
        self.records: dict[str, Record] = {}
        self.steps: list[Step] = []
        self.num_done = 0
        self.coming: list[tuple[float, int, WorkloadRequest]] = []  # a heap, by time
        self.followers: dict[str, list[WorkloadRequest]] = defaultdict(list)
        self.num_pushed = 0  # ties in time keep the order in which they were pushed
        ids = {request.request_id for request in requests}
        if len(ids) < len(requests):
            raise ValueError("two requests of the workload have the same request_id")
        for request in requests:
            check_length(request, max_model_len)
            if request.after is None:
                self._push(request.arrival_time, request)
            elif request.after in ids:
                self.followers[request.after].append(request)
            else:
                raise ValueError(f"request {request.request_id} follows no request of the workload")

    def until_done(self, progress: Callable[[int, int, float], object]) -> None:
        core, executor = self.core, self.executor
        while self.coming or core.has_unfinished_requests:
            if not core.has_unfinished_requests:
                executor.wait_until(self.coming[0][0])
            self._let_in(executor.now)
            start, num_steps = executor.now, executor.num_steps
            outputs = core.step()
            assert executor.num_steps > num_steps, "requests wait and nothing can be planned"
            self._take(outputs, start)
            progress(self.num_done, len(self.requests), executor.now)
        assert self.num_done == len(self.requests), "requests were lost"

    def _push(self, time: float, request: WorkloadRequest) -> None:
        heapq.heappush(self.coming, (time, self.num_pushed, request))
        self.num_pushed += 1

    def _let_in(self, now: float) -> None:
        while self.coming and self.coming[0][0] <= now:
            time, _, request = heapq.heappop(self.coming)
            self.records[request.request_id] = Record(request, time)
            self.core.add_request(request.engine_request(time))

    def _take(self, outputs: list[EngineCoreOutput], start: float) -> None:
        now, records, num_done = self.executor.now, self.records, self.num_done
        for output in outputs:
            record = records[output.request_id]
            if record.admitted_time is None:
                record.admitted_time = start
            for _ in output.new_token_ids:
                record.token_times.append(now)
            if output.finish_reason is not None:
                record.num_cached_tokens = output.num_cached_tokens
                record.num_preemptions = output.num_preemptions
                record.finish_reason, record.error = output.finish_reason, output.error
                self.num_done += 1
                for follower in self.followers.get(output.request_id, ()):
                    self._push(now + follower.arrival_time, follower)
        self.steps.append(self._step(start, self.num_done - num_done))

    def _step(self, start: float, num_ended: int) -> Step:
        scheduler, plan = self.core.scheduler, self.executor.last_plan
        num_usable = scheduler.kv.pool.num_blocks - 1
        return Step(
            start=start,
            end=self.executor.now,
            num_rows=len(plan.rows),
            num_tokens=plan.num_tokens,
            num_running=len(scheduler.running) + num_ended,
            num_waiting=len(scheduler.waiting),
            kv_use=1 - scheduler.kv.num_free_blocks / num_usable,
        )


def check_length(request: WorkloadRequest, max_model_len: int) -> None:
    """Raises ValueError where prompt and answer together are too long for the engine."""
    num_prompt = len(request.prompt_token_ids)
    if num_prompt + request.max_tokens > max_model_len:
        raise ValueError(
            f"request {request.request_id} has {num_prompt} tokens and wants {request.max_tokens} "
            f"more: the model and its KV memory take {max_model_len} together"
        )
