"""Swim lanes: a lane for each request, and what happens to it over time, in steps or in seconds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .draw import DECODE, FINISHED, PREEMPTED, PREFILL, WAITING, WIDTH

LETTERS = {WAITING: ".", PREFILL: "P", DECODE: "d", PREEMPTED: "x", FINISHED: "#"}


@dataclass(frozen=True, slots=True)
class Span:
    """From `start` up to and not with `end`, on the picture's axis. note: what a table says more
    ("48 tokens"); short ones are written into the span too."""

    start: float
    end: float
    kind: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Lane:
    label: str
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Lanes:
    """axis: what is counted along it. unit: the shortest stretch that is worth seeing, a step of
    1 say; it decides when the picture goes on below. now: a cursor stands there."""

    lanes: tuple[Lane, ...]
    axis: str = "step"
    unit: float = 1.0
    now: float | None = None
    title: str = ""
    caption: str = ""

    @property
    def end(self) -> float:
        return max((s.end for lane in self.lanes for s in lane.spans), default=0.0)

    @property
    def kinds(self) -> list[str]:
        """In the order of a request's life."""
        there = {span.kind for lane in self.lanes for span in lane.spans}
        return [kind for kind in LETTERS if kind in there]

    def text(self, width: int = WIDTH) -> str:
        """A letter for each unit; | is now."""
        labels = max((len(lane.label) for lane in self.lanes), default=0)
        room = max(width - labels - 2, 10)
        num_units = max(round(self.end / self.unit), 1)
        lines = []
        for start in range(0, num_units, room):
            lines += [f"{'':<{labels}}  {self._said(start * self.unit)}"]
            for lane in self.lanes:
                units = range(start, min(start + room, num_units))
                drawn = "".join(self._letter(lane, unit) for unit in units)
                lines.append(f"{lane.label:<{labels}}  {drawn}".rstrip())
        legend = "  ".join(f"{LETTERS[kind]} {kind}" for kind in self.kinds)
        return "\n".join(filter(None, [*lines, legend, self.caption]))

    def _letter(self, lane: Lane, unit: int) -> str:
        if self.now is not None and unit == round(self.now / self.unit):
            return "|"
        middle = (unit + 0.5) * self.unit
        return next((LETTERS[s.kind] for s in lane.spans if s.start <= middle < s.end), " ")

    def _said(self, place: float) -> str:
        return f"{self.axis} {place:g}"

    def twin(self) -> tuple[list[str], list[list[str]]]:
        rows = [[lane.label, f"{s.start:g} to {s.end:g}", s.kind, s.note]
                for lane in self.lanes for s in lane.spans]  # fmt: skip
        return ["request", self.axis, "what", ""], rows

    def svg(self, width: float) -> str:
        return _svg(self, width)


def lanes(
    rows: Sequence[tuple[str, Sequence[tuple]]],  # label, and (start, end, kind, note) of each span
    axis: str = "step",
    unit: float = 1.0,
    now: float | None = None,
    title: str = "",
    caption: str = "",
) -> Lanes:
    """Lanes from plain tuples."""
    made = tuple(Lane(label, tuple(Span(*span) for span in spans)) for label, spans in rows)
    return Lanes(made, axis, unit, now, title, caption)


def _svg(picture: Lanes, width: float) -> str:
    from .svg import SANS_WIDTH, Sheet

    names = [picture.axis, *(lane.label for lane in picture.lanes)]
    labels = max(map(len, names)) * SANS_WIDTH + 12
    room = width - labels - 2
    num_units = max(picture.end / picture.unit, 1)
    num_bands = math.ceil(num_units / (room // 11))  # 11 pixels: a unit that can be seen
    per_band = math.ceil(num_units / num_bands)
    pixels = min(room / per_band, 40) / picture.unit
    sheet, top, start = Sheet(width), 0.0, 0.0
    while start < picture.end or start == 0:
        end = start + per_band * picture.unit
        top = _draw_band(sheet, picture, labels, pixels, start, end, top) + 12
        start = end
    sheet.legend({kind: kind for kind in picture.kinds}, top)
    return sheet.svg(picture.title or picture.caption, picture.text())


def _draw_band(
    sheet, picture: Lanes, left: float, pixels: float, start: float, end: float, top: float
) -> float:
    """One band of the axis, from start to end; returns where it ends below."""
    from .svg import MONO_WIDTH

    def x(place: float) -> float:
        return left + (min(max(place, start), end) - start) * pixels

    height, first = 24.0, top + 20
    _draw_axis(sheet, picture, x, start, min(end, picture.end), top)
    for number, lane in enumerate(picture.lanes):
        y = first + number * height
        sheet.text(0, y + 16, lane.label, role="muted")
        sheet.line(left, y + height - 1.5, x(min(end, picture.end)), y + height - 1.5)
        for span in lane.spans:
            if span.end <= start or span.start >= end:
                continue
            wide = x(span.end) - x(span.start)
            sheet.box(x(span.start), y + 3, wide, height - 7, span.kind)
            if span.note and len(span.note) * MONO_WIDTH < wide - 2:
                role = "paper" if span.kind == FINISHED else "ink"
                sheet.text(x(span.start) + wide / 2, y + 16, span.note, anchor="middle", mono=True,
                           size=12, role=role, halo=span.kind != FINISHED)  # fmt: skip
    bottom = first + len(picture.lanes) * height
    if picture.now is not None and start <= picture.now <= end:
        sheet.line(x(picture.now), top + 16, x(picture.now), bottom, "ink", 2)
    return bottom


def _draw_axis(sheet, picture: Lanes, x, start: float, end: float, top: float) -> None:
    """Round numbers along the top, far enough from one another to be read."""
    num_units = (end - start) / picture.unit
    enough = 44 / max((x(end) - x(start)) / max(num_units, 1), 1e-9)
    every = next((e for e in (1, 2, 5, 10, 20, 50, 100, 200, 500) if e >= enough), 1000)
    every *= picture.unit
    place = -(-start // every) * every
    while place < end and x(place) < sheet.width - 24:
        sheet.text(x(place), top + 12, f"{place:g}", role="muted", size=12)
        sheet.line(x(place), top + 15, x(place), top + 19, "muted")
        place += every
    if start == 0:
        sheet.text(0, top + 12, picture.axis, role="muted", size=12)
