"""Lessons that run in the browser: each exported as an editable marimo page beside one bundle."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bundle import bundle

SELF_HOSTED = (
    'data-pyodide-index-url="../python/pyodide/" '
    'data-pyodide-lockfile-url="../python/pyodide/pyodide-lock.json" '
    'data-pypi-index-url="../python/packages/"'
)
# The page around it hands its colour scheme over; alone, the page follows the system.
THEME = '"theme": new URLSearchParams(location.search).get("theme") || "system"'


def export_live(lessons: Sequence[Path], folder: Path) -> None:
    """Writes folder/SLUG/index.html for each notebook, and what they share beside them."""
    shutil.rmtree(folder, ignore_errors=True)
    bundle(folder / "python")
    for lesson in lessons:
        with tempfile.TemporaryDirectory() as place:
            out = Path(place) / "out"
            export(lesson, Path(place), out)
            share_assets(out, folder)
            page = self_hosted((out / "index.html").read_text(encoding="utf-8"))
            target = folder / lesson.stem
            target.mkdir()
            (target / "index.html").write_text(page, encoding="utf-8")


def export(lesson: Path, place: Path, out: Path) -> None:
    """marimo's own export, of a copy: beside our pyproject.toml it would pack the engine again."""
    copy = place / lesson.name
    shutil.copyfile(lesson, copy)
    command = [sys.executable, "-m", "marimo", "export", "html-wasm", copy, "--output", out]
    command += ["--mode", "edit", "--no-sandbox", "--force"]
    # marimo asks for uv on the path, even where it finds nothing to pack.
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    env = {**os.environ, "PATH": path}
    done = subprocess.run(
        [str(c) for c in command], capture_output=True, text=True, cwd=place, env=env
    )
    if done.returncode:
        raise ValueError(f"{lesson.name} cannot be exported:\n{done.stdout}{done.stderr}")


def share_assets(out: Path, folder: Path) -> None:
    """marimo's front end is the same for every lesson, and named by its content."""
    shutil.copytree(out / "assets", folder / "assets", dirs_exist_ok=True)
    for name in ("favicon.ico", "manifest.json"):
        if (out / name).exists():
            shutil.copyfile(out / name, folder / name)


def self_hosted(page: str) -> str:
    """The exported page with Python from here, run at once, in the colours of its surroundings."""
    for old, new in (
        ('<marimo-wasm hidden="">', f'<marimo-wasm hidden="" {SELF_HOSTED}>'),
        ('"auto_instantiate": false', '"auto_instantiate": true'),
        ('"theme": "light"', THEME),
    ):
        if old not in page:
            raise ValueError(f"marimo's page has no {old!r} any more")
        page = page.replace(old, new)
    extra = (Path(__file__).parent / "run_page.html").read_text(encoding="utf-8")
    page = page.replace("</head>", f"{extra}</head>", 1)
    page = re.sub(r'(href|src)="\./', r'\1="../', page)
    return re.sub(r'<link rel="(apple-touch-icon|manifest)"[^>]*>', "", page)
