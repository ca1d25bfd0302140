"""What lessons show with: a head, engine source, pictures, guesses, quizzes, labs.

The contract of a lesson. A notebook lessons/NN_slug.py says what it is in one plain dict literal in
its setup cell. Home page, site and tests read it by `ast`, without running anything:

    with app.setup(hide_code=True):
        LESSON = {
            "number": 5,  # sorts
            "slug": "paged_blocks",  # identity; the file is lessons/05_paged_blocks.py
            "title": "Paged blocks",
            "part": "II. Memory",
            "question": "One sentence with a question mark, which a stranger understands.",
            "needs": ["kv_cache"],  # slugs of lessons, in order; [] for none
            "reads": ["minivllm/kvcache/block_pool.py"],  # engine files that it explains
            "lab": "paged_blocks",  # slug of its lab, "" for none
            "runs_on": "browser",  # browser | cpu | gpu
            "minutes": 90,  # reading and playing, without the lab
        }

Acts are headings of second rank, "## 1. The question", eight of them. Everything here works under
`marimo edit`, `marimo run`, `app.run()` and in the browser (Pyodide), with the standard library and
marimo alone. Where nobody can click (`app.run()`, from which the site's pages are made), what
waits for a guess stands in a fold. The lab's part is in lab_page.py and my_code.py.
"""

from __future__ import annotations

import ast
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from textwrap import dedent
from typing import Any

import marimo as mo

from labs.holes import first_line, parse, split_lines, strip
from labs.manifest import ENGINE, LabInfo, all_labs
from labs.progress import LabProgress, Progress

from . import bookmark, look, svg
from .calls import calls
from .lab_page import IN_BROWSER, LabState, lab_command, lab_in_page, lab_result
from .my_code import MINE, Engine, engine, use_my_code
from .quiz import quiz, quizzes
from .svg import Drawing, tag

__all__ = [
    "Engine", "LabState", "Presses", "calls_of", "column", "counters", "engine", "header",
    "lab_command", "lab_in_page", "lab_result", "lesson_link", "metadata", "picture", "predict",
    "quiz", "quizzes", "reveal", "show", "standing", "unchanged", "use_my_code",
]  # fmt: skip

KEYS = (
    "number",
    "slug",
    "title",
    "part",
    "question",
    "needs",
    "reads",
    "lab",
    "runs_on",
    "minutes",
)
RUNS_ON = {
    "browser": "in your browser, or on your machine",
    "cpu": "on your machine; no GPU is needed",
    "gpu": "on an NVIDIA GPU; elsewhere with recorded results",
}
SOURCE_URL = "MINIVLLM_SOURCE_URL"  # the variable: where source can be read, with {path} and {line}


