"""A memory drawn slot by slot: whose each slot is, and which slots hold nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .draw import DECODE, FREE, INSIDE, OUTSIDE, PREFILL, RESERVED, WIDTH

LETTERS = {FREE: ".", OUTSIDE: "x", INSIDE: "-"}
WORDS = {
    PREFILL: "prompt",
    DECODE: "answer",
    RESERVED: "reserved: a token will come",
    INSIDE: "inside: none ever comes",
    OUTSIDE: "outside: free, in a hole too small",
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
        return _svg(self, width)


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


def _svg(memory: MemoryMap, width: float) -> str:
    from .svg import Sheet

    per_line = 64 if width > 500 else 32
    pitch, height = (width - 1) / per_line, 17.0
    sheet = Sheet(width)
    for run in memory.runs:
        named = False
        for start, length in _pieces(run, per_line):
            line, column = divmod(start, per_line)
            left, top = column * pitch, line * (height + 3)
            sheet.box(left, top, length * pitch, height, run.kind, radius=1)
            if run.owner and not named and length * pitch >= 10:
                sheet.text(left + 3, top + 13, run.owner, mono=True, bold=True, size=12, halo=True)
                named = True
    if memory.block_size:
        for place in range(memory.block_size, memory.num_slots, memory.block_size):
            line, column = divmod(place, per_line)
            if column:
                top = line * (height + 3)
                sheet.line(column * pitch, top, column * pitch, top + height, "muted", 1)
    there = {run.kind for run in memory.runs}
    names = {kind: word for kind, word in WORDS.items() if kind in there}
    num_lines = -(-memory.num_slots // per_line)
    sheet.legend(names, num_lines * (height + 3) + 8)
    return sheet.svg(memory.title, memory.text())


def _pieces(run: Run, per_line: int) -> list[tuple[int, int]]:
    """The run cut where lines end: (start, length) of each piece."""
    pieces, start, end = [], run.start, run.start + run.length
    while start < end:
        length = min(end, (start // per_line + 1) * per_line) - start
        pieces.append((start, length))
        start += length
    return pieces
