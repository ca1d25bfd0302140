"""A page for each lesson, and the list of them, made from the notebooks.

A page stands alone: the notebook's prose and shown code, and what its cells computed when the site
was built. HTML goes round Markdown in numbered slots, so that it arrives as it left.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from functools import cache
from html import escape, unescape
from pathlib import Path
from typing import Any

from notebooks import ROOT, Cell, find_lessons, run_lesson

sys.path.insert(0, str(ROOT))

from lessons.show import RUNS_ON, metadata

CACHE = Path(__file__).parent / "build" / "lessons"
HEADER = re.compile(r'<style>.*?</style>\s*<header class="tt-head">.*?</header>', re.S)
SOURCE = re.compile(r'href="source:minivllm/([^":]+):(\d+)"')


@dataclass
class Page:
    """Markdown with slots, and what goes into them."""

    markdown: str
    slots: list[str] = field(default_factory=list)

    def slot(self, html: str) -> str:
        self.slots.append(html)
        return f'\n\n<div data-slot="{len(self.slots) - 1}"></div>\n\n'


@dataclass(frozen=True)
class Lesson:
    notebook: Path
    about: dict[str, Any]

    @property
    def path(self) -> str:
        return f"lessons/{self.notebook.stem}.md"

    @property
    def number(self) -> str:
        return self.notebook.stem[:2]

    @property
    def name(self) -> str:
        return f"{self.number} {self.about['title']}"

    @property
    def in_browser(self) -> bool:
        return self.about["runs_on"] == "browser"


@cache
def lessons() -> list[Lesson]:
    return [Lesson(notebook, metadata(notebook)) for notebook in find_lessons()]


def lesson_page(lesson: Lesson, known: list[Lesson], room_of: dict[str, str]) -> Page:
    """room_of: an engine file ("kvcache/block_pool.py") -> the path of its room's page."""
    page = Page("")
    parts = [front_matter(lesson), f"# {lesson.about['title']}\n"]
    parts.append(page.slot(opening(lesson, known, room_of)))
    for cell in run_lesson(lesson.notebook, CACHE):
        html = HEADER.sub("", cell.html)  # this page has a head of its own
        html = SOURCE.sub(lambda m: f'href="../{room_of[m[1]]}#{line_anchor(*m.groups())}"', html)
        parts.append(cell_markdown(page, Cell(cell.code, html)))
    page.markdown = "\n".join(parts)
    return page


def front_matter(lesson: Lesson) -> str:
    question = str(lesson.about["question"]).replace('"', "'")
    return f'---\ntitle: "{lesson.name}"\ndescription: "{question}"\n---\n'


def cell_markdown(page: Page, cell: Cell) -> str:
    code = f"\n\n``` python\n{cell.code}\n```\n\n" if cell.code else ""
    if not cell.html.strip():
        return code
    html = re.sub(r"<h1\b.*?</h1>", "", cell.html, flags=re.S)  # the title is at the top already
    return code + page.slot(f'<div class="cell">{html}</div>')


def contents(html: str) -> tuple[str, list[dict]]:
    """The page with a place to link to at each heading, and the headings for the table of
    contents, as the Markdown extension `toc` would have them."""
    title: dict = {"level": 1, "id": "", "name": "", "children": []}

    def place(match: re.Match) -> str:
        level, inside = int(match[1]), match[2].strip()
        name = re.sub(r"<[^>]+>", "", inside).strip()
        key = anchor(unescape(name))
        if level == 1:
            title.update(id=key, name=name)
            return f'<h1 id="{key}">{inside}</h1>'
        children = title["children"]
        if level == 3 and children:
            children = children[-1]["children"]
        children.append({"level": level, "id": key, "name": name, "children": []})
        link = f'<a class="headerlink" href="#{key}" title="Link to this place">#</a>'
        return f'<h{level} id="{key}">{inside}{link}</h{level}>'

    html = re.sub(r'<a class="headerlink".*?</a>', "", html)
    return re.sub(r"<h([1-3])\b[^>]*>(.*?)</h\1>", place, html, flags=re.S), [title]


