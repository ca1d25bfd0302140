"""What lesson 09 computes: who comes, what the laws say, what simulation and clock say.

Everything but `timed` is modelled: the real scheduler under a virtual clock, Llama 3 8B in bf16 on
one H100, unless a package is named whose scheduler is used instead of the reference's.
"""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from minivllm import LLM, SamplingParams
from minivllm.bench.arrivals import lognormal, uniform
from minivllm.bench.outcome import deploy
from minivllm.bench.outcome import run as simulate
from minivllm.bench.roofline import StepWork, attended, decode_work, step_seconds
from minivllm.bench.simulate import Simulation
from minivllm.bench.workload import WorkloadRequest, workload_prefixes

from .reasons import Limits
from .stepping import REFERENCE, Ask, first_difference, run

GPU = deploy("llama-3-8b", "h100")
OLD, NEW = "static", "fcfs"  # policies
ALL_PROMPTS = 8192  # tokens in a step: room for the prompts of a whole batch

PATTERNS = {
    "ten at once, answers of all lengths": [
        Ask("a", 1, 3, 9), Ask("b", 1, 2, 2), Ask("c", 1, 4, 4), Ask("d", 1, 2, 2),
        Ask("e", 1, 3, 7), Ask("f", 1, 2, 3), Ask("g", 1, 2, 2), Ask("h", 1, 4, 6),
        Ask("i", 1, 2, 2), Ask("j", 1, 3, 2),
    ],
    "one after another": [
        Ask("a", 1, 3, 6), Ask("b", 2, 2, 3), Ask("c", 3, 4, 5), Ask("d", 5, 2, 2),
        Ask("e", 6, 3, 6), Ask("f", 8, 2, 3), Ask("g", 9, 2, 4), Ask("h", 11, 3, 2),
    ],
    "eight at once, answers all alike": [Ask(name, 1, 3, 5) for name in "abcdefgh"],
}  # fmt: skip
# Every reason that a step can have occurs among these five within FEW_LIMITS.
FEW = [Ask("a", 1, 5, 7), Ask("b", 1, 7, 5), Ask("c", 2, 10, 4), Ask("d", 3, 3, 3),
       Ask("e", 6, 3, 2)]  # fmt: skip
FEW_LIMITS = Limits(places=3, budget=8, blocks=8)


@cache
def crowd(policy: str, places: int = 32) -> Simulation:
    """Four times as many people as places, all at once: answers of 150 tokens on average, 600 at
    most."""
    people = workload_prefixes(
        4 * places, prompt_len=uniform(100, 500), output_len=lognormal(150, 0.8, 600), seed=1
    )
    return simulate(
        people, GPU, policy=policy, max_num_seqs=places, max_num_batched_tokens=ALL_PROMPTS
    )


def idle_share(simulation: Simulation) -> float:
    """Of all places, over all the time, the part where nobody was computed."""
    used = sum((step.end - step.start) * step.num_rows for step in simulation.steps)
    return 1 - used / (simulation.makespan_s * simulation.config.max_num_seqs)


def mean_longest(lengths: Sequence[int], n: int) -> float:
    """The expected longest of n lengths drawn from these."""
    m = len(lengths)
    chances = (((i + 1) / m) ** n - (i / m) ** n for i in range(m))
    return sum(length * chance for length, chance in zip(sorted(lengths), chances))


@dataclass(frozen=True, slots=True)
class Used:
    """Shares of places used, over all steps."""

    law: float  # of static batches, by the formula
    static: float  # simulated
    anew: float
    times_faster: float


def places_used(n: int) -> Used:
    """160 people before n places: answers of 40 tokens on average, 160 at most."""
    people = workload_prefixes(
        160, prompt_len=uniform(20, 60), output_len=lognormal(40, 0.8, 160), seed=2
    )
    lengths = [person.max_tokens for person in people]
    old, new = (
        simulate(people, GPU, policy=p, max_num_seqs=n, max_num_batched_tokens=ALL_PROMPTS)
        for p in (OLD, NEW)
    )
    static, anew = (sum(s.num_rows for s in r.steps) / n / len(r.steps) for r in (old, new))
    law = sum(lengths) / len(lengths) / mean_longest(lengths, n)
    return Used(law, static, anew, old.makespan_s / new.makespan_s)


