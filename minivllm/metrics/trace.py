"""A trace: every message that crossed the door, in order, and the scheduler's reasons.

JSON lines. The first is {"trace": 1, ...} with whatever the writer said of the run; then
{"add": EngineCoreRequest}, {"abort": request id}, and for each step {"now", "plan", "result",
"why"}. Messages are written field by field without those that have their default value, tuples
as lists. "why" holds [reason, request id, facts]:

  admitted   hit: tokens computed already       preempted  for_id: who needed the memory
  chunked    num_tokens: of more that it has    evicted    block_ids: what the cache forgot
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, fields
from typing import Any

from ..outputs import (
    EngineCoreRequest,
    ModelRunnerOutput,
    NewRequest,
    PromptLogprobs,
    Row,
    SchedulerOutput,
)
from ..sampling_params import SamplingParams

VERSION = 1

# Which fields of a message hold messages themselves.
NESTED = {
    "sampling_params": SamplingParams,
    "new_requests": NewRequest,
    "rows": Row,
    "prompt_logprobs": PromptLogprobs,
}


class Trace:
    """Writes a trace line by line. Costs nothing where there is none."""

    def __init__(self, write: Callable[[str], Any], **about: Any) -> None:
        self._write = write
        self._why: list[tuple] = []
        self._line({"trace": VERSION, **about})

    def note(self, reason: str, request_id: str | None, **facts: Any) -> None:
        """Why the plan that is being made looks as it does."""
        self._why.append((reason, request_id, facts))

    def add(self, request: EngineCoreRequest) -> None:
        self._line({"add": pack(request)})

    def abort(self, request_id: str) -> None:
        self._line({"abort": request_id})

    def step(self, now: float, plan: SchedulerOutput, result: ModelRunnerOutput) -> None:
        line = {"now": now, "plan": pack(plan), "result": pack(result)}
        if self._why:
            line["why"], self._why = self._why, []
        self._line(line)

    def _line(self, line: dict) -> None:
        self._write(json.dumps(line, separators=(",", ":")) + "\n")


def read_trace(lines: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """("about", dict), then ("add", EngineCoreRequest), ("abort", id) and ("step", (now, plan,
    result, why)). Raises ValueError, with the line's number, for what is no trace."""
    for number, text in enumerate(lines, 1):
        try:
            line = json.loads(text)
            yield _message(line, first=number == 1)
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"line {number} is not part of a trace: {error}") from error


def _message(line: dict, first: bool) -> tuple[str, Any]:
    if first:
        if line.get("trace") != VERSION:
            raise ValueError(f"its version is {line.get('trace')!r}, and {VERSION} is read here")
        return "about", line
    if "add" in line:
        return "add", unpack(EngineCoreRequest, line["add"])
    if "abort" in line:
        return "abort", line["abort"]
    plan = unpack(SchedulerOutput, line["plan"])
    why = [tuple(reason) for reason in line.get("why", ())]
    return "step", (line["now"], plan, unpack(ModelRunnerOutput, line["result"]), why)


def pack(message: Any) -> dict:
    """A message as plain data, without the fields that have their default value."""
    packed = {}
    for name, default in _defaults(type(message)):
        value = getattr(message, name)
        if value is default or value == default:
            continue
        # A sampling parameter is called prompt_logprobs too, and is a number.
        if name in NESTED and not isinstance(value, int):
            is_many = isinstance(value, tuple)
            value = [p and pack(p) for p in value] if is_many else pack(value)
        packed[name] = value
    return packed


def unpack(kind: type, packed: dict) -> Any:
    """The message that `pack` made this of."""
    given = {}
    for name, value in packed.items():
        inner = NESTED.get(name)
        if inner is None or isinstance(value, int):
            given[name] = frozen(value)
        elif isinstance(value, list):
            given[name] = tuple(v and unpack(inner, v) for v in value)
        else:
            given[name] = unpack(inner, value)
    return kind(**given)


def frozen(value: Any) -> Any:
    """Lists as tuples, all the way down."""
    return tuple(frozen(v) for v in value) if isinstance(value, list) else value


def _defaults(kind: type) -> list[tuple[str, Any]]:
    """Field names of a message and what each is by default (MISSING: it has none)."""
    if issubclass(kind, tuple):
        return [(name, kind._field_defaults.get(name, MISSING)) for name in kind._fields]
    return [(f.name, f.default) for f in fields(kind)]
