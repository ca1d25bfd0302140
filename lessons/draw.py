"""Drawings of the engine: each a plain structure, rendered as text of 80 columns and as SVG.

Here are grids: a `Picture` is labelled rows of cells. What a cell means is in its text, never in a
colour alone; `kind` is for renderers that have colours. The other drawings have files of their
own: `memory_map.py` (a memory and whose it is), `lanes.py` (what happens to each request over
time), `bars.py` (quantities side by side). Each has `text(width)`, `svg(width)`, and `twin()`,
the same facts as a table; `svg.figure` shows the last two together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

WIDTH = 80

FREE, USED, NEW, LOST, PREFILL, DECODE, NOTHING = (
    "free", "used", "new", "lost", "prefill", "decode", "nothing",
)  # fmt: skip
WAITING, PREEMPTED, FINISHED = "waiting", "preempted", "finished"  # of a request
# Memory without a token: promised to one that will come, or to one that never will, or free in
# holes that are too small.
RESERVED, INSIDE, OUTSIDE = "reserved", "inside", "outside"
TOKENLESS = (RESERVED, INSIDE, OUTSIDE, FREE)
SAID = {NEW, PREFILL, DECODE, PREEMPTED}  # kinds that a table of the same facts has to name


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
    title: str = ""

    def text(self, width: int = WIDTH) -> str:
        return text(self, width)

    def svg(self, width: float) -> str:
        return svg(self, width)

    def twin(self) -> tuple[list[str], list[list[str]]]:
        """A line for each column: what stands in it, by row."""
        num_columns = max((len(row.cells) for row in self.rows), default=0)
        columns = [[_in_words(row.cells[i]) if i < len(row.cells) else "" for row in self.rows]
                   for i in range(num_columns)]  # fmt: skip
        return [row.label for row in self.rows], columns


def _in_words(cell: Cell) -> str:
    return f"{cell.text} ({cell.kind})" if cell.kind in SAID and cell.text else cell.text


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
    for start in _bands(num_columns, per_band):
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


def svg(picture: Picture, width: float) -> str:
    """The picture in boxes; what is wider goes on below."""
    from .svg import MONO_WIDTH, SANS_WIDTH, Sheet  # a lab's report in text needs none of it

    labels = max((len(row.label) for row in picture.rows), default=0) * SANS_WIDTH + 10
    cell_width = max((len(c.text) for row in picture.rows for c in row.cells), default=1)
    cell_width = max(cell_width * MONO_WIDTH + 8, 26.0)
    num_columns = max((len(row.cells) for row in picture.rows), default=0)
    gap, height = (8.0 if picture.every else 0.0), 26.0
    per_band = max(1, int((width - labels + gap) / cell_width))
    if picture.every:
        per_band = max(1, int((width - labels + gap) / (picture.every * cell_width + gap)))
        per_band *= picture.every
    sheet, top = Sheet(width), 0.0
    for start in _bands(num_columns, per_band):
        for row in picture.rows:
            sheet.text(0, top + 18, row.label, role="muted")
            for place, cell in enumerate(row.cells[start : start + per_band]):
                left = labels + place * cell_width
                left += gap * (place // picture.every) if picture.every else 0
                sheet.box(left, top + 1, cell_width - 2, height - 2, cell.kind)
                sheet.text(left + cell_width / 2 - 1, top + 18, cell.text, anchor="middle",
                           mono=True, bold=cell.kind in (NEW, LOST),
                           role="ink" if cell.kind != NOTHING else "muted",
                           halo=cell.kind in (LOST, PREFILL))  # fmt: skip
            top += height
        top += 12
    return sheet.svg(picture.title or picture.caption, picture.text())


def _bands(num_columns: int, per_band: int) -> range:
    """Where each band of columns starts."""
    return range(0, max(num_columns, 1), per_band)


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
    return Picture(tuple(rows), caption, title="the blocks of the pool")


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
    return Picture(tuple(rows), caption, every=block_size, title="positions, blocks and slots")


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
    return Picture(tuple(rows), caption, title="tokens computed of each request, by step")


def _step_cell(num_tokens: int, samples: bool) -> Cell:
    return Cell(f"{num_tokens}{'*' if samples else ''}", DECODE if num_tokens == 1 else PREFILL)