def decode_ms(num_rows: int) -> float:
    """A step in which so many requests of 300 tokens get one more."""
    return 1e3 * step_seconds(GPU, decode_work(num_rows, 300))


@dataclass(frozen=True, slots=True)
class Gap:
    """What a long prompt does to those who stream, where a step has so many tokens."""

    budget: int
    law_ms: float
    worst_ms: float  # between two tokens of a chat, simulated
    first_ms: float  # until the prompt's first token, simulated


def gaps(budgets: Sequence[int] = (256, 512, 2048, 8192), prompt: int = 8000) -> list[Gap]:
    """32 chats stream, and a prompt of 8,000 tokens comes in. The law: the last and dearest chunk
    of the prompt, beside 32 tokens of chats."""
    chats = [WorkloadRequest(f"c{i}", tuple(range(i, i + 100)), 150) for i in range(32)]
    newcomer = WorkloadRequest("long", tuple(range(9000, 9000 + prompt)), 2, 0.3)
    found = []
    for budget in budgets:
        made = simulate([*chats, newcomer], GPU, max_num_batched_tokens=budget)
        *streams, late = made.records
        chunk = min(budget - 32, prompt)
        step = StepWork(33, chunk + 32, 33, attended(prompt - chunk, chunk), prompt + 32 * 150)
        worst = max(gap for record in streams for gap in record.itl_s)
        law = step_seconds(GPU, step)
        found.append(Gap(budget, 1e3 * law, 1e3 * worst, 1e3 * late.ttft_s))
    return found


def beside_reference(package: str) -> str:
    """Each example on a package's scheduler, as a table in Markdown: who comes, how many steps
    they take, and where the plans part from the reference's."""
    examples = [(name, asks, Limits(4, 32)) for name, asks in PATTERNS.items()]
    lines = ["| who comes | steps | parts from the reference |", "|---|---|---|"]
    for name, asks, limits in [*examples, ("the five, by hand", FEW, FEW_LIMITS)]:
        made = run(asks, limits, package)
        parted = made.failure or first_difference(run(asks, limits, REFERENCE), made)
        lines.append(f"| {name} | {len(made.steps)} | {parted or 'nowhere'} |")
    return "\n".join(lines)


# What the clock measures. In plain Python each row costs the same, so its answers are shorter.
MACHINES = {"plain Python": ("executor.plain.PlainExecutor", 1)}
if sys.platform != "emscripten":
    MACHINES["torch"] = ("executor.uniproc.UniprocExecutor", 2)


def timed(machine: str, policy: str, model: str = "tiny") -> tuple[int, float]:
    """Steps and seconds, measured here: the first pattern in four places, with a real model.
    machine: one of MACHINES."""
    executor, times = MACHINES[machine]
    llm = LLM(model, executor=executor, policy=policy, max_num_seqs=4, prefix_cache="none")
    (asks, *_) = PATTERNS.values()
    prompts = [list(range(10, 10 + ask.num_prompt)) for ask in asks]
    params = [
        SamplingParams(temperature=0, max_tokens=times * ask.num_answer, ignore_eos=True)
        for ask in asks
    ]
    llm.generate(prompts, SamplingParams(max_tokens=2))  # what is compiled at first use
    scheduler = llm.engine.core.scheduler
    num_steps, start = scheduler.num_steps, time.perf_counter()
    llm.generate(prompts, params)
    seconds, num_steps = time.perf_counter() - start, scheduler.num_steps - num_steps
    llm.shutdown()
    return num_steps, seconds


def measured() -> str:
    """Old way and new on each of MACHINES, as a table in Markdown, and what machine this is."""
    lines = ["| `tiny`, on | steps, old and new | seconds, old and new | times as fast |",
             "|---|---|---|---|"]  # fmt: skip
    for machine in MACHINES:
        (old_steps, old_s), (new_steps, new_s) = timed(machine, OLD), timed(machine, NEW)
        lines.append(f"| {machine} | {old_steps} and {new_steps} | {old_s:.2f} and {new_s:.2f} | "
                     f"{old_s / new_s:.2f} |")  # fmt: skip
    where = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    return "\n".join([*lines, "", f"Measured where this page was computed: {where}."])
