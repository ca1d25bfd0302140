"""The real scheduler, stepped by hand: what each step did with each request, and why.

Whose scheduler it is, the name of a package says: `minivllm`, or a copy of it with a learner's
functions in it. Time is modelled: `SimExecutor` says how long each step would take.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

from labs.browser import StepLimit, limit

from .reasons import Did, Limits, Look

REFERENCE = "minivllm"
MOST_INSTRUCTIONS = 5_000_000  # of somebody else's scheduler, in one run


class Ask(NamedTuple):
    """A request of an example."""

    name: str
    step: int  # it is there when this step is planned; the first is 1
    num_prompt: int  # tokens
    num_answer: int


@dataclass(frozen=True, slots=True)
class Step:
    number: int  # from 1
    did: tuple[Did, ...]  # those with tokens first, in the plan's order; then the others
    num_tokens: int
    num_free: int  # blocks, while the step runs
    start_s: float  # modelled
    end_s: float

    @property
    def num_rows(self) -> int:
        """Requests that are computed in this step."""
        return sum(did.num_tokens > 0 for did in self.did)


@dataclass(frozen=True, slots=True)
class Run:
    """All steps of an example. failure: what went wrong, if something did, in a sentence."""

    asks: tuple[Ask, ...]
    limits: Limits
    steps: tuple[Step, ...]
    failure: str = ""

    @property
    def idle_share(self) -> float:
        """Of all places in all steps, the part where nobody was computed: 0 to 1."""
        used = sum(step.num_rows for step in self.steps)
        return 1 - used / max(1, self.limits.places * len(self.steps))

    def last_step(self, name: str) -> int | None:
        """The step in which a request ended."""
        ends = (step.number for step in self.steps for d in step.did if d.name == name and d.ends)
        return next(ends, None)


class Stepper:
    """A scheduler and its blocks, before a Llama 3 8B on an H100 whose times are modelled."""

    def __init__(self, asks: Iterable[Ask], limits: Limits, package: str = REFERENCE) -> None:
        self.asks, self.limits, self.package = tuple(asks), limits, package
        self.number = 0
        self.notes: list[tuple[str, str | None, dict]] = []
        config = self._part("config").EngineConfig(
            "llama-3-8b",
            block_size=limits.block_size,
            max_num_seqs=limits.places,
            max_num_batched_tokens=limits.budget,
            long_prefill_token_threshold=limits.max_chunk,
            policy=limits.policy,
            prefix_cache="none",
        )
        self.scheduler = self._part("engine.core").make_scheduler(
            config,
            num_blocks=limits.blocks + 1,  # block 0 is never handed out
            max_model_len=limits.blocks * limits.block_size,
            trace=SimpleNamespace(note=self._note),
        )
        deploy = self._part("bench.outcome").deploy
        deployment = deploy("llama-3-8b", "h100", block_size=limits.block_size)
        self.executor = self._part("executor.sim").SimExecutor(config, deployment)

    @property
    def is_done(self) -> bool:
        coming = any(ask.step > self.number for ask in self.asks)
        return not coming and not self.scheduler.has_unfinished_requests

    def step(self) -> Step:
        """Let in who comes now; then the four lines of `EngineCore.step`, and between the first
        and the second a look around."""
        self.number += 1
        for ask in self.asks:
            if ask.step == self.number:
                self._add(ask)
        scheduler, executor, start_s = self.scheduler, self.executor, self.executor.now
        ran = {r.request_id: r.num_computed_tokens for r in scheduler.running}
        self.notes.clear()
        plan = scheduler.schedule(start_s)
        look = Look(scheduler, plan, start_s, self.limits, ran, self.notes)
        outputs = []
        if not plan.is_empty():
            executor.execute_model(plan)
            outputs = scheduler.update_from_output(plan, executor.sample_tokens(plan.step))
        gained = {o.request_id for o in outputs if o.new_token_ids}
        ended = {o.request_id for o in outputs if o.finish_reason}
        did = look.did(gained, ended)
        return Step(self.number, did, plan.num_tokens, look.num_free, start_s, executor.now)

    def _part(self, name: str) -> Any:
        return importlib.import_module(f"{self.package}.{name}")

    def _note(self, what: str, who: str | None, **facts: Any) -> None:
        self.notes.append((what, who, facts))

    def _add(self, ask: Ask) -> None:
        sampling = self._part("sampling_params").SamplingParams(
            temperature=0, max_tokens=ask.num_answer, ignore_eos=True
        )
        prompt = tuple(range(ask.num_prompt))
        message = self._part("outputs").EngineCoreRequest(
            ask.name, prompt, sampling, arrival_time=self.executor.now
        )
        self.scheduler.add_request(self._part("request").Request(message))


def run(asks: Iterable[Ask], limits: Limits, package: str = REFERENCE, max_steps: int = 200) -> Run:
    """Step to the end. What somebody else's scheduler raises, or loops over for ever, ends the
    run with a sentence; so do max_steps without an end."""
    stepper, steps, failure = Stepper(asks, limits, package), [], ""
    try:
        with nullcontext() if package == REFERENCE else limit(MOST_INSTRUCTIONS)():
            while not stepper.is_done and len(steps) < max_steps:
                steps.append(stepper.step())
    except StepLimit:
        failure = f"Step {stepper.number} did not come to an end: is there an endless loop?"
    except Exception as error:  # whatever a learner's scheduler raises
        failure = f"Step {stepper.number} ended in {type(error).__name__}: {error}"
    if not failure and not stepper.is_done:
        names = ", ".join(stepper.scheduler.requests)
        failure = f"After {max_steps} steps these had not ended: {names}."
    return Run(stepper.asks, limits, tuple(steps), failure)


def first_difference(one: Run, other: Run) -> str:
    """Where two runs of the same requests part, in a sentence; "" if nowhere."""
    for a, b in zip(one.steps, other.steps):
        here, there = ({d.name: told(d) for d in step.did} for step in (a, b))
        for name in here | there:
            first, second = here.get(name, "has ended"), there.get(name, "has ended")
            if first != second:
                return f"Step {a.number}, request {name}: {first} in one, {second} in the other."
    if len(one.steps) != len(other.steps):
        return f"One takes {len(one.steps)} steps, the other {len(other.steps)}."
    return ""


def told(did: Did) -> str:
    return f"{did.state} of {did.num_tokens}" if did.num_tokens else did.state


def table(step: Step) -> list[tuple[str, ...]]:
    """A step as a table: a heading, then a row for each request."""
    heading = ("request", "state", "computed before", "tokens now", "blocks", "why")
    return [heading] + [
        (d.name, d.state, f"{d.num_computed} of {d.num_had}", str(d.num_tokens or "-"),
         str(d.num_blocks or "-"), d.why)
        for d in step.did
    ]  # fmt: skip
