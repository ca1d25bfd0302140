"""SVG by hand: one palette, a sheet to draw on, and the figure around a drawing.

Two colours have a meaning everywhere in the course: prefill and decode. The rest is grey, and one
colour warns. Each kind of thing has its own hatching as well, so nothing is said by colour alone.
Colours are CSS custom properties: `css()` declares them for light and dark, follows the reader's
system, and gives way to the site's scheme and to marimo's. The standard library only.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape, unescape
from typing import Protocol

# name: (in the light, in the dark). Text is INK on any *-soft, or MUTED on the page: WCAG AA.
PALETTE = {
    "ink": ("#1d262b", "#e8ecee"),
    "muted": ("#56626a", "#a3b0b7"),
    "line": ("#b9c3c9", "#4d5a62"),
    "soft": ("#e9edef", "#2b353b"),
    "paper": ("#fbfaf7", "#14191c"),
    "prefill": ("#0b666e", "#62c6ce"),
    "prefill-soft": ("#d3e9ea", "#134449"),
    "decode": ("#8f5200", "#f2b655"),
    "decode-soft": ("#fbe6bd", "#553a0a"),
    "warn": ("#a3143d", "#ff93aa"),
    "warn-soft": ("#f8d9e0", "#591b2e"),
}
STYLE, IDENTITY = re.compile(r' style="([^"]*)"'), re.compile(r'aria-labelledby="(\w+)-t ')
WIDE, NARROW = 680, 312  # CSS pixels: for a desktop's column, and for a phone's
SIZE = 13  # of text
MONO_WIDTH = 7.9  # of a letter of that size
SANS_WIDTH = 6.9

# kind: (fill, stroke, hatching). A fill or stroke is a name of the palette.
KINDS = {
    "nothing": ("none", "none", ""),
    "free": ("none", "line", ""),
    "used": ("soft", "muted", ""),
    "new": ("soft", "ink", ""),
    "lost": ("warn-soft", "warn", "cross"),
    "prefill": ("prefill-soft", "prefill", "rising"),
    "decode": ("decode-soft", "decode", ""),
    "waiting": ("none", "muted", "dotted"),
    "preempted": ("warn-soft", "warn", "falling"),
    "finished": ("ink", "ink", ""),
    "reserved": ("none", "muted", "level"),
    "inside": ("warn-soft", "warn", "dotted"),
    "outside": ("none", "warn", "cross"),
}
THICK = {"new", "lost"}
HATCHINGS = {  # what is drawn in a square of 6 by 6
    "rising": "M-1,1 l2,-2 M0,6 l6,-6 M5,7 l2,-2",
    "falling": "M-1,5 l2,2 M0,0 l6,6 M5,-1 l2,2",
    "cross": "M0,0 l6,6 M0,6 l6,-6",
    "level": "M0,3 h6",
    "dotted": "M1.5,1.5 h1.5 M4.5,4.5 h1.5",
}


class Drawing(Protocol):
    """What a figure shows."""

    title: str
    caption: str

    def svg(self, width: float) -> str: ...

    def twin(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """The same facts as a table: its heading, and its rows."""


def tag(name: str, /, *inside: str, **attributes: object) -> str:
    """An element. `class_` is class, `text_anchor` text-anchor; None leaves an attribute out.
    `inside` is markup: escape what is text."""
    pairs = [(k.rstrip("_").replace("_", "-"), v) for k, v in attributes.items() if v is not None]
    said = "".join(f' {k}="{escape(_number(v), quote=True)}"' for k, v in pairs)
    return f"<{name}{said}>{''.join(inside)}</{name}>" if inside else f"<{name}{said}/>"


def _number(value: object) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)


class Sheet:
    """What is drawn so far, from the top left. Coordinates are CSS pixels."""

    def __init__(self, width: float) -> None:
        self.width = width
        self.height = 0.0
        self.shapes: list[str] = []
        self.hatched: set[str] = set()  # kinds

    def box(
        self, x: float, y: float, width: float, height: float, kind: str, radius: float = 2
    ) -> None:
        """A rectangle of a kind of KINDS."""
        if kind == "nothing":
            return
        fill, stroke, hatching = KINDS[kind]
        style = (
            f"fill:{colour(fill)};stroke:{colour(stroke)};stroke-width:{2 if kind in THICK else 1}"
        )
        place = {"x": x + 0.5, "y": y + 0.5, "width": max(width - 1, 1), "height": height - 1}
        self.add(tag("rect", **place, rx=radius, style=style), x + width, y + height)
        if hatching:
            self.hatched.add(kind)
            self.shapes.append(tag("rect", **place, rx=radius, fill=f"url(#ID-{kind})"))

    def text(
        self, x: float, y: float, text: object, *, anchor: str = "start", role: str = "ink",
        mono: bool = False, bold: bool = False, size: float = SIZE, halo: bool = False,
    ) -> None:  # fmt: skip
        """A line of text whose baseline is at y. anchor: start, middle, end. halo: it stands on
        hatching, and keeps that off its letters."""
        family = "var(--tt-mono)" if mono else "var(--tt-sans)"
        style = f"fill:{colour(role)};font:{'600 ' if bold else ''}{_number(size)}px {family}"
        if halo:
            style += f";paint-order:stroke;stroke:{colour('paper')};stroke-width:3px"
        made = tag("text", escape(str(text)), x=x, y=y, text_anchor=anchor, style=style)
        self.add(made, x, y + 4)

    def line(
        self, x1: float, y1: float, x2: float, y2: float, role: str = "line",
        width: float = 1, dashed: bool = False, arrow: bool = False,
    ) -> None:  # fmt: skip
        """A straight line; arrow: with a head at its end."""
        style = f"stroke:{colour(role)};stroke-width:{_number(width)};fill:none"
        dash = "4 3" if dashed else None
        made = tag("line", x1=x1, y1=y1, x2=x2, y2=y2, stroke_dasharray=dash, style=style)
        self.add(made, max(x1, x2), max(y1, y2))
        if arrow:
            self.head(x1, y1, x2, y2, role)

    def head(self, x1: float, y1: float, x2: float, y2: float, role: str) -> None:
        """The head of an arrow from one point to another, at the latter."""
        length = max(((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5, 1e-9)
        dx, dy = (x2 - x1) / length * 7, (y2 - y1) / length * 7
        corners = [(x2, y2), (x2 - dx - dy / 2, y2 - dy + dx / 2),
                   (x2 - dx + dy / 2, y2 - dy - dx / 2)]  # fmt: skip
        points = " ".join(f"{_number(float(x))},{_number(float(y))}" for x, y in corners)
        self.shapes.append(tag("polygon", points=points, style=f"fill:{colour(role)}"))

    def legend(self, names: Mapping[str, str], top: float) -> None:
        """What kinds of boxes mean; the legend wraps."""
        left = 0.0
        for kind, name in names.items():
            wanted = len(name) * SANS_WIDTH + 42
            if left and left + wanted > self.width:
                left, top = 0.0, top + 22
            self.box(left, top, 20, 16, kind)
            self.text(left + 26, top + 13, name, role="muted")
            left += wanted

    def add(self, shape: str, right: float, bottom: float) -> None:
        """Any other shape, and how far it reaches."""
        self.shapes.append(shape)
        self.height = max(self.height, bottom)

    def svg(self, title: str, description: str) -> str:
        """The whole picture, named and described for those who do not see it."""
        # A page may show one picture at two widths: ids must differ.
        drawn = "".join([title, description, str(self.width), *self.shapes])
        name = f"tt{zlib.crc32(drawn.encode()):08x}"
        defs = "".join(_hatching(name, kind) for kind in sorted(self.hatched))
        width, height = _number(float(self.width)), _number(float(self.height + 2))
        return tag(
            "svg",
            tag("title", escape(title), id=f"{name}-t"),
            tag("desc", escape(description), id=f"{name}-d"),
            tag("defs", defs) if defs else "",
            "".join(self.shapes).replace("url(#ID-", f"url(#{name}-"),
            xmlns="http://www.w3.org/2000/svg", role="img", class_="tt",
            viewBox=f"0 0 {width} {height}", width=width, height=height,
            aria_labelledby=f"{name}-t {name}-d",
        )  # fmt: skip


def colour(name: str) -> str:
    """A name of the palette in CSS. The colour for the light stands in where `css()` is not."""
    return name if name == "none" else f"var(--tt-{name},{PALETTE[name][0]})"


def compact(picture: str) -> str:
    """An SVG of a `Sheet` with a class in place of each style that comes often: half as long."""
    name = IDENTITY.search(picture)[1]
    rules = ""
    for number, (style, times) in enumerate(Counter(STYLE.findall(picture)).most_common()):
        if times > 2:
            picture = picture.replace(f' style="{style}"', f' class="{name}-{number}"')
            rules += f".{name}-{number}{{{unescape(style)}}}"
    return picture.replace("</desc>", f"</desc><style>{rules}</style>", 1) if rules else picture


def _hatching(name: str, kind: str) -> str:
    _, stroke, hatching = KINDS[kind]
    style = f"stroke:{colour(stroke)};stroke-width:1;opacity:.45;fill:none"
    path = tag("path", d=HATCHINGS[hatching], style=style)
    return tag("pattern", path, id=f"{name}-{kind}", width=6, height=6,
               patternUnits="userSpaceOnUse")  # fmt: skip


def wrapped(text: str, width: float, letter: float = SANS_WIDTH) -> list[str]:
    """Lines of about this many pixels."""
    lines, room = [""], max(int(width / letter), 1)
    for word in text.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > room:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def figure(drawing: Drawing) -> str:
    """HTML: the drawing for a wide and for a narrow column, whichever fits, its caption, and the
    table of the same facts."""
    wide, narrow = compact(drawing.svg(WIDE)), compact(drawing.svg(NARROW))
    shown = tag("div", wide, class_="tt-wide") + tag("div", narrow, class_="tt-narrow")
    caption = tag("figcaption", escape(drawing.caption)) if drawing.caption else ""
    heading, rows = drawing.twin()
    twin = tag(
        "details",
        tag("summary", "the same as a table"),
        tag("div", table(heading, rows, drawing.title or drawing.caption), class_="tt-scroll",
            tabindex=0, role="region", aria_label=f"Table: {drawing.title or drawing.caption}"),
        class_="tt-twin",
    )  # fmt: skip
    # A search is for words of the text.
    return tag("figure", shown, caption, twin, class_="tt tt-figure", data_search_exclude="")


def table(heading: Iterable[object], rows: Iterable[Iterable[object]], title: str = "") -> str:
    """An HTML table; the first cell of a row names it."""
    head = "".join(tag("th", escape(str(h)) or "&#8203;", scope="col") for h in heading)
    body = ""
    for first, *rest in rows:
        data = "".join(tag("td", escape(str(cell)) or "&#8203;") for cell in rest)
        body += tag("tr", tag("th", escape(str(first)) or "&#8203;", scope="row"), data)
    said = tag("caption", escape(title)) if title else ""
    return tag("table", said, tag("thead", tag("tr", head)), tag("tbody", body))


def css() -> str:
    """The palette for light and dark, and how a figure looks. A page needs it once."""
    light = "".join(f"--tt-{name}:{value[0]};" for name, value in PALETTE.items())
    dark = "".join(f"--tt-{name}:{value[1]};" for name, value in PALETTE.items())
    return f"""
