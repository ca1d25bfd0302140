"""The rooms and the doors between them, with one message on its way: a `Walk`, drawn.

The picture is as wide as a phone; the message stands beside it, or below where that is too
narrow. Standard library only.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from lessons.draw import DECODE, NOTHING, PREFILL, WIDTH
from lessons.svg import NARROW, SANS_WIDTH, Sheet, table, tag, wrapped
from lessons.walk import (
    ENGINE,
    ENTRYPOINTS,
    EXECUTOR,
    KVCACHE,
    SCHEDULER,
    TOKENIZER,
    YOU,
    Stop,
    Walk,
    names_in,
)

# room: (column, row, what it is for). The spine stands at the left, its helpers at the right.
PLACES = {
    YOU: (0, 0, "ask and read"),
    ENTRYPOINTS: (0, 1, "what you call"),
    ENGINE: (0, 2, "the loop"),
    TOKENIZER: (1, 2, "text and numbers"),
    SCHEDULER: (0, 3, "who, how much"),
    KVCACHE: (1, 3, "which memory"),
    EXECUTOR: (0, 4, "runs the model"),
}
NEIGHBOURS = (
    (YOU, ENTRYPOINTS),
    (ENTRYPOINTS, ENGINE),
    (ENGINE, TOKENIZER),
    (ENGINE, SCHEDULER),
    (SCHEDULER, KVCACHE),
    (SCHEDULER, EXECUTOR),
)
BOX, HIGH, DOWN, RIGHT = 136, 42, 70, 176
DOOR = 3 * DOWN + HIGH + 30  # where the door between the halves stands
BOLD_WIDTH = 8.0  # of a letter


def rooms_svg(walk: Walk, index: int) -> str:
    """The rooms with stop number `index` of a walk."""
    stop = walk.stops[index]
    sheet = Sheet(NARROW)
    for y, half in ((DOOR - 7, "decides"), (DOOR + 17, "computes")):
        sheet.text(NARROW, y, half, anchor="end", role="muted", size=12)
    for x in range(0, NARROW, 12):
        if abs(x + 3 - BOX / 2) > 14:  # there the door is open
            sheet.line(x, DOOR, x + 7, DOOR, "muted", 2)
    for source, target in NEIGHBOURS:
        sheet.line(*_ends(source, target))
    for room in PLACES:
        _room(sheet, room, stop)
    _message(sheet, stop)
    said = f"Stop {index + 1} of {len(walk.stops)}: {stop.message} from {stop.source} to"
    return sheet.svg("The rooms of the engine", f"{said} {stop.target}. {stop.says}")


def _top(row: int) -> int:
    """Where a row of rooms begins; the last lies behind the door."""
    return row * DOWN + (36 if row == 4 else 0)


def _room(sheet: Sheet, room: str, stop: Stop) -> None:
    column, row, purpose = PLACES[room]
    x, y = column * RIGHT, _top(row)
    if room == YOU and stop.answer:
        purpose = f"{stop.answer.strip()}"
        num = int((NARROW - 20) / SANS_WIDTH)
        purpose = purpose if len(purpose) <= num else f"…{purpose[-num + 1 :]}"
    if room == KVCACHE and stop.block_ids:
        purpose = f"block {', '.join(map(str, stop.block_ids))}"
    width = NARROW if room == YOU else BOX
    sheet.box(x, y, width, HIGH, "new" if room in (stop.source, stop.target) else "free", 6)
    sheet.text(x + 10, y + 17, room, bold=True)
    sheet.text(x + 10, y + 34, purpose, role="muted")


def _ends(source: str, target: str) -> tuple[float, float, float, float]:
    """From the edge of one room to the edge of its neighbour."""
    (column1, row1, _), (column2, row2, _) = PLACES[source], PLACES[target]
    if row1 == row2:
        y = _top(row1) + HIGH / 2
        return (BOX, y, RIGHT, y) if column1 < column2 else (RIGHT, y, BOX, y)
    x = BOX / 2
    top, bottom = _top(min(row1, row2)) + HIGH, _top(max(row1, row2))
    return (x, top, x, bottom) if row1 < row2 else (x, bottom, x, top)


def _message(sheet: Sheet, stop: Stop) -> None:
    """The arrow of a message, and its name beside it."""
    role = {PREFILL: "prefill", DECODE: "decode", NOTHING: "ink"}[stop.kind]
    x1, y1, x2, y2 = _ends(stop.source, stop.target)
    sheet.line(x1, y1, x2, y2, role, 3, arrow=True)
    sheet.head(x1, y1, x2, y2, role)
    width = BOLD_WIDTH * len(stop.message) + 18
    if y1 == y2:
        x, y = min((x1 + x2 - width) / 2, NARROW - width), y1 + HIGH / 2 + 4
    else:
        x, y = BOX / 2 + 14, (y1 + y2) / 2 - 11
    sheet.box(x, y, width, 22, "new" if stop.kind == NOTHING else stop.kind, 11)
    sheet.text(x + width / 2, y + 15, stop.message, anchor="middle", bold=True, halo=True)


def card(walk: Walk, index: int) -> str:
    """A stop's message in HTML: what crossed, and what it means."""
    stop = walk.stops[index]
    rows = "".join(
        tag("tr", tag("th", escape(name), scope="row"), tag("td", _breakable(value)))
        for name, value in stop.fields
    )
    names = "; ".join(f"<code>{name}</code>: {escape(says)}" for name, says in names_in(stop))
    return tag(
        "div",
        tag("p", f"stop {index + 1} of {len(walk.stops)} · {when(walk, stop)}", class_="tt-when"),
        tag("h4", f"{escape(stop.message)} <small>{stop.source} → {stop.target}</small>"),
        tag("p", escape(stop.says)),
        tag("table", tag("tbody", rows)),
        tag("p", f"{names}.", class_="tt-when") if names else "",
        class_="tt-card",
    )  # fmt: skip