def opening(lesson: Lesson, known: list[Lesson], room_of: dict[str, str]) -> str:
    """Question, facts, and the way into the live lesson."""
    about = lesson.about
    titles = {other.about["slug"]: other for other in known}
    needs = ", ".join(
        link(f"{titles[slug].notebook.stem}.html", titles[slug].about["title"])
        if slug in titles
        else escape(slug.replace("_", " "))
        for slug in about["needs"]
    )
    files = ", ".join(
        link(f"../{room_of[f]}#{anchor(f)}", f"<code>{escape(f)}</code>")
        for f in (path.removeprefix("minivllm/") for path in about["reads"])
        if f in room_of
    )
    facts = [
        ("part", escape(str(about["part"]))),
        ("takes", f"about {about['minutes']} minutes"),
        ("runs", RUNS_ON[about["runs_on"]]),
        ("needs", needs or "nothing"),
        ("reads", files),
        ("lab", where_to_write(lesson) if about["lab"] else ""),
    ]
    rows = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in facts if value)
    lead = f'<p class="lead">{escape(about["question"])}</p>'
    # A search would show the list as one long word.
    facts_list = f"<dl class='facts' data-search-exclude>{rows}</dl>"
    return f"{lead}{run_it_here(lesson, known)}{facts_list}"


def where_to_write(lesson: Lesson) -> str:
    """Where the lesson's lab can be written."""
    command = f"<code>python -m labs start {escape(lesson.about['lab'])}</code>"
    live = "in the live lesson, or in a terminal: " if lesson.in_browser else ""
    return live + command


def run_it_here(lesson: Lesson, known: list[Lesson]) -> str:
    """The way into the live lesson, which knows its page's name and where to go on."""
    if not lesson.in_browser:
        return ""
    stem = lesson.notebook.stem
    onward = next((one for one in known if one.number > lesson.number), None)
    data = {"title": lesson.name}
    if onward:
        data |= {"next": f"{onward.notebook.stem}.html", "next-title": onward.name}
    told = " ".join(f'data-{key}="{escape(value)}"' for key, value in data.items())
    return (
        f'<div class="run" data-search-exclude><a class="button first" '
        f'href="../run/{stem}/index.html" {told}>Run it here</a>'
        "<p>The whole lesson, live: Python starts in this page (about 20 MB, once), its code can "
        "be changed, and the lab is checked here too. Below is the lesson as it was computed when "
        "the site was built.</p></div>"
    )


def link(target: str, text: str) -> str:
    return f'<a href="{escape(target)}">{text}</a>'


def anchor(file: str) -> str:
    """Where a file begins on its room's page."""
    return re.sub(r"[^a-z0-9]+", "-", file.lower()).strip("-")


def line_anchor(file: str, line: str) -> str:
    """Where a line of a file stands there, as pymdownx.highlight names it."""
    return f"__codelineno-{anchor(file)}-code-{line}"


def lessons_list(known: list[Lesson], base: str) -> str:
    """An HTML list, by number. base: the way from the page to lessons/, with its slash."""
    return f'<ol class="lessons">{"".join(list_item(lesson, base) for lesson in known)}</ol>'


def list_item(lesson: Lesson, base: str) -> str:
    about = lesson.about
    where = "runs in the browser" if lesson.in_browser else "runs on your machine"
    title = link(f"{base}{lesson.notebook.stem}.html", escape(about["title"]))
    return (
        f'<li><span class="num">{lesson.number}</span><div><h3>{title}</h3>'
        f"<p>{escape(about['question'])}</p>"
        f'<p class="facts">{escape(about["part"])} · {about["minutes"]} minutes · {where}</p>'
        "</div></li>"
    )
