"""Serve requests with the real engine, all of them there at once, and write down when each token
came and what each step was about. Every time here is measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..engine.greedy import generate_greedy
from ..engine.llm_engine import LLMEngine
from ..outputs import RequestOutput, SchedulerOutput
from ..sampling_params import SamplingParams
from .roofline import StepWork, plan_work
from .simulate import Record, check_length
from .workload import WorkloadRequest

Tell = Callable[[int, int], object]  # called after each step: new tokens so far, in the end


class TimedStep(NamedTuple):
    """One step of the engine."""

    start: float  # seconds since the first request came
    end: float
    work: StepWork
    num_decodes: int  # of the step's tokens, those that follow what their request has said
    kv_use: float  # share of the KV blocks in use after the step


@dataclass(slots=True)
class TimedRun:
    """A run that has ended."""

    records: list[Record]  # in the order of the requests
    steps: list[TimedStep] = field(default_factory=list)
    outputs: list[tuple[int, ...]] = field(default_factory=list)  # new ids, by request
    num_blocks: int = 0

    @property
    def wall_s(self) -> float:
        return self.steps[-1].end

    @property
    def prefill_share(self) -> float:
        """Of the time of all steps. A step of both kinds is divided by its tokens."""
        seconds = [step.end - step.start for step in self.steps]
        decode_s = sum(
            s * step.num_decodes / step.work.num_tokens for s, step in zip(seconds, self.steps)
        )
        return 1 - decode_s / sum(seconds)

    @property
    def num_new_tokens(self) -> int:
        return sum(map(len, self.outputs))


def serve(
    engine: LLMEngine,
    requests: Sequence[WorkloadRequest],
    tell: Tell = lambda num_done, num: None,
) -> TimedRun:
    """Answer all requests, greedily, each with exactly max_tokens tokens. Raises ValueError for a
    request that does not fit, and where one fails."""
    watch = StepWatch(engine)
    records = {r.request_id: Record(r, 0.0) for r in requests}
    for request in requests:
        check_length(request, engine.max_model_len)
    outputs: dict[str, list[int]] = {name: [] for name in records}
    num_wanted, num_done = sum(r.max_tokens for r in requests), 0
    with watch:
        for request in requests:
            engine.add_request(
                request.request_id, list(request.prompt_token_ids), greedy(request.max_tokens)
            )
        while engine.has_unfinished_requests:
            for report in watch.step():
                record, new = records[report.request_id], report.outputs[0].new_token_ids
                outputs[report.request_id] += new
                num_done += len(new)
                _take(record, report, watch)
            tell(num_done, num_wanted)
    return TimedRun(
        list(records.values()), watch.steps, [tuple(o) for o in outputs.values()], watch.num_blocks
    )


def serve_naively(
    engine: LLMEngine,
    requests: Sequence[WorkloadRequest],
    tell: Tell = lambda num_done, num: None,
) -> TimedRun:
    """The same answers by `generate_greedy`, one request after the other: the engine is asked for
    one token of a text that it has never seen, and forgets all it computed when it has said it.
    """
    watch = StepWatch(engine)
    run = TimedRun([], watch.steps, num_blocks=watch.num_blocks)
    num_wanted, num_asked = sum(r.max_tokens for r in requests), 0

    def next_token(token_ids: list[int]) -> int:
        nonlocal num_asked
        num_asked += 1
        engine.add_request(f"token {num_asked}", token_ids, greedy(1))
        while engine.has_unfinished_requests:
            reports = watch.step()
        record.token_times.append(watch.now)
        tell(num_asked, num_wanted)
        return reports[0].outputs[0].new_token_ids[0]

    with watch:
        for request in requests:
            record = Record(request, 0.0, admitted_time=watch.now)
            run.records.append(record)
            output = generate_greedy(next_token, request.prompt_token_ids, request.max_tokens)
            run.outputs.append(tuple(output))
    return run


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)


def _take(record: Record, report: RequestOutput, watch: StepWatch) -> None:
    output = report.outputs[0]
    if output.finish_reason == "error":
        raise ValueError(f"request {report.request_id} failed: {output.error}")
    if record.admitted_time is None:
        record.admitted_time = watch.admitted[report.request_id]
    record.token_times += [watch.now] * len(output.new_token_ids)
    record.num_cached_tokens = report.num_cached_tokens
    record.num_preemptions = report.metrics.num_preemptions


class StepWatch:
    """Steps an engine and keeps each step's time and work. Used as a context: the clock starts
    on entering, and on leaving the executor is as it was and has forgotten all requests."""

    def __init__(self, engine: LLMEngine) -> None:
        self.engine = engine
        self.steps: list[TimedStep] = []
        self.admitted: dict[str, float] = {}  # request id -> start of its first step
        self.now = 0.0  # seconds, at the end of the last step
        self._plans: list[SchedulerOutput] = []

    @property
    def num_blocks(self) -> int:
        return self.engine.core.scheduler.kv.pool.num_blocks

    def __enter__(self) -> StepWatch:
        executor = self.engine.core.executor
        self._inner = executor.execute_model

        def execute_model(plan: SchedulerOutput) -> None:
            self._plans.append(plan)
            self._inner(plan)

        executor.execute_model = execute_model
        self._start = time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        self.engine.core.executor.execute_model = self._inner
        if not self.engine.has_unfinished_requests:
            self.engine.step()  # the worker is told what has ended

    def step(self) -> list[RequestOutput]:
        start, num_plans = time.perf_counter() - self._start, len(self._plans)
        reports = self.engine.step()
        self.now = time.perf_counter() - self._start
        assert len(self._plans) > num_plans, "requests wait and nothing can be planned"
        plan = self._plans[-1]
        for new in plan.new_requests:
            self.admitted.setdefault(new.request_id, start)
        if plan.rows:
            kv = self.engine.core.scheduler.kv
            num_decodes = sum(len(row.token_ids) == 1 and row.start > 0 for row in plan.rows)
            kv_use = 1 - kv.num_free_blocks / (kv.pool.num_blocks - 1)
            step = TimedStep(start, self.now, plan_work(plan), num_decodes, kv_use)
            self.steps.append(step)
        return reports
