"""Runs a lab's numbered tests, one after the other, and says what came of each.

A test is a function `test_3_takes_nothing_when_short(lab)` in the lab's test file. Each gets an
engine of its own, in a process of its own; what happens there costs that test and no other.
"""

from __future__ import annotations

import importlib.util
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from .children import Child, Children
from .compose import Composed
from .judge import Clock, Gone, Lab, Raised, TimeUp, Wrong, connect, connect_here
from .manifest import LabInfo

GRACE_S = 3.0  # for the judge's own work, beyond the time of a test
MAX_SAYS = 4_000  # characters

TEST_NAME = re.compile(r"test_(\d+)_(\w+)")


@dataclass
class Outcome:
    """What came of one test. Texts are for the learner; nothing in them is trusted."""

    test: str
    status: str  # passed | failed | unwritten (a further hole) | left (not run)
    points: int = 1
    further: tuple[str, ...] = ()  # the further holes that it is about; none: it is of the core
    says: str = ""  # one or two sentences
    expected: Any = None
    got: Any = None
    picture: Any = None
    trace: list[tuple[str, int, str]] = field(default_factory=list)  # the learner's lines
    printed: str = ""
    seconds: float = 0.0
    is_starter: bool = False  # it failed because a hole is not written yet
    is_endless: bool = False  # it was stopped: a hint about its contract would lead astray
    drew: bool = False  # another seed may give another outcome

    @property
    def wants_hint(self) -> bool:
        return not (self.is_starter or self.is_endless)

    @property
    def number(self) -> int:
        return int(TEST_NAME.fullmatch(self.test)[1])

    @property
    def title(self) -> str:
        return TEST_NAME.fullmatch(self.test)[2].replace("_", " ")

    @property
    def passed(self) -> bool:
        return self.status == "passed"


def further(*holes: str) -> Callable:
    """Marks a test that needs these further holes: until they are written it is not run."""

    def mark(test: Callable) -> Callable:
        test.further = holes
        return test

    return mark


