"""A lesson's lab: in the browser it is solved in the page and checked by the same tests; on the
reader's machine the page says what to type, and looks again when asked.

    lab_page = lab_in_page("paged_blocks")            # a control, in a cell of its own
    lab = lab_result("paged_blocks", lab_page.value)  # what came of it; shows itself
    mine = use_my_code(lab)                           # a switch (my_code.py)
    chosen = engine(mine.value, lab)

What is typed in the page goes into the browser's copy of labs/mine, so everything else finds it
there as it does on a machine. It is gone when the page is closed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from textwrap import dedent
from typing import Any

import marimo as mo

from labs import browser, report
from labs.compose import written_holes
from labs.holes import Hole, find, first_line, parse, split_lines, strip
from labs.learner import MINE, Learner
from labs.manifest import ENGINE, LabInfo, find_lab
from labs.progress import digest
from labs.runner import Outcome

from . import svg
from .narrow import WIDTH, narrow
from .svg import tag

IN_BROWSER = sys.platform == "emscripten"
YOURS = "your code"  # as a failure names what was typed


@dataclass(frozen=True)
class LabState:
    """What a lesson knows of its lab. html: what the page shows of it."""

    slug: str
    status: str  # not started | under way | passed
    html: str = ""

    @property
    def passed(self) -> bool:
        return self.status == "passed"

    def _mime_(self) -> tuple[str, str]:
        return "text/html", self.html


def lab_in_page(slug: str, in_browser: bool = IN_BROWSER) -> Any:
    """A control for a cell of its own. In the browser: an editor with the holes to fill, and a
    button that checks them. Elsewhere: a button that looks again."""
    if not in_browser:
        return mo.ui.button(
            value=0, on_click=lambda n: n + 1, label="I have checked it: look again"
        )
    info = find_lab(slug, Learner(MINE).labs)
    label = (
        f"The lab {slug}: write the bodies that are missing. **A reload of this page forgets what "
        f"you wrote**: keep a copy of it elsewhere before you close the page."
    )
    editor = mo.ui.code_editor(starter(info), language="python", min_height=260, label=label)
    return editor.form(submit_button_label="Check my code", bordered=False)


def lab_result(slug: str, value: Any, in_browser: bool = IN_BROWSER) -> LabState:
    """How the lab stands. value: the control's; a text is checked."""
    learner = Learner(MINE, say=lambda text: None)
    info = find_lab(slug, learner.labs)
    if in_browser and isinstance(value, str):
        return check_text(learner, info, value)
    shown = "" if in_browser else commands(learner, info)
    return LabState(slug, status_of(learner, info), shown)


def lab_command(slug: str) -> str:
    """What a reader types to have the lab checked."""
    return f"python -m labs check {slug}"


def status_of(learner: Learner, info: LabInfo) -> str:
    if learner.passed_answers(info):
        return "passed"
    return "under way" if learner.has_started(info) else "not started"


def commands(learner: Learner, info: LabInfo) -> str:
    """What to type on a machine of one's own, and how far the lab is."""
    status, entry = status_of(learner, info), learner.progress[info.slug]
    folder = learner.shown(learner.mine / info.folder.name)
    where = "In a terminal, in the course's folder, after <code>source .venv/bin/activate</code>:"
    steps = {
        f"python -m labs start {info.slug}": f"Once: writes your files into {folder}.",
        lab_command(info.slug): "As often as you like.",
        f"python -m labs hint {info.slug}": "When you are stuck.",
    }
    under_way = f"You have started; {report.counted(entry.num_passing, 'test')} passed when you "
    under_way += "last checked."
    if entry.passed:
        under_way = "The lab had passed, and your files have changed since: check it again."
    said = {
        "passed": "The lab has passed: the pictures of this lesson may run on your code.",
        "under way": under_way,
        "not started": f"Not started yet. It takes about {info.minutes} minutes.",
    }[status]
    listed = "".join(tag("p", escape(why)) + tag("pre", escape(s)) for s, why in steps.items())
    return tag("div", tag("p", where), listed, tag("p", escape(said)), class_="tt-box")


# In the browser.


