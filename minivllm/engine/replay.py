"""Run a recorded trace through a scheduler again: the same requests and results must give the same
plans, or the scheduler has changed."""

from __future__ import annotations

from collections.abc import Iterable

from ..metrics.trace import read_trace
from ..request import Request
from ..scheduler.scheduler import Scheduler


def replay(lines: Iterable[str], scheduler: Scheduler) -> int:
    """How many steps of the trace the scheduler planned alike. It must be new, and made as the
    one that was recorded. Raises ValueError, naming the step and the first field that differs."""
    num_steps = 0
    for kind, message in read_trace(lines):
        if kind == "add":
            scheduler.add_request(Request(message))
        elif kind == "abort":
            scheduler.abort(message)
        elif kind == "step":
            now, recorded, result, _ = message
            plan = scheduler.schedule(now)
            for name in recorded.__dataclass_fields__:
                was, is_now = getattr(recorded, name), getattr(plan, name)
                if was != is_now:
                    raise ValueError(f"step {recorded.step}: {name} was {was} and is {is_now}")
            scheduler.update_from_output(plan, result)
            num_steps += 1
    return num_steps