def _breakable(value: str) -> str:
    """May go on below after a bracket or an equals sign."""
    return escape(value).replace("(", "(<wbr>").replace("=", "=<wbr>")


def when(walk: Walk, stop: Stop) -> str:
    if stop.step == 0:
        return "before the first step"
    about = {
        PREFILL: f"the prompt, {walk.num_prompt_tokens} tokens",
        DECODE: "one token",
        NOTHING: "nothing to compute",
    }
    return f"step {stop.step}: {about[stop.kind]}"


def page(walk: Walk) -> str:
    """All stops in HTML, one of them to be seen: a row of points, one each, and beside the picture
    the ways back and on. It is the browser that steps, so no press waits for Python. Below, the
    whole walk as a table."""
    stops = "".join(
        f'<input type="radio" name="tt-stop" id="tt-stop-{number}" aria-label="stop {number}"'
        f"{' checked' if number == 1 else ''}><section><nav>{_way(walk, number - 1, 'Back')}"
        f"<b>{number} of {len(walk.stops)}</b>{_way(walk, number + 1, 'Next')}</nav>"
        f'<div class="tt-walk"><div>{rooms_svg(walk, number - 1)}</div>'
        f"{card(walk, number - 1)}</div></section>"
        for number in range(1, len(walk.stops) + 1)
    )
    heading, rows = twin(walk)
    return (
        f'<style>{CSS}</style><div class="tt-stops" role="radiogroup" aria-label="stops" '
        f"data-search-exclude>{stops}</div>"
        f'<details class="tt-twin"><summary>all stops as a table</summary>'
        f'<div class="tt-scroll" tabindex="0" role="region" aria-label="Table: all stops">'
        f"{table(heading, rows, 'One request, door by door')}</div></details>"
    )


def _way(walk: Walk, number: int, says: str) -> str:
    """What leads to another stop; at both ends, where nothing follows, the words alone."""
    if not 1 <= number <= len(walk.stops):
        return tag("span", says)
    return f'<label for="tt-stop-{number}">{says}</label>'


def twin(walk: Walk) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Every stop of a walk as a row of a table."""
    return ("stop", "step", "from", "to", "message", "what it means"), [
        (str(number), str(s.step), s.source, s.target, s.message, s.says)
        for number, s in enumerate(walk.stops, 1)
    ]


def text(walk: Walk, index: int, width: int = WIDTH) -> str:
    """A stop in lines of at most `width` columns."""
    stop = walk.stops[index]
    spine = [YOU, ENTRYPOINTS, ENGINE, SCHEDULER, EXECUTOR]
    helpers = {ENGINE: TOKENIZER, SCHEDULER: KVCACHE}
    lines = [f"stop {index + 1} of {len(walk.stops)}, {when(walk, stop)}"]
    for room in spine:
        shown = [f"[{r}]" if r in (stop.source, stop.target) else f" {r} "
                 for r in (room, helpers.get(room)) if r]  # fmt: skip
        lines.append("   ".join(f"{s:<15}" for s in shown).rstrip())
    lines += ["", f"{stop.message}, from {stop.source} to {stop.target}"]
    for name, value in stop.fields:
        lines += wrapped(f"  {name} = {value}", width, 1)
    return "\n".join([*lines, *wrapped(stop.says, width, 1)])


CSS = """
.tt-stops{display:flex;flex-wrap:wrap;gap:.3rem;margin:1rem 0;color:var(--tt-ink)}
.tt-stops>input{margin:0;width:18px;height:18px;accent-color:var(--tt-prefill);cursor:pointer}
.tt-stops>section{order:1;flex:0 0 100%;display:none}
.tt-stops>input:checked+section{display:block}
.tt-stops:not(:has(>input:checked))>input:first-of-type+section{display:block}
.tt-stops nav{display:flex;gap:1rem;align-items:baseline;margin:.5rem 0;
font:14px/1.5 var(--tt-sans)}
.tt-stops nav b{min-width:5rem;text-align:center;font-weight:400}
.tt-stops nav label,.tt-stops nav span{padding:.3rem 1rem;border:1px solid var(--tt-line);
border-radius:4px;user-select:none}
.tt-stops nav label{cursor:pointer;background:var(--tt-soft)}
.tt-stops nav span{color:var(--tt-muted)}
@media print{.tt-stops>section{display:block}.tt-stops>input,.tt-stops nav{display:none}}
.tt-walk{display:flex;flex-wrap:wrap;gap:1.2rem 2rem;margin:1rem 0;color:var(--tt-ink)}
.tt-walk>div:first-child{flex:0 1 312px}
.tt-walk svg{display:block;max-width:100%;height:auto}
.tt-card{flex:1 1 280px;min-width:0;font:14px/1.5 var(--tt-sans)}
.tt-card p{margin:.2rem 0 .6rem}
.tt-card h4{margin:.2rem 0;font:600 16px/1.4 var(--tt-sans)}
.tt-card small{font-weight:400;color:var(--tt-muted);font-size:13px}
.tt-card .tt-when{color:var(--tt-muted)}
.tt-card table{border-collapse:collapse;font:12.5px/1.5 var(--tt-mono);width:100%}
.tt-card th,.tt-card td{text-align:left;vertical-align:top;font-weight:400;
padding:.25rem .6rem .25rem 0;border-top:1px solid var(--tt-line);overflow-wrap:anywhere}
.tt-card th{color:var(--tt-muted);white-space:nowrap;width:1%}
"""
