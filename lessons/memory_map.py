"""A memory drawn slot by slot, or several under one another: whose each slot is, and which slots
hold nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .draw import DECODE, FREE, INSIDE, OUTSIDE, PREFILL, RESERVED, WIDTH

if TYPE_CHECKING:
    from .svg import Sheet

BOX, LINE = 13.0, 15.0  # pixels: how high a slot is drawn, and a line of them
LETTERS = {FREE: ".", OUTSIDE: "x", INSIDE: "-"}
WORDS = {
    PREFILL: "prompt",
    DECODE: "answer",
    RESERVED: "reserved: a token will come",
    INSIDE: "internal: none ever comes",
    OUTSIDE: "external: free, in a hole too small",
    FREE: "free",
}


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring slots of one kind and one owner."""

    start: int
    length: int
    kind: str
    owner: str = ""


@dataclass(frozen=True, slots=True)
class MemoryMap:
    """runs: in order, next to each other, from slot 0 to the end. block_size: a thin line stands
    between blocks; 0 for a memory that has none."""

    runs: tuple[Run, ...]
    title: str = ""
    caption: str = ""
    block_size: int = 0

    @property
    def num_slots(self) -> int:
        return sum(run.length for run in self.runs)

    def text(self, width: int = WIDTH) -> str:
        """A letter for each slot: the owner's, a capital where a token is, small where one will
        come; - where none ever does, . free, x free in a hole too small."""
        letters = "".join(_letter(run) * run.length for run in self.runs)
        per_line = min(64, width - 8)
        lines = [f"{start:>6}  {letters[start : start + per_line]}"
                 for start in range(0, len(letters), per_line)]  # fmt: skip
        return "\n".join([*lines, self.caption] if self.caption else lines)

    def twin(self) -> tuple[list[str], list[list[str]]]:
        rows = [[f"{run.start} to {run.start + run.length - 1}", run.owner or "-",
                 WORDS.get(run.kind, run.kind), str(run.length)] for run in self.runs]  # fmt: skip
        return ["slots", "whose", "what", "how many"], rows

    def svg(self, width: float) -> str:
        return _svg((self,), width, self.title, self.text())


@dataclass(frozen=True, slots=True)
class MemoryMaps:
    """Several memories in one figure, each under its own title, with one key to all."""

    maps: tuple[MemoryMap, ...]
    title: str = ""

    @property
    def caption(self) -> str:
        return " ".join(memory.caption for memory in self.maps)

    def text(self, width: int = WIDTH) -> str:
        return "\n\n".join(f"{memory.title}\n{memory.text(width)}" for memory in self.maps)

    def twin(self) -> tuple[list[str], list[list[str]]]:
        heading, _ = self.maps[0].twin()
        rows = [[memory.title, *row] for memory in self.maps for row in memory.twin()[1]]
        return ["memory", *heading], rows

    def svg(self, width: float) -> str:
        return _svg(self.maps, width, self.title, self.text())


def _letter(run: Run) -> str:
    if run.kind in LETTERS:
        return LETTERS[run.kind]
    owner = run.owner[:1] or "?"
    return owner.lower() if run.kind == RESERVED else owner.upper()


def runs_of(slots: Sequence[tuple[str, str]]) -> tuple[Run, ...]:
    """(kind, owner) of each slot, as runs."""
    runs: list[Run] = []
    for place, (kind, owner) in enumerate(slots):
        if runs and (runs[-1].kind, runs[-1].owner) == (kind, owner):
            runs[-1] = Run(runs[-1].start, runs[-1].length + 1, kind, owner)
        else:
            runs.append(Run(place, 1, kind, owner))
    return tuple(runs)


def _svg(maps: Sequence[MemoryMap], width: float, title: str, description: str) -> str:
    from .svg import Sheet

    sheet, top = Sheet(width), 0.0
    for memory in maps:
        if len(maps) > 1:
            sheet.text(0, top + 13, memory.title, bold=True)
            top += 20
        top = _drawn(sheet, memory, top) + 8
    there = {run.kind for memory in maps for run in memory.runs}
    sheet.legend({kind: word for kind, word in WORDS.items() if kind in there}, top)
    return sheet.svg(title, description)


def _drawn(sheet: Sheet, memory: MemoryMap, top: float) -> float:
    """Draw a memory from `top` on. Where it ends."""
    per_line = 64 if sheet.width > 500 else 32
    pitch = (sheet.width - 1) / per_line
    for run in memory.runs:
        is_named = not run.owner
        for start, length in _pieces(run, per_line):
            line, column = divmod(start, per_line)
            left, above = column * pitch, top + line * LINE
            sheet.box(left, above, length * pitch, BOX, run.kind, radius=1)
            if not is_named and length * pitch >= 10:
                sheet.text(left + 3, above + 11, run.owner, mono=True, bold=True, size=12,
                           halo=True)  # fmt: skip
                is_named = True
    if memory.block_size:
        for place in range(memory.block_size, memory.num_slots, memory.block_size):
            line, column = divmod(place, per_line)
            if column:
                left, above = column * pitch, top + line * LINE
                sheet.line(left, above, left, above + BOX, "muted", 1)
    return top + -(-memory.num_slots // per_line) * LINE


def _pieces(run: Run, per_line: int) -> list[tuple[int, int]]:
    """The run cut where lines end: (start, length) of each piece."""
    pieces, start, end = [], run.start, run.start + run.length
    while start < end:
        length = min(end, (start // per_line + 1) * per_line) - start
        pieces.append((start, length))
        start += length
    return pieces
