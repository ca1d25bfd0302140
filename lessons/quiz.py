"""Questions that answer back: each choice opens on why it is right, or why not."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from html import escape
from textwrap import dedent

import marimo as mo

from .svg import tag


def quiz(question: str, right: str, because: str, wrong: Mapping[str, str]) -> mo.Html:
    """A question that answers back: each choice opens on why it is right, or why not. wrong:
    choice -> why not."""
    answers = {right: ("tt-right", f"Yes. {because}")}
    answers |= {choice: ("tt-wrong", f"No. {why}") for choice, why in wrong.items()}
    name = f"quiz-{zlib.crc32(question.encode()):08x}"
    made = [
        tag("details", tag("summary", _inline(choice)), tag("p", _inline(why)), class_=kind,
            name=name)
        for choice, (kind, why) in sorted(answers.items(), key=lambda a: zlib.crc32(a[0].encode()))
    ]  # fmt: skip
    asked = tag("p", _inline(question))
    return mo.Html(tag("div", tag("div", asked, *made, class_="tt-quiz"), class_="tt-box"))


def quizzes(text: str) -> mo.Html:
    """Several quizzes, written as text. A line that begins with ? asks, + is the right choice, -
    a wrong one, each with its reason behind "=>"; an indented line goes on."""
    made: list[tuple[str, list[tuple[str, str]]]] = []
    for line in dedent(text).strip().replace("\n  ", " ").splitlines():
        mark, said = line[:1], line[1:].strip()
        if mark == "?":
            made.append((said, []))
        elif mark in ("+", "-") and made and "=>" in said:
            made[-1][1].append((mark, said))
        elif line.strip():
            raise ValueError(f"neither a question nor a choice with its reason: {line!r}")
    return mo.Html("".join(_quiz(question, choices).text for question, choices in made))


def _quiz(question: str, choices: Sequence[tuple[str, str]]) -> mo.Html:
    pairs = [(mark, *map(str.strip, said.split("=>"))) for mark, said in choices]
    right = [(choice, why) for mark, choice, why in pairs if mark == "+"]
    if len(right) != 1:
        raise ValueError(f"{question!r} has {len(right)} right choices; it should have one")
    wrong = {choice: why for mark, choice, why in pairs if mark == "-"}
    return quiz(question, *right[0], wrong)


def _inline(text: str) -> str:
    """Text with `code` in it."""
    parts = escape(text).split("`")
    return "".join(tag("code", p) if n % 2 else p for n, p in enumerate(parts))
