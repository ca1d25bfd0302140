"""The walk: a real request, recorded while the site is built, as stops to step through."""

from __future__ import annotations

from functools import cache
from html import escape

from lessons.rooms import CSS, card, rooms_svg, twin
from lessons.svg import table
from lessons.walk import record
from minivllm.entrypoints.llm import LLM
from minivllm.sampling_params import SamplingParams

PROMPT = "Once upon a time"
NUM_TOKENS = 4
PLAIN = "executor.plain.PlainExecutor"


@cache
def walk_html() -> str:
    """Every stop, one below the other. assets/site.js shows one at a time; print shows all."""
    llm = LLM("tiny", executor=PLAIN)
    walk = record(llm, PROMPT, SamplingParams(temperature=0, max_tokens=NUM_TOKENS))
    stops = "".join(
        f'<section class="tt-walk" aria-label="stop {index + 1}">'
        f"<div>{rooms_svg(walk, index)}</div>{card(walk, index)}</section>"
        for index in range(len(walk.stops))
    )
    heading, rows = twin(walk)
    every = table(heading, rows, f"One request, {escape(PROMPT)!r}, door by door")
    return (
        f'<style>{CSS}</style><div class="walk" data-stops="{len(walk.stops)}">{stops}</div>'
        f'<details class="tt-twin"><summary>all stops as a table</summary>'
        f'<div class="tt-scroll" tabindex="0">{every}</div></details>'
    )
