"""Quantities side by side: a bar each, of one part or of several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .draw import USED, WIDTH

LETTERS = {"prefill": "P", "decode": "d", "reserved": "r", "inside": "-", "outside": "x",
           "free": ".", "waiting": ".", "preempted": "!", "finished": "#"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Part:
    value: float
    kind: str = USED
    name: str = ""  # what it is, where a bar has several parts


@dataclass(frozen=True, slots=True)
class Bar:
    label: str
    parts: tuple[Part, ...]

    @property
    def value(self) -> float:
        return sum(part.value for part in self.parts)


@dataclass(frozen=True, slots=True)
class Bars:
    """unit: written behind each number. digits: after its point."""

    bars: tuple[Bar, ...]
    unit: str = ""
    title: str = ""
    caption: str = ""
    digits: int = 1

    def said(self, value: float) -> str:
        return f"{value:,.{self.digits}f} {self.unit}".strip()

    def scale(self, room: float) -> float:
        """Of `room` for the longest bar, how much stands for 1."""
        return room / (max((bar.value for bar in self.bars), default=0) or 1)

    def text(self, width: int = WIDTH) -> str:
        labels = max(len(bar.label) for bar in self.bars)
        numbers = max(len(self.said(bar.value)) for bar in self.bars)
        scale = self.scale(width - labels - numbers - 4)
        lines = []
        for bar in self.bars:
            drawn, end = "", 0.0
            for part in bar.parts:
                end += part.value * scale
                drawn += LETTERS.get(part.kind, "=") * (round(end) - len(drawn))
            lines.append(f"{bar.label:<{labels}}  {drawn} {self.said(bar.value)}")
        return "\n".join([*lines, *self._legend(), *filter(None, [self.caption])])

    def _legend(self) -> list[str]:
        names = {LETTERS.get(p.kind, "="): p.name for b in self.bars for p in b.parts if p.name}
        return ["  ".join(f"{letter} {name}" for letter, name in names.items())] if names else []

    def twin(self) -> tuple[list[str], list[list[str]]]:
        if not any(part.name for bar in self.bars for part in bar.parts):
            return ["what", "how much"], [[b.label, self.said(b.value)] for b in self.bars]
        names = list(dict.fromkeys(p.name for b in self.bars for p in b.parts))
        rows = []
        for bar in self.bars:
            found = {part.name: part.value for part in bar.parts}
            values = [self.said(found[n]) if n in found else "-" for n in names]
            rows.append([bar.label, *values, self.said(bar.value)])
        return ["what", *names, "in all"], rows

    def svg(self, width: float) -> str:
        return _svg(self, width)


def bars(
    values: Sequence[tuple[str, float] | tuple[str, float, str]],  # label, value, kind
    unit: str = "",
    title: str = "",
    caption: str = "",
    digits: int = 1,
) -> Bars:
    """Bars of one part each."""
    made = tuple(Bar(label, (Part(value, *kind),)) for label, value, *kind in values)
    return Bars(made, unit, title, caption, digits)


def _svg(picture: Bars, width: float) -> str:
    from .svg import MONO_WIDTH, Sheet

    sheet, top, height = Sheet(width), 0.0, 24.0
    numbers = max(len(picture.said(bar.value)) for bar in picture.bars) * MONO_WIDTH + 8
    scale = picture.scale(width - numbers)
    for bar in picture.bars:
        sheet.text(0, top + 13, bar.label)
        left = 0.0
        for part in bar.parts:
            sheet.box(left, top + 19, part.value * scale, height, part.kind)
            left += part.value * scale
        sheet.text(left + 6, top + 36, picture.said(bar.value), mono=True)
        top += height + 28
    sheet.legend({p.kind: p.name for b in picture.bars for p in b.parts if p.name}, top)
    return sheet.svg(picture.title or picture.caption, picture.text())