def load_tests(lab: LabInfo) -> list[Callable]:
    """The lab's tests by number. Raises ValueError if there are none, or numbers are missing."""
    spec = importlib.util.spec_from_file_location(f"labs_tests_{lab.folder.name}", lab.test_file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = {int(m[1]): f for n, f in vars(module).items() if (m := TEST_NAME.fullmatch(n))}
    if not found or sorted(found) != list(range(1, len(found) + 1)):
        raise ValueError(f"{lab.test_file.name}: its tests are {sorted(found)}, not 1, 2, 3, ...")
    return [found[number] for number in sorted(found)]


@dataclass
class Judge:
    """Where tests find the engine that they judge."""

    composed: Composed | None  # None: the reference, in this process
    core: Composed | None = None  # what tests of the core run on, if that is another
    children: Children | None = None  # None: in this process
    around: Callable[[], Any] | None = None  # a context for each question, in this process
    unwritten: frozenset[str] = frozenset()  # further holes that are still the starter's

    def engine(self, test: Callable) -> Composed | None:
        return self.composed if hasattr(test, "further") else self.core or self.composed

    @contextmanager
    def connected(self, lab: Lab, engine: Composed | None) -> Iterator[Child | None]:
        if self.children is None or engine is None:
            connect_here(lab, engine.package if engine else "minivllm", self.around)
            yield None
            return
        child = Child(self.children, engine)
        try:
            connect(lab, child.socket.fileno(), child.pid)
            yield child
        finally:
            child.end()


def run_lab(
    info: LabInfo,
    judge: Judge,
    seed: int,
    *,
    stop_at_first: bool = False,
    tests: list[Callable] | None = None,
) -> Iterator[Outcome]:
    """Each test's outcome, in order. After the first failure the rest is "left" if so asked; a
    failure of further work leaves only further work."""
    clock, failed = Clock(), set()
    for test in tests or load_tests(info):
        holes = getattr(test, "further", ())
        outcome = Outcome(test.__name__, "left", info.points.get(test.__name__, 1), holes)
        missing = judge.unwritten & set(holes)
        if missing:
            outcome.status = "unwritten"
            outcome.says = f"further: {', '.join(sorted(missing))} is not written yet"
        elif not (stop_at_first and ("core" in failed or (holes and failed))):
            run_test(test, judge, Lab(seed, test.__name__), clock, outcome)
            if not outcome.passed:
                failed.add("further" if holes else "core")
        yield outcome


def run_test(test: Callable, judge: Judge, lab: Lab, clock: Clock, outcome: Outcome) -> None:
    """Run one test and fill its outcome in."""
    started = time.monotonic()
    lab.clock = clock
    clock.start_test()
    outcome.status = "failed"
    engine = judge.engine(test)
    with judge.connected(lab, engine) as child:
        try:
            with stopped_after(clock.latest_end - started + GRACE_S, child is not None):
                test(lab)
            outcome.status = "passed"
        except Wrong as wrong:
            outcome.says, outcome.picture = wrong.says, wrong.picture
            outcome.expected, outcome.got = wrong.expected, wrong.got
            if isinstance(wrong.__cause__, Raised):
                outcome.trace = places(wrong.__cause__, engine)
        except Raised as error:
            say_raised(outcome, error, engine)
        except TimeUp as late:
            clock.num_time_ups += 1
            outcome.says = f"Your code did not answer within {late}. Is there a loop without end?"
            outcome.is_endless = True
        except EOFError:
            outcome.printed = child.printed()
            outcome.says = gone(child.end())
        except Gone as error:
            outcome.says = f"The judge could not use what your code gave it: {error}."
        except Exception as error:
            outcome.says = (
                f"Your code returned something that the test could not work with "
                f"({type(error).__name__}: {str(error)[:200]}). Look at the types that the "
                f"docstring promises."
            )
        if child is not None and child.status is None:
            outcome.printed = child.printed()
    outcome.says = shortened(outcome.says)
    outcome.drew = lab.drew
    outcome.seconds = time.monotonic() - started


@contextmanager
def stopped_after(seconds: float, is_apart: bool) -> Iterator[None]:
    """Stop the test itself, by Gone, if what the learner's code returned keeps the judge busy: a
    list that is compared in a time that grows with its square, say. Only in the main thread of a
    system with alarms, and only where the learner's code runs apart."""
    is_main = threading.current_thread() is threading.main_thread()
    if not (is_apart and is_main and hasattr(signal, "setitimer")):
        yield
        return

    def stop(*_: Any) -> None:
        raise Gone("working with it took the judge too long")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def shortened(text: str) -> str:
    """Lines of printable letters, not too many: parts of it may be the learner's."""
    kept = text if len(text) <= MAX_SAYS else text[:MAX_SAYS] + " ..."
    return "".join(c if c.isprintable() or c == "\n" else " " for c in kept)


def say_raised(outcome: Outcome, error: Raised, composed: Composed | None) -> None:
    """What an exception of the learner's code means, and at which of their lines it rose."""
    outcome.trace = places(error, composed)
    if error.kind == "NotImplementedError" and error.text.startswith("lab "):
        outcome.says = f"{error.text.rpartition(': ')[2]} is not written yet."
        outcome.is_starter = True
    elif "MemoryError" in error.bases:
        outcome.says = "Your code used more memory than the 1 GiB that a lab has."
    elif "SystemExit" in error.bases:
        outcome.says = "Your code called exit. A lab returns values and leaves ending to others."
    elif error.kind == "StepLimit":
        outcome.says = f"Your code ran {error.text} and more. Is there a loop without end?"
        outcome.is_endless = True
    elif "RecursionError" in error.bases:
        outcome.says = "Your code called itself too deeply (RecursionError)."
    elif "OSError" in error.bases and "File too large" in error.text:
        outcome.says = "Your code printed or wrote more than the 1 MiB that a lab may."
    else:
        outcome.says = f"Your code raised {error.kind}: {error.text}"


def places(error: Raised, composed: Composed | None) -> list[tuple[str, int, str]]:
    """The traceback's lines that a person wrote or may read: file, line, function."""
    where = composed.where if composed else lambda file, line: (file, line)
    found = [(where(str(file), line), str(name)) for file, line, name in error.frames]
    return [(*place, name) for place, name in found if place]


def gone(status: int) -> str:
    """What to say of a process that ended in the middle of a question."""
    if status >= 0:
        return (
            f"Your code ended its process with status {status} (os._exit?), or closed the judge's "
            f"channel. A lab returns values and leaves ending to others."
        )
    if status == -getattr(signal, "SIGKILL", 9):
        return "Your code closed the judge's channel, or its process was killed."
    names = {-s.value: s.name for s in signal.Signals}
    return f"Your code's process crashed ({names.get(status, status)})."
