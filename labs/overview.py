"""The map of the labs: parts, what is done, what is next, and what to type."""

from __future__ import annotations

from collections.abc import Iterator

from .learner import Learner
from .manifest import LabInfo
from .report import counted, wrapped

MARKS = {"passed": "[x]", "under way": "[~]", "skipped": "[-]", "open": "[ ]"}
BAR = 20  # columns


def next_lab(learner: Learner) -> LabInfo | None:
    """The lab under way, or else the first that is neither passed nor skipped. Lab 00 shows how
    labs work: whoever has passed another knows."""
    todo = [lab for lab in learner.labs if state(learner, lab) in ("under way", "open")]
    if any(learner.progress[lab.slug].passed for lab in learner.labs):
        todo = [lab for lab in todo if lab.number or learner.has_started(lab)] or todo
    under_way = [lab for lab in todo if state(learner, lab) == "under way"]
    return (under_way or todo or [None])[0]


def state(learner: Learner, info: LabInfo) -> str:
    """One of MARKS."""
    entry = learner.progress[info.slug]
    if entry.passed:
        return "passed"
    if entry.skipped:
        return "skipped"
    return "under way" if learner.has_started(info) else "open"


def said(learner: Learner, info: LabInfo, upcoming: LabInfo | None) -> str:
    """A lab's state in words."""
    entry, now = learner.progress[info.slug], state(learner, info)
    if now == "passed":
        num = len(entry.further)
        return f"passed, and {counted(num, 'further function')}" if num else "passed"
    if now == "under way" and entry.num_passing:
        return f"under way, {entry.num_passing} test{'s' * (entry.num_passing != 1)} pass"
    if now == "open":
        return "<- next" if info is upcoming else ""
    return now


def lines(learner: Learner) -> Iterator[tuple[str, str]]:
    """The map, line by line: text, and which kind of line it is."""
    upcoming, part = next_lab(learner), ""
    yield "Token by Token: the labs", "title"
    yield "Each lab is a few functions of the engine, for you to write.", ""
    for info in learner.labs:
        if info.part != part:
            part = info.part
            yield f"\n{part}", "part"
        now = state(learner, info)
        line = (f"  {MARKS[now]} {info.number:02}  {info.slug:<24}{info.minutes:>4} min   "
                f"{said(learner, info, upcoming)}")  # fmt: skip
        kind = "next" if info is upcoming else {"passed": "passed", "skipped": "quiet"}.get(now, "")
        yield line.rstrip(), kind
    yield "", ""
    yield so_far(learner), ""
    if not any(learner.has_started(lab) or learner.progress[lab.slug].passed
               for lab in learner.labs):  # fmt: skip
        yield "", ""
        yield wrapped(
            "New here? The first lab takes five minutes and shows how labs work: a command "
            "writes a file with an empty function, you fill it in, a command checks it.", "",
        ), ""  # fmt: skip
    yield "\nType next:\n", ""
    yield from commands(learner, upcoming)


def so_far(learner: Learner) -> str:
    labs = learner.labs
    done = [lab for lab in labs if state(learner, lab) == "passed"]
    filled = BAR * len(done) // max(len(labs), 1)
    left = sum(lab.minutes for lab in labs if lab not in done)
    bar = "#" * filled + "." * (BAR - filled)
    text = f"[{bar}]  {len(done)} of {len(labs)} passed"
    return f"{text}, about {left} minutes to go" if left else text


def commands(learner: Learner, upcoming: LabInfo | None) -> Iterator[tuple[str, str]]:
    if upcoming is None:
        yield "  python -m labs mine chat", "command"
        yield "      your whole engine, talking", ""
    elif learner.has_started(upcoming):
        yield f"  python -m labs check {upcoming.slug}", "command"
    else:
        yield f"  python -m labs start {upcoming.slug}", "command"
