"""Drawings of lesson 09: who had which place, what a step was made of and why, and its laws."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from itertools import count

from .bars import Bars, bars
from .batching import Gap, Used
from .draw import (
    DECODE,
    FREE,
    NEW,
    NOTHING,
    PREEMPTED,
    PREFILL,
    USED,
    WAITING,
    Cell,
    Picture,
    Row,
    cells,
)
from .reasons import PAUSED, STOPPED, WAITS, Did
from .stepping import Run, Step
from .svg import KINDS, colour

KIND_OF = {WAITS: WAITING, PAUSED: WAITING, STOPPED: PREEMPTED, PREFILL: PREFILL, DECODE: DECODE}
LETTERS = {WAITS: "w", STOPPED: "x", PAUSED: "p"}
IDLE = "-"


def by_place(run: Run, upto: int, title: str = "", caption: str = "") -> Picture:
    """A row for each place of the batch, a column for each step: whose token was computed there.
    Columns after `upto` are blank."""
    grid = list(_seated(run))
    rows = [Row("step", cells(range(1, len(grid) + 1)))]
    num_seats = max((place + 1 for seats in grid for place in seats), default=0)
    for place in range(max(run.limits.places, num_seats)):
        line = []
        for number, seats in enumerate(grid, 1):
            did = seats.get(place)
            drawn = Cell(did.name, did.state) if did else Cell(IDLE, FREE)
            line.append(drawn if number <= upto else Cell(""))
        rows.append(Row(f"place {place + 1}", tuple(line)))
    waiting = [sum(d.state in (WAITS, STOPPED) for d in s.did) for s in run.steps]
    shown = [Cell(str(n or "") if i < upto else "") for i, n in enumerate(waiting)]
    return Picture((*rows, Row("waiting", tuple(shown))), caption, title=title)


def _seated(run: Run) -> Iterator[dict[int, Did]]:
    """By step: who is computed in which place. A request keeps its place until it leaves."""
    place_of: dict[str, int] = {}
    for step in run.steps:
        for did in step.did:
            if did.state == STOPPED:
                place_of.pop(did.name, None)
        seats = {}
        for did in (d for d in step.did if d.num_tokens):
            free = (p for p in count() if p not in place_of.values())
            if did.name not in place_of:
                place_of[did.name] = next(free)
            seats[place_of[did.name]] = did
        yield seats
        for did in step.did:
            if did.ends:
                del place_of[did.name]


def by_request(run: Run, upto: int, title: str = "", caption: str = "") -> Picture:
    """A row for each request, a column for each step: how many of its tokens were computed, or
    that it waited (w), was stopped (x), or was passed over (p). Columns after `upto` are blank."""
    numbers = range(1, len(run.steps) + 1)
    heading = (Cell(str(n), NEW if n == upto else NOTHING) for n in numbers)
    rows = [Row("step", tuple(heading))]
    for ask in run.asks:
        line = [Cell("")] * len(run.steps)
        for step in run.steps[:upto]:
            for did in (d for d in step.did if d.name == ask.name):
                said = str(did.num_tokens) if did.num_tokens else LETTERS[did.state]
                line[step.number - 1] = Cell(said, KIND_OF[did.state])
        rows.append(Row(ask.name, tuple(line)))
    return Picture(tuple(rows), caption, title=title)


def inside(run: Run, step: Step, title: str = "", caption: str = "") -> Picture:
    """What one step was made of: each token of its budget, and each block of the memory, with the
    request it went to."""
    tokens = [Cell(d.name, d.state) for d in step.did for _ in range(d.num_tokens)]
    tokens += [Cell(IDLE, FREE)] * (run.limits.budget - len(tokens))
    owned = [Cell(d.name, USED) for d in step.did for _ in range(d.num_blocks)]
    owned += [Cell(IDLE, FREE)] * step.num_free
    return Picture((Row("tokens", tuple(tokens)), Row("blocks", tuple(owned))), caption,
                   title=title)  # fmt: skip


def reasons(step: Step) -> str:
    """HTML: each request of a step, what was done with it, and why."""
    items = "".join(_reason(did) for did in step.did)
    return f'<ul style="list-style:none;padding:0;margin:.5rem 0">{items}</ul>'


def _reason(did: Did) -> str:
    fill, stroke, _ = KINDS[KIND_OF[did.state]]
    badge = (
        f"background:{colour(fill)};border:1px solid {colour(stroke)};color:{colour('ink')};"
        f"border-radius:3px;padding:0 .4em;white-space:nowrap"
    )
    said = did.state
    if did.num_tokens:
        said += f", {did.num_tokens} token{'' if did.num_tokens == 1 else 's'}"
    stands = f"{did.num_computed} of {did.num_had} tokens computed before"
    return (
        f'<li style="margin:.45rem 0"><b>{escape(did.name)}</b> '
        f'<span style="{badge.replace("background:none", "background:transparent")}">{said}</span> '
        f'<small style="color:{colour("muted")}">{stands}</small><br>{escape(did.why)}</li>'
    )


def used_bars(num_places: int, used: Used) -> Bars:
    """How much of so many places is used, by the law and simulated."""
    return bars(
        [
            ("static batches, by the law", 100 * used.law, WAITING),
            ("static batches, simulated", 100 * used.static, DECODE),
            ("every step anew, simulated", 100 * used.anew, DECODE),
        ],
        unit="%",
        title=f"places used, of {num_places}",
        caption=f"Places used, of {num_places}. All are served {used.times_faster:.1f} times as "
        f"fast (modelled).",
    )


def gap_bars(gaps: list[Gap]) -> tuple[Bars, Bars]:
    """What the size of a step does to those who stream, and to a long prompt."""
    names = [f"{gap.budget:,} tokens in a step" for gap in gaps]
    longest = [(f"{name} (law: {gap.law_ms:.0f} ms)", gap.worst_ms, DECODE)
               for name, gap in zip(names, gaps)]  # fmt: skip
    first = [(name, gap.first_ms, PREFILL) for name, gap in zip(names, gaps)]
    return (
        bars(
            longest, "ms", "the longest gap in a chat",
            "The longest gap between two tokens of a chat, simulated; in brackets t(B).", 0,
        ),
        bars(
            first, "ms", "until the long prompt's first token",
            "Until the first token of the long prompt (modelled). Small steps read the weights "
            "again and again. Lesson 10 looks for the best size.", 0,
        ),
    )  # fmt: skip
