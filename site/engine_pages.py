"""The engine map and a page for each room, made from the sources and the import table that
tests/test_floor_plan.py keeps.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from functools import cache
from html import escape
from pathlib import Path

from lesson_pages import Lesson, anchor
from repository import source_url

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.test_floor_plan import FILES, TREES, imports, is_control  # noqa: E402

TOP = "minivllm"  # the room of the files at the top
# The way of one request, in the order of the floor plan's drawing.
ORDER = (
    "entrypoints", "tokenizer", "engine", "scheduler", "kvcache", "metrics", TOP, "executor",
    "checkpoint", "worker", "models", "layers", "kernels", "sample", "quantization", "bench",
    "commands",
)  # fmt: skip


@cache
def users() -> dict[str, list[str]]:
    """File -> the files that import it."""
    found: dict[str, list[str]] = {name: [] for name in FILES}
    for name in FILES:
        for other in imports(name)[0]:
            found[other].append(name)
    return found


def room(name: str) -> str:
    return name.split("/")[0] if "/" in name else TOP


def rooms() -> dict[str, list[str]]:
    """Room -> its files, both in reading order. A room that ORDER does not know comes last."""
    found = defaultdict(list)
    for name in FILES:
        found[room(name)].append(name)
    known = [r for r in ORDER if r in found]
    return {r: found[r] for r in known + sorted(found.keys() - set(known))}


def own_files(name: str) -> list[str]:
    """A room's files, without those that only open the package."""
    return [file for file in rooms()[name] if not file.rpartition("/")[2].startswith("__")]


def room_paths() -> dict[str, str]:
    """An engine file ("kvcache/block_pool.py") -> its room's page in the site."""
    return {f"{name}.py": f"engine/{room(name)}.html" for name in FILES}


def first_line(node: ast.AST) -> str:
    """The first sentence of a docstring, on one line."""
    text = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
    end = text.find(". ")
    return text[: end + 1] if end > 0 else text


def room_says(name: str) -> str:
    """What a room is for, in its own words."""
    if name == TOP:
        return "What all rooms share: settings, messages, a request, chance."
    return first_line(TREES[f"{name}/__init__"])


def lessons_of(known: list[Lesson]) -> dict[str, list[Lesson]]:
    """Engine file -> the lessons that read it."""
    found = defaultdict(list)
    for lesson in known:
        for path in lesson.about["reads"]:
            found[path.removeprefix("minivllm/")].append(lesson)
    return found


def links_to(lessons: list[Lesson], base: str) -> str:
    return ", ".join(
        f'<a href="{base}lessons/{one.notebook.stem}.html">{one.number} '
        f"{escape(one.about['title'])}</a>"
        for one in lessons
    )


def map_list(known: list[Lesson]) -> str:
    """HTML: the rooms, what each is for, its files, and the lessons that are about it."""
    readers = lessons_of(known)
    out = []
    for name, files in rooms().items():
        real = own_files(name)
        num_lines = sum(FILES[f].read_text(encoding="utf-8").count("\n") for f in files)
        here = {one.number: one for f in files for one in readers.get(f"{f}.py", ())}
        num_files = f"{len(real)} file{'s' * (len(real) != 1)}"
        facts = f"{num_files}, {num_lines:,} lines · {HALVES[half(real)]}"
        taught = links_to([here[n] for n in sorted(here)], "../")
        names = ", ".join(
            f'<a href="{name}.html#{anchor(f + ".py")}"><code>{f.rpartition("/")[2]}.py</code></a>'
            for f in real
        )
        out.append(
            f'<li id="{name}"><h3><a href="{name}.html">{name}</a></h3>'
            f"<p>{escape(room_says(name))}</p><p class='source'>{names}</p>"
            f"<p class='facts'>{facts}{' · lesson ' + taught if taught else ''}</p></li>"
        )
    return f'<ul class="rooms">{"".join(out)}</ul>'


HALVES = {"decides": "decides", "computes": "computes", "door": "some decide, some compute"}


def half(files: list[str]) -> str:
    """decides, computes, or door: some of the files do the one, some the other."""
    control = [is_control(file) for file in files]
    return "decides" if all(control) else "door" if any(control) else "computes"


def room_page(name: str, files: list[str], known: list[Lesson]) -> str:
    """Markdown: each file of the room with what it owns, what it holds, who uses it, its source."""
    readers = lessons_of(known)
    lines = [f"---\ntitle: {name}\n---\n", f"# `{name}`\n", f"{room_says(name)}\n"]
    for file in files:
        if len(TREES[file].body) > 1:  # not an __init__ of one docstring
            lines.append(file_section(file, readers.get(f"{file}.py", [])))
    return "\n".join(lines)


def file_section(file: str, readers: list[Lesson]) -> str:
    source = FILES[file].read_text(encoding="utf-8")
    held = [
        f"* `{node.name}` {escape(first_line(node))}"
        for node in TREES[file].body
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_")
        and ast.get_docstring(node)
    ]  # fmt: skip
    facts = [f"{source.count(chr(10))} lines"]
    if users()[file]:
        facts.append("used by " + ", ".join(file_link(user) for user in users()[file]))
    if readers:
        facts.append(f"lesson {links_to(readers, '../')}")
    if url := source_url():
        there = url.format(path=f"minivllm/{file}.py", line=1)
        facts.append(f'<a href="{escape(there)}">in the repository</a>')
    key = anchor(f"{file}.py")
    return "\n".join([
        f"## `{file}.py` {{ #{key} }}\n",
        f"{escape(first_line(TREES[file]))}\n",
        *held,
        f"\n<p class='facts'>{' · '.join(facts)}</p>\n",
        f'<details class="source" id="{key}-source" markdown data-search-exclude>',
        "<summary>source</summary>\n",
        f'``` {{ .python linenums="1" id="{key}-code" }}\n{source}```\n',
        "</details>\n",
    ])  # fmt: skip


def file_link(name: str) -> str:
    return f'<a href="{room(name)}.html#{anchor(name + ".py")}"><code>{name}.py</code></a>'
