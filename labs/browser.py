"""Checks a lab inside this very process, from source texts: for a page in the browser, where there
is no second process. The standard library only. What stops an endless loop is a count of steps.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from .compose import CORE_PACKAGE, PACKAGE, Answer, compose, compose_core
from .manifest import all_labs, find_lab
from .runner import Judge, Outcome, run_lab

STEP_LIMIT = 2_000_000


class StepLimit(BaseException):
    """One question took more steps than it may."""


def check(
    slug: str, sources: Mapping[str, str], seed: int = 0, step_limit: int = STEP_LIMIT
) -> list[Outcome]:
    """Outcomes up to the first test that fails. sources: the lab's files of answers by the path
    within the engine ("kvcache/block_pool.py"). Raises ValueError if they cannot be composed."""
    info = find_lab(slug, all_labs())
    answers, unwritten = {}, set()
    for file in info.files:
        holes = info.holes_in(file)
        done = info.written(sources[file], file, file)
        late = {h.name for h in holes if h.further and h.name not in done}
        unwritten |= late
        names = tuple(h.name for h in holes if h.name not in late)
        answers[file] = [Answer(sources[file], file, names)]
    with tempfile.TemporaryDirectory() as folder, importable(Path(folder).resolve()) as root:
        composed = compose(root, answers)
        core = compose_core(info, root, answers)
        judge = Judge(composed, core, around=limit(step_limit), unwritten=frozenset(unwritten))
        return list(run_lab(info, judge, seed, stop_at_first=True))


@contextmanager
def importable(root: Path) -> Iterator[Path]:
    """The composed package can be imported from the folder; nothing of it stays loaded."""
    sys.path.insert(0, str(root))
    try:
        yield root
    finally:
        sys.path.remove(str(root))
        forget(PACKAGE, CORE_PACKAGE)


def forget(*packages: str) -> None:
    for name in [n for n in sys.modules if n.partition(".")[0] in packages]:
        del sys.modules[name]


def limit(num_steps: int) -> Callable[[], AbstractContextManager[Any]]:
    """A context that counts the steps of Python's machine: the one too many raises StepLimit, once.
    Code that catches even that, in a loop, is stopped by closing the page."""

    @contextmanager
    def counted() -> Iterator[None]:
        left = num_steps

        def count(frame: Any, event: str, arg: Any) -> Any:
            nonlocal left
            frame.f_trace_opcodes = True  # a loop on one line is not a new line each time
            left -= 1
            if left < 0:
                raise StepLimit(f"{num_steps:,} steps")
            return count

        before = sys.gettrace()
        sys.settrace(count)
        try:
            yield
        finally:
            sys.settrace(before)

    return counted