def starter(info: LabInfo) -> str:
    """The holes of a lab and nothing else: each file's, with the classes around them, as narrow
    as the page's editor."""
    parts = []
    for file in info.files:
        holes = [hole for hole in info.holes_in(file) if not hole.further]
        if not holes:
            continue
        names = [hole.name for hole in holes]
        text = (ENGINE / file).read_text(encoding="utf-8")
        stripped = strip(text, names, info.slug, info.steps)
        tree, lines = parse(stripped, file), split_lines(stripped)
        parts.append(f"# minivllm/{file}")
        classes = dict.fromkeys(name.rpartition(".")[0] for name in names)
        for class_name in classes:
            found = [find(tree, n) for n in names if n.rpartition(".")[0] == class_name]
            texts = ["".join(lines[first_line(n) - 1 : n.end_lineno]) for n in found]
            head = f"class {class_name}:\n" if class_name else ""
            parts.append(head + "\n".join(texts if class_name else map(dedent, texts)))
    made = narrow("\n\n".join(part.rstrip() for part in parts) + "\n")
    return "".join(map(_opened, split_lines(made)))


def _opened(line: str) -> str:
    """A function's head whose parameters stand on a line of their own, where it is too wide."""
    if len(line.rstrip()) <= WIDTH or not line.lstrip().startswith("def "):
        return line
    indent = line[: len(line) - len(line.lstrip())]
    start, _, rest = line.partition("(")
    parameters, _, end = rest.rpartition(")")
    return f"{start}(\n{indent}    {parameters}\n{indent}){end}"


def by_file(info: LabInfo, text: str) -> dict[str, str]:
    """The text for each engine file: holes of other files are blank lines in it, so that a line's
    number is the same everywhere. Raises ValueError for what is not Python."""
    tree = parse(text, YOURS)
    made = {}
    for file in info.files:
        lines = split_lines(text)
        away = {_top(h) for h in info.holes if h.file != file} - {
            _top(h) for h in info.holes_in(file)
        }
        for node in tree.body:
            if getattr(node, "name", None) in away:
                span = slice(first_line(node) - 1, node.end_lineno)
                lines[span] = ["\n"] * (span.stop - span.start)
        made[file] = "".join(lines)
    return made


def _top(hole: Hole) -> str:
    return hole.name.partition(".")[0]


def check_text(learner: Learner, info: LabInfo, text: str) -> LabState:
    """Check what was typed, and keep it and what came of it."""
    try:
        sources = by_file(info, text)
        outcomes = browser.check(info.slug, sources)
    except ValueError as error:
        said = tag("pre", escape(str(error)))
        return LabState(info.slug, "under way", tag("div", said, class_="tt-box", role="status"))
    for file, source in sources.items():
        learner.write(learner.path(info, file), source)
    done = written_holes(text, YOURS, [h.name for h in info.holes])
    unwritten = frozenset(h.name for h in info.holes if h.further and h.name not in done)
    texts = [learner.read(info, file) for file in info.files]
    learner.record(info, outcomes, unwritten, digest(texts))
    return LabState(info.slug, status_of(learner, info), told(learner, info, outcomes))


def told(learner: Learner, info: LabInfo, outcomes: Sequence[Outcome]) -> str:
    """A line a test, and all that the one that fails has to say."""
    failed = next((o for o in outcomes if o.status == "failed"), None)
    shown = [o for o in outcomes if o.status in ("passed", "failed")]
    lines = "".join(_line(outcome) for outcome in shown)
    if failed is None:
        end = tag("p", tag("b", escape(report.summary(info, outcomes))))
        return tag("div", lines, end, class_="tt-box", role="status")
    hint = learner.next_hint(info) if failed.wants_hint else None
    parts = [tag("p", tag("b", escape(f"{failed.number}. {failed.title}"))),
             tag("p", escape(failed.says))]  # fmt: skip
    if failed.expected is not None or failed.got is not None:
        parts.append(tag("pre", escape(report.compared(failed.expected, failed.got))))
    if failed.picture is not None:
        parts.append(svg.figure(failed.picture))
    if failed.trace:
        file, line, name = failed.trace[-1]
        where = YOURS if file in info.files else file
        parts.append(tag("p", escape(f"at line {line} of {where}, in {name}")))
    if hint:
        parts.append(_hints(info.hints[failed.test], hint[0]))
    return tag("div", lines, *parts, class_="tt-box", role="status")


def _hints(hints: Sequence[str], number: int) -> str:
    """A hint, and within a fold those that come after it, each within the one before."""
    shown = tag("p", escape(f"Hint {number} of {len(hints)}: {hints[number - 1]}"))
    if number == len(hints):
        return shown
    return shown + tag("details", tag("summary", "the next hint"), _hints(hints, number + 1))


def _line(outcome: Outcome) -> str:
    said = tag("span", escape(f"{outcome.number}. {outcome.title}"))
    status = tag("b", report.STATUS[outcome.status])
    return tag("div", said, status, class_=f"tt-test tt-{outcome.status}")