def metadata(notebook: Path) -> dict[str, Any]:
    """The notebook's LESSON, without running it. Raises ValueError, naming the notebook, if there
    is none, or a key is missing or unknown."""
    for node in ast.walk(ast.parse(notebook.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "LESSON":
            found = ast.literal_eval(node.value)
            if wrong := set(KEYS) ^ set(found):
                raise ValueError(f"{notebook}: LESSON lacks, or should not have, {sorted(wrong)}")
            return found
    raise ValueError(f"{notebook} has no LESSON")


def header(lesson: Mapping[str, Any]) -> mo.Html:
    """The lesson's head, and the styles that all the rest needs."""
    name = f"{lesson['number']:02}_{lesson['slug']}"
    facts = {
        "needs": ", ".join(s.replace("_", " ") for s in lesson["needs"]) or "nothing before it",
        "takes": f"about {lesson['minutes']} minutes, and then the lab",
        "runs": RUNS_ON[lesson["runs_on"]],
        "reads": ", ".join(f"<code>{escape(path)}</code>" for path in lesson["reads"]),
        "lab": f"<code>{escape(lesson['lab'])}</code>" if lesson["lab"] else "none",
    }
    if mo.app_meta().mode == "edit":
        facts["is"] = "a notebook: point to a text or a picture, and the code behind it shows"
    listed = "".join(tag("dt", label) + tag("dd", fact) for label, fact in facts.items())
    part = f"Lesson {lesson['number']:02}, part {escape(lesson['part'])}"
    if home := bookmark.home_address():
        part = tag("a", "Token by Token", href=home) + ". " + part
    head = tag(
        "header",
        tag("p", part, class_="tt-part"),
        tag("h1", escape(lesson["title"])),
        tag("p", escape(lesson["question"]), class_="tt-question"),
        tag("dl", listed),
        class_="tt-head",
    )
    place = mo.iframe(bookmark.script(name), height="0").text if home else ""
    return mo.Html(f"<style>{look.css()}</style>{head}{place}")


def picture(*drawings: Drawing) -> mo.Html:
    """Drawings one below the other, each with its caption and the table of the same facts."""
    return mo.Html("".join(svg.figure(drawing) for drawing in drawings))


def column(*parts: Any) -> mo.Html:
    """Markdown, pictures and controls in one cell, with the distances of a text."""
    return mo.Html("".join(mo.as_html(part).text for part in parts))


def counters(values: Mapping[str, object]) -> mo.Html:
    """A few numbers in large print, each over what it counts."""
    made = [tag("div", tag("b", escape(str(v))), tag("span", escape(k))) for k, v in values.items()]
    return mo.Html(tag("div", tag("div", "".join(made), class_="tt-counters"), class_="tt-box"))


def show(*objects: Callable, state: LabState | None = None) -> mo.Html:
    """Source of functions and classes of the engine, as it stands there. The body of a hole is
    left out until its lab has passed; a click opens it, and says what it gives away. state: the
    lab's, so that the cell runs again when it passes."""
    shut = _shut_holes(Progress(MINE) if MINE.exists() else None)
    shown, files = "", dict.fromkeys(_file(thing) for thing in objects)
    for file in files:
        text = (ENGINE / file).read_text(encoding="utf-8")
        for thing in (t for t in objects if _file(t) == file):
            shown += _source(text, file, thing.__qualname__, shut)
        if mo.running_in_notebook():
            shown += _fold(f"all of minivllm/{file}", _python(_without_holes(text, file, "", shut)))
    return mo.Html(tag("div", shown, class_="tt-source"))


def _shut_holes(progress: Progress | None) -> dict[tuple[str, str], LabInfo]:
    """(file, function) of every hole that has not passed, and its lab."""
    shut = {}
    for lab in all_labs():
        entry = progress[lab.slug] if progress else LabProgress()
        for hole in lab.holes:
            if not entry.passed or (hole.further and hole.name not in entry.further):
                shut[hole.file, hole.name] = lab
    return shut


def _file(thing: Callable) -> str:
    return Path(inspect.getsourcefile(thing)).relative_to(ENGINE).as_posix()


def _source(text: str, file: str, name: str, shut: Mapping[tuple[str, str], LabInfo]) -> str:
    """A function or class of an engine file."""
    code, line = _cut(text, name)
    seen, _ = _cut(_without_holes(text, file, name, shut), name)
    shown = tag("p", _place(f"minivllm/{file}", line), class_="tt-where") + _python(seen)
    if seen != code:
        shown += _fold(f"show the body: it gives {name} of the lab away", _python(code))
    return shown


def _without_holes(text: str, file: str, name: str, shut: Mapping[tuple[str, str], LabInfo]) -> str:
    """The file as the labs' starters have it, as far as a function or class (or "", all) goes."""
    for (hole_file, hole), lab in shut.items():
        if hole_file == file and (not name or f"{hole}.".startswith(f"{name}.")):
            text = strip(text, [hole], lab.slug, lab.steps)
    return text


def _cut(text: str, name: str) -> tuple[str, int]:
    """A function or class by qualified name, and the line it begins at."""
    node: Any = parse(text, name)
    for part in name.split("."):
        node = [n for n in node.body if getattr(n, "name", None) == part][-1]
    lines = split_lines(text)[first_line(node) - 1 : node.end_lineno]
    return dedent("".join(lines)), first_line(node)


def _place(path: str, line: int) -> str:
    said, url = f"{path}:{line}", os.environ.get(SOURCE_URL, "")
    return tag("a", said, href=url.format(path=path, line=line)) if url else said


def _python(code: str) -> str:
    return mo.md(f"```python\n{code.rstrip()}\n```").text


def _fold(summary: str, inside: str) -> str:
    return tag("details", tag("summary", escape(summary)), inside)


def calls_of(functions: Mapping[str, Callable]) -> mo.Html:
    """What a hole may call, as `calls` writes it."""
    return mo.Html(tag("div", _python(calls(functions)), class_="tt-source"))


def unchanged(*paths: str) -> mo.Html:
    """Engine files that work with what this lesson builds, and know nothing of it."""
    listed = ", ".join(tag("code", escape(path)) for path in paths)
    return mo.Html(tag("p", f"Unchanged in this lesson: {listed}.", class_="tt-box"))


def lesson_link(name: str, text: str) -> str:
    """HTML: a text that leads to the lesson of this name ("05_paged_blocks"): by the course's home
    where the notebook was opened from it, on the site to its page. Text alone where no way is
    known."""
    if IN_BROWSER:  # not within the frame that runs this lesson
        return tag("a", escape(text), href=f"../../lessons/{name}.html", target="_top")
    if not mo.running_in_notebook():
        return tag("a", escape(text), href=f"{name}.html")
    if home := bookmark.home_address():
        return tag("a", escape(text), href=f"{home}open/{name}")
    return escape(text)


def standing(text: str) -> str:
    """What is said only on a page that stands still, since nobody can click there."""
    return "" if mo.running_in_notebook() else text


class Presses(mo.ui.button):
    """A button whose value is how often it was pressed. The browser counts, and sends its count;
    of presses that come faster than cells run, marimo passes only the last one on."""

    def __init__(self, label: str) -> None:
        super().__init__(label=label)

    def _convert_value(self, value: int) -> int:
        return value


def predict(
    question: str,
    choices: Sequence[str] = (),
    *,
    low: float = 0,
    high: float = 100,
    step: float = 1,
    start: float | None = None,
) -> Any:
    """A guess before the answer: one of the choices, or a number between low and high. A control
    for a cell of its own; its value is None until the guess is made."""
    if choices:
        return mo.ui.radio(list(choices), label=question)
    slider = mo.ui.slider(low, high, step, value=low if start is None else start, label=question,
                          show_value=True, full_width=True)  # fmt: skip
    return slider.form(submit_button_label="This is my guess", bordered=False)


def reveal(guess: Any, answer: object, because: str, *drawings: Drawing) -> mo.Html:
    """The answer, beside the guess, once there is one. guess: the control's value. because:
    Markdown. drawings: what shows it, and would give it away."""
    if guess is None and mo.running_in_notebook():
        text = "Make your guess first: the answer appears here."
        return mo.Html(tag("p", text, class_="tt-box tt-answer"))
    said = tag("p", tag("span", escape(str(answer)), class_="tt-number"))
    if guess is not None:
        said = tag("p", f"You said {escape(f'{guess}')}.") + said
    inside = tag("div", said, mo.md(because).text, class_="tt-box tt-answer")
    inside = (picture(*drawings).text if drawings else "") + inside
    return mo.Html(inside if guess is not None else _fold("the answer", inside))
