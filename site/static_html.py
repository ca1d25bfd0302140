"""A notebook's outputs as HTML that stands alone: marimo's own elements become plain ones, and a
control shows the value that the page was computed with.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html import escape, unescape
from html.parser import HTMLParser

# marimo's wrappers, which leave no trace: what is inside them stays.
TRANSPARENT = {"marimo-ui-element", "marimo-lazy", "marimo-form", "marimo-dict", "marimo-batch"}


def static_html(html: str) -> str:
    """Raises ValueError for an element of marimo's that has no plain form here yet."""
    parser = Plain()
    parser.feed(html)
    parser.close()
    made = re.sub(r'class="codehilite"', 'class="highlight"', "".join(parser.out))
    return re.sub(r"<pre\b(?![^>]*tabindex)", '<pre tabindex="0"', made)  # wide code is scrolled


class Plain(HTMLParser):
    """Copies everything as it stands, but marimo's elements."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=False)
        self.out: list[str] = []
        self.labels: list[list[str]] = []  # of the accordions and tabs that are open
        self.depth: list[int] = []  # of the elements inside each

    def handle_starttag(self, tag: str, attrs: list) -> None:
        if tag in ("marimo-accordion", "marimo-tabs"):
            data = values(attrs)
            self.labels.append(list(data.get("labels") or data.get("tabs") or []))
            self.depth.append(0)
        elif tag == "marimo-tex":
            self.out.append('<span class="arithmatex">')
        elif tag in CONTROLS:
            self.out.append(CONTROLS[tag](values(attrs)))
        elif tag.startswith("marimo-"):
            if tag not in TRANSPARENT:
                raise ValueError(f"<{tag}> has no plain form in site/static_html.py")
        else:
            if self.labels and tag not in VOID:
                self.depth[-1] += 1
                if self.depth[-1] == 1:
                    summary = self.labels[-1].pop(0) if self.labels[-1] else ""
                    self.out.append(f'<details class="more"><summary>{inline(summary)}</summary>')
            self.out.append(self.get_starttag_text())

    def handle_startendtag(self, tag: str, attrs: list) -> None:
        if tag.startswith("marimo-"):
            self.handle_starttag(tag, attrs)
            self.handle_endtag(tag)
        else:
            self.out.append(self.get_starttag_text())

    def handle_endtag(self, tag: str) -> None:
        if tag in ("marimo-accordion", "marimo-tabs"):
            self.labels.pop()
            self.depth.pop()
        elif tag == "marimo-tex":
            self.out.append("</span>")
        elif not tag.startswith("marimo-"):
            self.out.append(f"</{svg_case(tag)}>")
            if self.labels and tag not in VOID:
                self.depth[-1] -= 1
                if self.depth[-1] == 0:
                    self.out.append("</details>")

    def handle_data(self, data: str) -> None:
        delimiters = {"||(": r"\(", "||)": r"\)", "||[": r"\[", "||]": r"\]"}
        for old, new in delimiters.items():
            data = data.replace(old, new)
        # What the parser takes for text may still hold a sign that starts an element.
        self.out.append(data if self.cdata_elem else data.replace("<", "&lt;"))

    def handle_entityref(self, name: str) -> None:
        self.out.append(f"&{name};")

    def handle_charref(self, name: str) -> None:
        self.out.append(f"&#{name};")

    def handle_comment(self, data: str) -> None:
        pass


VOID = {"area", "base", "br", "col", "hr", "img", "input", "link", "meta", "source", "wbr"}
SVG_CASE = {n.lower(): n for n in ("clipPath", "linearGradient", "radialGradient", "textPath")}


def svg_case(tag: str) -> str:
    """The parser lowers a name; in an end tag only it is left."""
    return SVG_CASE.get(tag, tag)


def values(attrs: list) -> dict:
    """marimo's data attributes, which are JSON."""
    found = {}
    for name, value in attrs:
        if name.startswith("data-") and value is not None:
            try:
                found[name.removeprefix("data-")] = json.loads(unescape(value))
            except json.JSONDecodeError:
                found[name.removeprefix("data-")] = value
    return found


def inline(html: object) -> str:
    """A label without the blocks that marimo wraps it in."""
    return re.sub(r"</?(span|p|div)\b[^>]*>", "", static_html(str(html or ""))).strip()


def control(data: dict) -> str:
    """A control: its name, and the value that the page was computed with."""
    value = data.get("initial-value")
    if data.get("steps"):  # a slider over a list counts its places
        value = data["steps"][int(value)]
    if isinstance(value, list):
        shown = ", ".join(str(v) for v in value)
    elif isinstance(value, bool):
        shown = "on" if value else "off"
    else:
        shown = "" if value is None else value
    name = inline(data.get("label"))
    said = f" <b>{escape(str(shown))}</b>" if shown != "" else ""
    return f'<span class="control">{name}{said}</span>' if name or said else ""


def choices(data: dict) -> str:
    """A question with its possible answers; which of them is right, the live page says."""
    items = "".join(f"<li>{inline(option)}</li>" for option in data.get("options", []))
    return f'<div class="choices"><p>{inline(data.get("label"))}</p><ul>{items}</ul></div>'


def editor(data: dict) -> str:
    code = escape(str(data.get("initial-value") or ""))
    label = inline(data.get("label"))
    return (f"<p>{label}</p>" if label else "") + f"<pre><code>{code}</code></pre>"


def callout(data: dict) -> str:
    kind = escape(str(data.get("kind") or "neutral"))
    return f'<div class="note note-{kind}">{static_html(str(data.get("html") or ""))}</div>'


def nothing(data: dict) -> str:
    return ""


CONTROLS: dict[str, Callable[[dict], str]] = {
    **dict.fromkeys(
        ("marimo-slider", "marimo-number", "marimo-switch", "marimo-checkbox", "marimo-text",
         "marimo-dropdown", "marimo-range-slider", "marimo-text-area"), control),
    "marimo-radio": choices,
    "marimo-multiselect": choices,
    "marimo-code-editor": editor,
    "marimo-callout-output": callout,
    "marimo-button": nothing,
    "marimo-refresh": nothing,
}  # fmt: skip
