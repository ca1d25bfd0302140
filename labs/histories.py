"""A random history that fails, made as short as it gets, and told as a story."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

BUDGET_S = 1.5


def shortest(history: Sequence[Any], fails: Callable[[Sequence[Any]], bool]) -> list[Any]:
    """Leave steps out, many at once, then one by one, as long as the rest still fails. Stops when
    no single step can go, or when time is up; what is returned fails."""
    history, end = list(history), time.monotonic() + BUDGET_S
    size = len(history) // 2
    while size:
        start = len(history) - size
        while start >= 0 and time.monotonic() < end:
            shorter = history[:start] + history[start + size :]
            if fails(shorter):
                history = shorter
            start = min(start, len(history)) - size
        size = size // 2 if size > 1 or time.monotonic() >= end else 0
    return history


def story(steps: Sequence[str], ending: str) -> str:
    """Numbered lines, and what came of it."""
    lines = [f"{number}. {step}" for number, step in enumerate(steps, 1)]
    return "\n".join([*lines, f"=> {ending}"])