:root{{{light}--tt-mono:ui-monospace,"SF Mono",Menlo,Consolas,"DejaVu Sans Mono",monospace;
--tt-sans:system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;}}
@media (prefers-color-scheme:dark){{:root{{{dark}}}}}
[data-md-color-scheme=default],body.light{{{light}}}
[data-md-color-scheme=slate],body.dark{{{dark}}}
{FIGURE_CSS}"""


FIGURE_CSS = """
.tt-figure{container-type:inline-size;margin:1rem 0;max-width:680px;color:var(--tt-ink)}
.tt-figure svg{display:block;max-width:100%;height:auto}
.tt-figure .tt-narrow{display:none}
@container (max-width:600px){.tt-figure .tt-wide{display:none}.tt-figure .tt-narrow{display:block}}
.tt-figure figcaption{font:14px/1.45 var(--tt-sans);color:var(--tt-muted);margin:.5rem 0 0}
.tt-twin{margin:.35rem 0 0;font:13px/1.4 var(--tt-sans)}
.tt-twin summary{cursor:pointer;color:var(--tt-muted);padding:.2rem 0}
.tt-scroll{overflow-x:auto;max-height:22rem}
.tt-twin table{border-collapse:collapse;font:13px/1.4 var(--tt-mono)}
.tt-twin caption{text-align:left;color:var(--tt-muted);font:13px/1.4 var(--tt-sans)}
.tt-twin th,.tt-twin td{padding:.1rem .6rem .1rem 0;text-align:left;vertical-align:top;
border-bottom:1px solid var(--tt-line);font-weight:400}
.tt-twin thead th{color:var(--tt-muted)}
"""
