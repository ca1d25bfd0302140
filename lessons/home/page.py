"""The home page as HTML: a template, the course's palette, and what the reader has done."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from minivllm.checkpoint.registry import MODELS, cached_path
from minivllm.commands.options import DEFAULT_MODEL

from ..svg import PALETTE, css
from .catalog import State

PAGES = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def home_page(state: State) -> str:
    here = str(state.root)
    model = MODELS[DEFAULT_MODEL]
    return PAGES.get_template("home.html").render(
        state=state,
        folder=f'cd "{here}"' if os.name == "nt" else f"cd {shlex.quote(here)}",
        activate=how_to_activate(),
        megabytes=0
        if Path(cached_path(DEFAULT_MODEL)).is_file()
        else round(model.wheel_bytes / 1e6),
    )


def locked_page() -> str:
    return PAGES.get_template("locked.html").render()


def how_to_activate() -> str:
    """What a terminal needs before `python` and `minivllm` are the course's own; nothing where no
    environment is in use."""
    if sys.prefix == sys.base_prefix:
        return ""
    if os.name == "nt":
        return str(Path(sys.prefix) / "Scripts" / "activate")
    return f"source {shlex.quote(str(Path(sys.prefix) / 'bin' / 'activate'))}"


def palette() -> str:
    """The course's colours as a style sheet."""
    return css()


def logo() -> str:
    """Three tokens read at once, then one written after the other."""
    light, dark = ({f"c{kind}": PALETTE[kind][i] for kind in ("prefill", "decode")} for i in (0, 1))
    read = "".join(f'<rect x="{x}" y="0" width="12" height="12" rx="2"/>' for x in (0, 16, 32))
    written = "".join(f'<rect x="{x}" y="16" width="12" height="12" rx="2"/>' for x in (32, 48, 64))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 76 28"><style>{rules(light)}'
        f"@media (prefers-color-scheme:dark){{{rules(dark)}}}</style>"
        f'<g class="cprefill">{read}</g><g class="cdecode">{written}</g></svg>'
    )


def rules(colours: dict[str, str]) -> str:
    return "".join(f".{name}{{fill:{colour}}}" for name, colour in colours.items())
