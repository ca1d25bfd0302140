"""What the learner reads: plain lines of at most 80 columns, with or without a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from lessons.draw import Picture

from .manifest import LabInfo
from .runner import Outcome

WIDTH = 80
STATUS = {"passed": "ok", "failed": "NOT YET", "unwritten": "further", "left": "-"}
MAX_LINES = 12  # of a picture's or a print's text


def wrapped(text: str, indent: str = "  ") -> str:
    """Paragraphs filled to the width; lines that are numbered or marked stay lines."""
    lines = [
        textwrap.fill(line, WIDTH, initial_indent=indent, subsequent_indent=indent)
        for line in text.splitlines()
    ]
    return "\n".join(lines)


def line_of(outcome: Outcome) -> str:
    """One line a test: number, requirement in words, what came of it."""
    title = f"{outcome.number:>3}  {outcome.title}"
    first, *rest = textwrap.wrap(title, WIDTH - 10, subsequent_indent=" " * 5)
    lines = [f"{first:<{WIDTH - 9}} {STATUS[outcome.status]}", *rest]
    return "\n".join(lines)


def failure(outcome: Outcome, hint: tuple[int, int, str] | None, verbose: bool = False) -> str:
    """Everything that a failing test has to say. hint: (which, of how many, text)."""
    parts = [wrapped(f"{outcome.number}. {outcome.title}", ""), wrapped(outcome.says)]
    if outcome.expected is not None or outcome.got is not None:
        parts.append(compared(outcome.expected, outcome.got))
    if isinstance(outcome.picture, Picture):
        parts.append(textwrap.indent(outcome.picture.text(WIDTH - 4), "    "))
    if outcome.trace:
        file, line, name = outcome.trace[-1]
        parts.append(f"  at {file}, line {line}, in {name}")
    if verbose and len(outcome.trace) > 1:
        parts.append("\n".join(f"    {f}:{n} in {name}" for f, n, name in outcome.trace))
    if outcome.printed.strip():
        shown = outcome.printed.strip().splitlines()[-MAX_LINES:]
        lines = "\n".join(f"    {printable(line)[: WIDTH - 4]}" for line in shown)
        parts.append("  your code printed:\n" + lines)
    if hint:
        number, count, text = hint
        parts.append(wrapped(f"Hint {number} of {count}: {text}"))
    return "\n\n".join(parts)


def compared(expected: Any, got: Any) -> str:
    """Expected over got, and the first place where two sequences part."""
    lines = [labelled("expected", expected), labelled("yours", got)]
    if isinstance(expected, list | tuple | str) and isinstance(got, type(expected)):
        place = next(
            (i for i, (e, g) in enumerate(zip(expected, got)) if e != g),
            min(len(expected), len(got)),
        )
        if place and len(expected) > 4:
            what = "letter" if isinstance(expected, str) else "entry"
            lines.append(f"  {'':9} they part at {what} {place} (counted from 0)")
    return "\n".join(lines)


def labelled(label: str, value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    text = printable(text)
    if len(text) > 600:
        text = text[:600] + " ..."
    return textwrap.fill(text, WIDTH, initial_indent=f"  {label:<9} ", subsequent_indent=" " * 12)


def printable(text: str) -> str:
    """Without what could move the cursor or hide text."""
    return "".join(c if c.isprintable() else " " for c in text)


def summary(info: LabInfo, outcomes: Sequence[Outcome]) -> str:
    """The line under a lab whose core passes."""
    more = [o for o in outcomes if o.further]
    text = f"{info.slug}: all {len(outcomes) - len(more)} tests pass."
    num_passed, tests = sum(o.passed for o in more), counted(len(more), "test")
    if more and num_passed == len(more):
        text += f" Of further work too: {tests}."
    elif any(o.status == "failed" for o in more):
        text += f" Of further work so far: {num_passed} of {tests}."
    elif more:
        text += f" There is further work, if you like: {tests}."
    return text


def counted(number: int, name: str) -> str:
    return f"{number} {name}{'s' * (number != 1)}"
