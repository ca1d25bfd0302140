"""One request on its way through the rooms: a real trace as stops that a reader steps through.

`record` runs the request and keeps what crossed each door; `lessons.rooms` draws it. Standard
library only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from lessons.draw import DECODE, NOTHING, PREFILL
from minivllm.entrypoints.llm import LLM
from minivllm.metrics.trace import Trace, pack, read_trace
from minivllm.outputs import (
    EngineCoreOutput,
    EngineCoreRequest,
    ModelRunnerOutput,
    RequestOutput,
    Row,
    SchedulerOutput,
)
from minivllm.sampling_params import SamplingParams

YOU, ENTRYPOINTS, ENGINE, TOKENIZER, SCHEDULER, KVCACHE, EXECUTOR = (
    "you", "entrypoints", "engine", "tokenizer", "scheduler", "kvcache", "executor",
)  # fmt: skip
REQUEST_ID = "a"

Fields = tuple[tuple[str, str], ...]  # (name, value as Python writes it)
Gain = tuple[list[EngineCoreOutput], list[RequestOutput]]  # what a step gave, and what users see


@dataclass(frozen=True, slots=True)
class Stop:
    """One message, and the door that it crosses."""

    step: int  # of the engine; 0: before the first
    kind: str  # of that step: PREFILL, DECODE or NOTHING, as in `lessons.draw`
    source: str  # the rooms on both sides
    target: str
    message: str  # its type
    fields: Fields  # what it holds, apart from defaults
    says: str
    answer: str  # what is written by then
    block_ids: tuple[int, ...]  # what the request owns by then


@dataclass(frozen=True, slots=True)
class Walk:
    prompt: str
    num_prompt_tokens: int
    stops: tuple[Stop, ...]
    num_computed: int  # tokens, over all plans

    def find(self, message: str, step: int) -> int:
        """The number, from 1, of the first stop with this message in this step. Raises ValueError
        if there is none."""
        stops = [(stop.message, stop.step) for stop in self.stops]
        return stops.index((message, step)) + 1


def record(llm: LLM, prompt: str, params: SamplingParams) -> Walk:
    """Run one request, alone in the engine, and keep every message of it. Raises ValueError if
    the prompt cannot be served, if it asks for several samples, or if the engine is busy."""
    if params.n != 1:
        raise ValueError(f"one walk is one request: n must be 1, got {params.n}")
    engine, core = llm.engine, llm.engine.core
    if core.has_unfinished_requests:
        raise ValueError("the engine is busy: let its requests end first, or make another LLM")
    lines: list[str] = []
    trace, clock = core.trace, core.clock
    core.trace = core.scheduler.trace = Trace(lines.append)
    core.clock = lambda: 0.0  # stands still, so that two walks of one prompt are alike
    gains: list[Gain] = []
    try:
        engine.add_request(REQUEST_ID, prompt, params)
        while core.has_unfinished_requests:
            outputs = core.step()
            reports, stopped = engine.output_processor.process(outputs, core.clock())
            for sample_id in stopped:
                core.abort(sample_id)
            gains.append((outputs, reports))
        gains.append((core.step(), []))  # the executor hears that the request has ended
    finally:
        core.trace = core.scheduler.trace = trace
        core.clock = clock
    return walk_of(lines, gains, prompt, params, engine.tokenizer, core.scheduler.kv.block_size)


def walk_of(
    lines: Sequence[str],  # the trace
    gains: Sequence[Gain],  # by step
    prompt: str,
    params: SamplingParams,
    tokenizer: Any,
    block_size: int,
) -> Walk:
    """The trace of one request as a walk, with what each step gave besides."""
    messages = list(read_trace(lines))
    (request,) = (message for kind, message in messages if kind == "add")
    steps = [message for kind, message in messages if kind == "step"]
    path = Path(len(request.prompt_token_ids), block_size)
    path.way_in(prompt, params, request)
    for (_, plan, result, _), (outputs, reports) in zip(steps, gains, strict=True):
        path.begin(plan)
        if not plan.rows:
            path.forget(plan)
            continue
        path.compute(plan, result)
        if result.sampled[0]:
            path.way_out(outputs[0], reports[0], tokenizer)
    num_computed = sum(plan.num_tokens for _, plan, _, _ in steps)
    return Walk(prompt, path.num_prompt_tokens, tuple(path.stops), num_computed)


class Path:
    """The stops so far, with what is written and what is owned by then."""

    def __init__(self, num_prompt_tokens: int, block_size: int) -> None:
        self.num_prompt_tokens, self.block_size = num_prompt_tokens, block_size
        self.stops: list[Stop] = []
        self.step, self.kind, self.answer = 0, NOTHING, ""
        self.block_ids: tuple[int, ...] = ()

    def add(self, source: str, target: str, message: str, held: Fields, says: str) -> None:
        self.stops.append(
            Stop(self.step, self.kind, source, target, message, held, says, self.answer,
                 self.block_ids)
        )  # fmt: skip

    def way_in(self, prompt: str, params: SamplingParams, request: EngineCoreRequest) -> None:
        """Text becomes a request of token ids."""
        text, ids = (("prompt", repr(prompt)),), request.prompt_token_ids
        given = (*text, ("params", spell(params)))
        self.add(YOU, ENTRYPOINTS, "a call", given,
                 "You ask for an answer. This is all you give.")  # fmt: skip
        self.add(ENTRYPOINTS, ENGINE, "a prompt", given,
                 "What cannot be served is refused here, before anything is queued.")  # fmt: skip
        self.add(ENGINE, TOKENIZER, "text", text,
                 "The last time that anybody inside reads words.")  # fmt: skip
        self.add(TOKENIZER, ENGINE, "token ids", (("token_ids", spell(ids)),),
                 f"{count(ids, 'number')}. From here on the prompt is only this.")  # fmt: skip
        self.add(ENGINE, SCHEDULER, "EngineCoreRequest", fields_of(request),
                 "The request joins those that wait. It has a name, and every default is "
                 "settled.")  # fmt: skip

    def begin(self, plan: SchedulerOutput) -> None:
        """Another step of the engine."""
        self.step, self.kind = plan.step, NOTHING
        for row in plan.rows:
            self.kind = PREFILL if row.start < self.num_prompt_tokens else DECODE

    def compute(self, plan: SchedulerOutput, result: ModelRunnerOutput) -> None:
        """The blocks, the plan, the result."""
        (row,), (sampled,) = plan.rows, result.sampled
        (new_ids,) = row.table_ids
        num = count(row.token_ids, "token")
        if new_ids:
            self.block_ids += new_ids
            self.add(KVCACHE, SCHEDULER, "block ids", (("block_ids", spell(new_ids)),),
                     f"Memory for what is computed now. A block holds {self.block_size} tokens "
                     f"here, and the request owns {count(self.block_ids, 'block')}.")  # fmt: skip
        self.add(SCHEDULER, EXECUTOR, "SchedulerOutput", fields_of(plan), says_of(row, self.kind))
        came = ("One number comes back: the id of the next token." if sampled
                else "More of the prompt is to come: nothing is chosen yet.")  # fmt: skip
        self.add(EXECUTOR, SCHEDULER, "ModelRunnerOutput", fields_of(result),
                 f"The model ran over {num}. {came}")  # fmt: skip

    def way_out(self, output: EngineCoreOutput, report: RequestOutput, tokenizer: Any) -> None:
        """The id becomes text, and you see it."""
        if output.finish_reason:
            self.block_ids = ()
            says = f"The request has ended ({output.finish_reason}); its blocks are free again."
        else:
            says = "The id is now the last of the request's tokens. The next step computes it."
        self.add(SCHEDULER, ENGINE, "EngineCoreOutput", fields_of(output), says)
        ids, new_text = output.new_token_ids, report.outputs[0].new_text
        piece = tokenizer.decode(ids, skip_special_tokens=False)
        self.answer += new_text
        self.add(TOKENIZER, ENGINE, "text", (("token_ids", spell(ids)), ("text", repr(new_text))),
                 f"Numbers are words again: {ids[0]} stands for {piece!r}.")  # fmt: skip
        if report.finished:
            self.block_ids = ()  # where a stop string ended it, they come back only now
        self.add(ENGINE, ENTRYPOINTS, "RequestOutput", report_fields(report),
                 "The whole answer." if report.finished else "You see it while the next one is "
                 "computed.")  # fmt: skip

    def forget(self, plan: SchedulerOutput) -> None:
        self.add(SCHEDULER, EXECUTOR, "SchedulerOutput", fields_of(plan),
                 "A plan without rows: nothing to compute, but the executor must forget the "
                 "request.")  # fmt: skip


def count(things: Sequence[Any], name: str) -> str:
    return f"{len(things)} {name}{'' if len(things) == 1 else 's'}"


def says_of(row: Row, kind: str) -> str:
    """What a row asks for, in a sentence."""
    what = f"Compute {count(row.token_ids, 'token')}, from position {row.start} on"
    if kind == DECODE:
        return (f"Compute one token, at position {row.start}: the one that was chosen last. What "
                f"came before is remembered, in the request's blocks.")  # fmt: skip
    return f"{what}, and choose what comes after the last." if row.num_to_sample else f"{what}."


# Names that do not explain themselves, as a message has them.
NAMES = {
    "temperature": "how much chance has a say in the choice; 0: none",
    "ignore_eos": "the answer goes on when the model chooses its end token",
    "start": "the position of the first of token_ids in the request",
    "num_to_sample": "how many tokens are chosen after this row; 0: more of the prompt is to come",
    "table_ids": "ids of blocks that are new in the request's list; without it the list stays",
    "table_start": "where in the request's list of blocks new ids belong, counted from 0",
    "sampled": "the ids that were chosen, for each row of the plan",
    "finished_ids": "requests that the executor may forget",
}


def names_in(stop: Stop) -> tuple[tuple[str, str], ...]:
    """Those of NAMES that a stop shows, each with what it means."""
    shown = " ".join(f"{name}={value}" for name, value in stop.fields)
    return tuple((n, says) for n, says in NAMES.items() if re.search(rf"\b{n}=", shown))


def fields_of(message: Any) -> Fields:
    """A message's fields that say something."""
    said = ((name, getattr(message, name)) for name in pack(message))
    return tuple((name, spell(value)) for name, value in said if value != ((),))


def report_fields(report: RequestOutput) -> Fields:
    (one,) = report.outputs
    held = {"new_text": one.new_text, "text": one.text, "finish_reason": one.finish_reason}
    return tuple((name, repr(value)) for name, value in held.items() if value is not None)


def spell(value: Any) -> str:
    """A value in Python's notation, messages without the fields that have their default value."""
    if is_dataclass(value) or hasattr(value, "_fields"):
        known = [f.name for f in fields(value)] if is_dataclass(value) else value._fields
        said = pack(value)
        inner = ", ".join(f"{n}={spell(getattr(value, n))}" for n in known if n in said)
        return f"{type(value).__name__}({inner})"
    if isinstance(value, tuple):
        inner = ", ".join(spell(item) for item in value)
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    return repr(value)
