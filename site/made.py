"""Parts of written pages that are made: a page says <div data-made="NAME"></div> where one goes."""

from __future__ import annotations

import re
import sys
from html import escape
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from engine_map import EngineMap
from engine_pages import map_list
from lesson_pages import Lesson, lessons_list
from plan import paths_list, plan_list
from repository import repository
from walk_page import walk_html

from lessons.reasons import Limits
from lessons.step_drawings import by_request
from lessons.stepping import Ask, run
from lessons.svg import figure


def fill(html: str, known: list[Lesson], base: str) -> str:
    """base: the way from the page to the site's top. Raises ValueError for an unknown name."""

    def made(match: re.Match) -> str:
        name = match[1]
        if name not in MAKERS:
            raise ValueError(f'nothing is made for data-made="{name}"')
        return MAKERS[name](known, base)

    return re.sub(r'<div data-made="([\w-]+)"></div>', made, html)


def all_lessons(known: list[Lesson], base: str) -> str:
    return lessons_list(known, f"{base}lessons/")


def hero(known: list[Lesson], base: str) -> str:
    """Six requests under the real scheduler: what the whole course is about, in one picture."""
    asks = [Ask("Ada", 1, 24, 9), Ask("Ben", 1, 8, 12), Ask("Cem", 3, 40, 6), Ask("Dee", 4, 6, 10),
            Ask("Eva", 7, 20, 7), Ask("Flo", 9, 6, 8)]  # fmt: skip
    done = run(asks, Limits(places=4, budget=24, blocks=16, block_size=8, max_chunk=16))
    drawn = by_request(
        done,
        len(done.steps),
        title="Six requests in one engine, step by step",
        caption="Six requests in the course's own engine. A prompt is read many tokens at a time "
        "(prefill); then each step writes one token more for everybody at once (decode). Numbers "
        "are tokens; w: it waits for one of four places. Planned by the real scheduler.",
    )
    return figure(drawn)


def engine_map(known: list[Lesson], base: str) -> str:
    return figure(EngineMap()) + map_list(known)


def walk(known: list[Lesson], base: str) -> str:
    return walk_html()


def get(known: list[Lesson], base: str) -> str:
    """What a reader types first: how to come by the course, where the build knows that."""
    address, commands = repository(), "make learn"
    if address:
        said = ""
        commands = f"git clone {address} minivllm && cd minivllm\n{commands}"
    else:
        said = (
            "<p>The course is one folder. Get it from whoever gave you this site, as a clone of "
            "its repository or as an archive, and open a terminal in it. Then:</p>"
        )
    return f'{said}<div class="highlight"><pre><code>{escape(commands)}\n</code></pre></div>'


MAKERS = {
    "lessons": all_lessons,
    "hero": hero,
    "map": engine_map,
    "walk": walk,
    "paths": paths_list,
    "plan": plan_list,
    "get": get,
}
