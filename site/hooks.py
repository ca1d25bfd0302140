"""What mkdocs calls while it builds: pages that are made, not written, and what all pages get.

Adds lessons, engine, glossary, tables and the pages that live elsewhere in the repository; fills
slots, marks the glossary's words, sets formulas.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File
from mkdocs.structure.toc import get_toc

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import calculators  # noqa: E402
import elsewhere  # noqa: E402
import engine_pages  # noqa: E402
import lesson_pages  # noqa: E402
import made  # noqa: E402
import words  # noqa: E402
from fetch import NODE_MODULES  # noqa: E402
from repository import repository  # noqa: E402
from typeset import typeset  # noqa: E402

from lessons.look import css  # noqa: E402

SLOTS: dict[str, list[str]] = {}  # page -> what goes into its slots
WAYS = [("Lessons", "lessons/index.html"), ("Engine", "engine/index.html"),
        ("Calculators", "calculators.html"), ("Glossary", "glossary.html")]  # fmt: skip
SCROLL = '<div class="scroll" tabindex="0">'
FONTS = {  # file in the package, family, weight, style
    "@fontsource-variable/source-serif-4/files/source-serif-4-latin-wght-normal.woff2":
        ("Source Serif 4 Variable", "200 900", "normal"),
    "@fontsource-variable/source-serif-4/files/source-serif-4-latin-wght-italic.woff2":
        ("Source Serif 4 Variable", "200 900", "italic"),
    "@fontsource/ibm-plex-sans/files/ibm-plex-sans-latin-400-normal.woff2":
        ("IBM Plex Sans", "400", "normal"),
    "@fontsource/ibm-plex-sans/files/ibm-plex-sans-latin-600-normal.woff2":
        ("IBM Plex Sans", "500 700", "normal"),
    "@fontsource/ibm-plex-mono/files/ibm-plex-mono-latin-400-normal.woff2":
        ("IBM Plex Mono", "400", "normal"),
    "@fontsource/ibm-plex-mono/files/ibm-plex-mono-latin-600-normal.woff2":
        ("IBM Plex Mono", "500 700", "normal"),
}  # fmt: skip


def on_config(config: Any) -> Any:
    config.extra["ways"] = WAYS
    config.extra["repository"] = repository()
    known = lesson_pages.lessons()
    parts: dict[str, list] = {}
    for lesson in known:
        parts.setdefault(f"Part {lesson.about['part']}", []).append(lesson.path)
    rooms = [{name: f"engine/{name}.md"} for name in engine_pages.rooms()]
    config.nav = [
        {"Home": "index.md"},
        {"Begin": [{"Set-up": "setup.md"}, {"Paths": "paths.md"}]},
        {"Lessons": ["lessons/index.md", *({part: pages} for part, pages in parts.items())]},
        {"Engine": ["engine/index.md", {"The walk": "walk.md"}, {"Rooms": rooms}]},
        {"At hand": [
            {"Calculators": "calculators.md"},
            {"Cheat-sheet: memory": "cheat-memory.md"},
            {"Glossary": "glossary.md"},
            *({page.title: page.path} for page in elsewhere.tables()),
        ]},
        {"More": [
            *({page.title: page.path} for page in elsewhere.documents()),
            {"About": "about.md"},
        ]},
    ]  # fmt: skip
    return config


def on_files(files: Any, config: Any) -> Any:
    """Adds what is made."""
    SLOTS.clear()
    known = lesson_pages.lessons()
    room_of = engine_pages.room_paths()

    def add(path: str, content: str, slots: list[str] | None = None) -> None:
        SLOTS[path] = slots or []
        files.append(File.generated(config, path, content=content))

    for lesson in known:
        page = lesson_pages.lesson_page(lesson, known, room_of)
        add(lesson.path, page.markdown, page.slots)
    for name, names in engine_pages.rooms().items():
        add(f"engine/{name}.md", engine_pages.room_page(name, names, known))
    add("glossary.md", words.glossary_page(room_of))
    for document in (*elsewhere.tables(), *elsewhere.documents()):
        add(document.path, document.markdown)
    files.append(File.generated(config, "assets/drawing.css", content=css()))
    files.append(File.generated(config, "assets/fonts.css", content=fonts_css()))
    files.append(File.generated(config, "assets/calculators-data.js", content=calculators.data()))
    for target, source in {**vendored(), **elsewhere.pictures()}.items():
        files.append(File.generated(config, target, abs_src_path=str(source)))
    return files


def vendored() -> dict[str, Path]:
    """Files of npm packages that pages load: their place in the site -> where they are."""
    katex = NODE_MODULES / "katex" / "dist"
    found = {"assets/vendor/iframe-worker.js": NODE_MODULES / "iframe-worker/shim/index.js",
             "assets/vendor/katex/katex.min.css": katex / "katex.min.css"}  # fmt: skip
    for font in sorted((katex / "fonts").glob("*.woff2")):
        found[f"assets/vendor/katex/fonts/{font.name}"] = font
    for name in FONTS:
        found[f"assets/vendor/fonts/{Path(name).name}"] = NODE_MODULES / name
    return found


def fonts_css() -> str:
    return "\n".join(
        f'@font-face{{font-family:"{family}";font-weight:{weight};font-style:{style};'
        f"font-display:swap;src:url(vendor/fonts/{Path(name).name}) format('woff2')}}"
        for name, (family, weight, style) in FONTS.items()
    )


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    path = page.file.src_uri
    slots = SLOTS.get(path, [])
    base = "../" * path.count("/")
    html = re.sub(r'<div data-slot="(\d+)"></div>', lambda m: slots[int(m[1])], html)
    html = made.fill(html, lesson_pages.lessons(), base)
    if slots:
        html, headings = lesson_pages.contents(html)
        page.toc = get_toc(headings)
    if path not in ("index.md", "glossary.md"):
        html = words.mark_words(html, base)
    return typeset(plain_tables(html))


def plain_tables(html: str) -> str:
    """A table that is too wide scrolls by itself, with the keyboard too. Those of the drawings
    already do."""

    def scrolls(match: re.Match) -> str:
        table = f'<table class="plain">{match[2]}</table>'  # one without a class the theme wraps
        return match[1] + table if match[1] else f"{SCROLL}{table}</div>"

    return re.sub(r'(class="tt-scroll"[^>]*>)?<table>(.*?)</table>', scrolls, html, flags=re.S)
