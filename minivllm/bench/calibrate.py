"""What this machine really does: steps of the real engine, measured, and the four constants that
explain them best. The rest of a roofline is arithmetic."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from operator import mul
from statistics import median
from typing import TYPE_CHECKING

from ..outputs import SchedulerOutput
from .arrivals import fixed
from .hardware import Hardware
from .model_shapes import ModelShape
from .roofline import Constants, Deployment, StepWork, bytes_moved, flops, plan_work, step_seconds
from .workload import workload_prefixes

if TYPE_CHECKING:
    from ..engine.core import EngineCore

Measured = tuple[StepWork, float]  # seconds

Shape = tuple[int, int]  # requests at once, tokens of each prompt

# What the constants are fitted to, and what they are tried on afterwards.
FITTED = ((1, 16), (1, 400), (2, 150), (4, 60), (8, 100), (16, 30), (32, 16))
HELD_OUT = ((1, 100), (3, 200), (6, 40), (12, 60), (24, 30))
NUM_NEW = 8  # tokens of each answer


@dataclass(frozen=True, slots=True)
class Fit:
    """Four constants, none below 0."""

    seconds_per_flop: float
    seconds_per_byte: float
    seconds_per_step: float
    seconds_per_request: float


def machine(fit: Fit, memory_bytes: float = 0.0) -> tuple[Hardware, Constants]:
    """The machine as the roofline takes it: what was measured is its peak, reached in full."""
    hardware = Hardware(
        name="this machine",
        memory_bytes=memory_bytes,
        memory_bytes_per_s=1 / max(fit.seconds_per_byte, 1e-18),
        flops_per_s=dict.fromkeys((16, 32), 1 / max(fit.seconds_per_flop, 1e-18)),
        link_bytes_per_s=0.0,
        host_bytes_per_s=1 / max(2 * fit.seconds_per_byte, 1e-18),
        source="measured by minivllm bench calibrate",
        date="",
    )
    constants = Constants(1.0, 1.0, fit.seconds_per_step, fit.seconds_per_request, 1.0, 0.0, 0.0)
    return hardware, constants


def bare(model: ModelShape, bits: int, block_size: int) -> Deployment:
    """The model on a machine of which nothing is known yet."""
    hardware, constants = machine(Fit(1.0, 1.0, 0.0, 0.0))
    return Deployment(
        model, hardware, weight_bits=bits, kv_bits=bits, block_size=block_size, constants=constants
    )


def fit_constants(deployment: Deployment, steps: Sequence[Measured]) -> Fit:
    """The constants, none below 0, with the least sum of squared relative errors of
    max(flops x a, bytes x b) + c + requests x d. The ratio b / a decides which floor each step
    stands on; it is searched, ever closer, and for each ratio the rest is linear.

    deployment: its bits and model; its constants are not used. b is 0 where no step waits for
    memory. Raises ValueError for no steps.
    """
    if not steps:
        raise ValueError("there is no measured step to fit constants to")
    rows = [
        (flops(deployment, work), bytes_moved(deployment, work), work.num_requests, seconds)
        for work, seconds in steps
    ]
    ratio = median(row[0] / row[1] for row in rows)
    for width in (4.0, 1.5, 1.1, 1.02):
        ratios = [ratio * width**k for k in range(-6, 7)]
        ratio = min(ratios, key=lambda ratio: _fit_at(ratio, rows)[1])
    (per_flop, per_step, per_request), _ = _fit_at(ratio, rows)
    waits_for_memory = any(ratio * row[1] > row[0] for row in rows)
    return Fit(per_flop, per_flop * ratio * waits_for_memory, per_step, per_request)


def _fit_at(ratio: float, rows: Sequence[tuple]) -> tuple[list[float], float]:
    """a, c and d for a given b / a, and the sum of squares that they leave. Descends along one
    of the three after the other, stopping at 0."""
    # Over each step's own time, so that errors are relative and the aim is 1.
    columns = [
        (max(num_flops, ratio * num_bytes) / seconds, 1 / seconds, num_requests / seconds)
        for num_flops, num_bytes, num_requests, seconds in rows
    ]
    products = [[sum(c[i] * c[j] for c in columns) for j in range(3)] for i in range(3)]
    aims = [sum(c[i] for c in columns) for i in range(3)]
    found = [0.0, 0.0, 0.0]
    for _ in range(1000):
        for i in range(3):
            others = sum(products[i][j] * found[j] for j in range(3) if j != i)
            found[i] = max(0.0, (aims[i] - others) / products[i][i])
    return found, sum((1 - sum(map(mul, c, found))) ** 2 for c in columns)


def relative_errors(deployment: Deployment, steps: Iterable[Measured]) -> list[float]:
    """How far each prediction is from what was measured, over what was measured."""
    return [abs(step_seconds(deployment, w) - seconds) / seconds for w, seconds in steps]


def measure(
    core: EngineCore, shapes: Sequence[Shape], num_rounds: int = 3
) -> dict[Shape, list[Measured]]:
    """Serve each shape's requests with a real engine, all shapes in turn, num_rounds times.
    Returns for each shape its kinds of step: the work, and the quickest time of those alike,
    since whatever else the machine does only adds to it."""
    plans: list[SchedulerOutput] = []
    inner = core.executor.execute_model

    def execute_model(plan: SchedulerOutput) -> None:
        plans.append(plan)
        inner(plan)

    steps: dict[Shape, list[Measured]] = defaultdict(list)
    core.executor.execute_model = execute_model
    try:
        for round_ in range(num_rounds):
            for shape in shapes:
                _add(core, shape, f"round {round_}, {shape}")
                while core.has_unfinished_requests:
                    start = time.perf_counter()
                    core.step()
                    steps[shape].append((plan_work(plans[-1]), time.perf_counter() - start))
    finally:
        core.executor.execute_model = inner
    return {shape: quickest(measured) for shape, measured in steps.items()}


def _add(core: EngineCore, shape: Shape, name: str) -> None:
    num_requests, prompt_len = shape
    requests = workload_prefixes(
        num_requests,
        prompt_len=fixed(prompt_len),
        output_len=fixed(NUM_NEW),
        seed=random.Random(name).getrandbits(32),
    )
    for request in requests:
        named = replace(request, request_id=f"{name}, {request.request_id}")
        core.add_request(named.engine_request(core.clock()))


def quickest(steps: Iterable[Measured]) -> list[Measured]:
    """Of steps with as many requests and tokens, and contexts within 64 of each other, one."""
    alike: dict[tuple, list[Measured]] = defaultdict(list)
    for work, seconds in steps:
        if work.num_requests:
            context = work.num_kv_read // work.num_requests // 64
            alike[work.num_requests, work.num_tokens, context].append((work, seconds))
    return [min(group, key=lambda step: step[1]) for group in alike.values()]
