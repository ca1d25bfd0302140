"""Drawings of the engine: each a plain structure first, rendered as text of 80 columns.

A `Picture` is labelled rows of cells. What a cell means is in its text, never in a colour alone;
`kind` is for renderers that have colours.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

WIDTH = 80

FREE, USED, NEW, LOST, PREFILL, DECODE, NOTHING = (
    "free", "used", "new", "lost", "prefill", "decode", "nothing",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cell:
    text: str
    kind: str = NOTHING


@dataclass(frozen=True, slots=True)
class Row:
    label: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Picture:
    """rows: the first may be a heading; `every`: a bar stands after each so many columns."""

    rows: tuple[Row, ...]
    caption: str = ""
    every: int = 0

    def text(self, width: int = WIDTH) -> str:
        return text(self, width)


def text(picture: Picture, width: int = WIDTH) -> str:
    """The picture in lines of at most `width` columns; what is wider goes on below."""
    label_width = max((len(row.label) for row in picture.rows), default=0)
    cell_width = max((len(c.text) for row in picture.rows for c in row.cells), default=1) + 1
    num_columns = max((len(row.cells) for row in picture.rows), default=0)
    room = width - label_width - 2
    per_band = max(1, room // cell_width)
    if picture.every:
        bars = room // (picture.every * cell_width + 2)
        per_band = max(1, bars) * picture.every
    lines = []
    for start in range(0, max(num_columns, 1), per_band):
        if start:
            lines.append("")
        for row in picture.rows:
            line = _line(row.cells[start : start + per_band], cell_width, picture.every)
            lines.append(f"{row.label:<{label_width}} {line}".rstrip())
    if picture.caption:
        lines.append(picture.caption)
    return "\n".join(lines)


def _line(cells: Sequence[Cell], cell_width: int, every: int) -> str:
    parts = []
    for index, cell in enumerate(cells, 1):
        parts.append(f"{cell.text:>{cell_width}}")
        if every and index % every == 0 and index < len(cells):
            parts.append(" |")
    return "".join(parts)


def cells(values: Iterable, kind: str = NOTHING) -> tuple[Cell, ...]:
    return tuple(Cell(str(value), kind) for value in values)


def block_pool(ref_cnt: Sequence[int], free_ids: Sequence[int], caption: str = "") -> Picture:
    """Every block but the null block: its readers, its place in the queue of free blocks (1: the
    next to go), and what cannot be: LOST (nobody reads it, and it is not free), BUSY (it is free,
    and somebody reads it), TWICE (it is free twice)."""
    ids = range(1, len(ref_cnt))
    places = [[i + 1 for i, free in enumerate(free_ids) if free == b] for b in ids]
    readers = [Cell(str(ref_cnt[b]), USED if ref_cnt[b] else FREE) for b in ids]
    queue = [Cell(str(p[0]), FREE) if p else Cell("-") for p in places]
    wrong = [
        Cell(_fault(ref_cnt[b], len(p)), LOST) if _fault(ref_cnt[b], len(p)) else Cell("")
        for b, p in zip(ids, places)
    ]
    rows = [Row("block", cells(ids)), Row("readers", tuple(readers)), Row("queue", tuple(queue))]
    if any(cell.text for cell in wrong):
        rows.append(Row("", tuple(wrong)))
    return Picture(tuple(rows), caption)


def _fault(num_readers: int, num_places: int) -> str:
    if num_places > 1:
        return "TWICE"
    if num_readers > 0 and num_places:
        return "BUSY"
    return "" if num_readers > 0 or num_places else "LOST"


def block_table(
    block_ids: Sequence[int], block_size: int, start: int = 0, num: int = 0, caption: str = ""
) -> Picture:
    """A request's positions, the blocks they live in, and their slots; `num` positions from
    `start` on are marked."""
    positions = range(len(block_ids) * block_size)
    blocks = [b if o == 0 else "" for b in block_ids for o in range(block_size)]
    slots = [b * block_size + o for b in block_ids for o in range(block_size)]
    marked = range(start, start + num)
    rows = [
        Row("position", cells(positions)),
        Row("block", cells(blocks, USED)),
        Row("slot", tuple(Cell(str(s), NEW if p in marked else USED)
                          for p, s in zip(positions, slots))),
    ]  # fmt: skip
    if num:
        rows.append(Row("wanted", cells("^" if p in marked else "" for p in positions)))
    return Picture(tuple(rows), caption, every=block_size)


def timeline(
    steps: Sequence[Sequence[tuple[str, int, bool]]],  # by step: (request, tokens, samples)
    caption: str = "",
) -> Picture:
    """Requests by step: how many tokens a step computed of each, and * where it gave one more."""
    requests = list(dict.fromkeys(request for step in steps for request, _, _ in step))
    rows = [Row("step", cells(range(1, len(steps) + 1)))]
    for request in requests:
        lane = []
        for step in steps:
            mine = [(n, samples) for who, n, samples in step if who == request]
            lane.append(_step_cell(*mine[0]) if mine else Cell("."))
        rows.append(Row(str(request), tuple(lane)))
    return Picture(tuple(rows), caption)


def _step_cell(num_tokens: int, samples: bool) -> Cell:
    return Cell(f"{num_tokens}{'*' if samples else ''}", DECODE if num_tokens == 1 else PREFILL)
