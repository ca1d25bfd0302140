"""Lessons run: the code that each notebook shows, and what it computes.

`python site/notebooks.py NOTEBOOK` runs one and prints it as JSON: a lesson runs in a process of
its own, and what it leaves behind ends with it.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from repository import VARIABLE

ROOT = Path(__file__).resolve().parent.parent
CELLS = ("cell", "function", "class_definition")  # marimo's decorators


@dataclass(frozen=True)
class Cell:
    """code: "" where the notebook hides it. html: what it computed, "" for nothing."""

    code: str
    html: str


def find_lessons(folder: Path = ROOT / "lessons") -> list[Path]:
    """The notebooks, in order. A notebook's name starts with its number."""
    return sorted(p for p in folder.glob("[0-9][0-9]_*.py"))


def run_lesson(notebook: Path, cache: Path) -> list[Cell]:
    """The cells in order, run top to bottom. Kept in `cache` until the notebook, the engine, the
    labs or the lessons' modules change. Raises ValueError with what the notebook raised."""
    kept = cache / f"{notebook.stem}-{digest(notebook)}.json"
    if not kept.exists():
        cache.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, __file__, str(notebook.resolve())]
        env = {**os.environ, VARIABLE: "source:{path}:{line}"}  # lessons/show.py links source by it
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=env)
        if done.returncode:
            raise ValueError(f"{notebook.name} does not run:\n{done.stderr[-3000:]}")
        for old in cache.glob(f"{notebook.stem}-*.json"):
            old.unlink()
        kept.write_text(done.stdout.splitlines()[-1], encoding="utf-8")
    return [Cell(**cell) for cell in json.loads(kept.read_text(encoding="utf-8"))]


def digest(notebook: Path) -> str:
    """Of all that the notebook's outputs depend on."""
    found = hashlib.sha256(notebook.read_bytes())
    folders = [ROOT / "minivllm", ROOT / "labs", ROOT / "lessons", Path(__file__).parent]
    for folder in folders:
        for path in sorted(folder.glob("*.py" if folder == folders[-1] else "**/*.py")):
            if "mine" not in path.parts and not re.match(r"\d\d_.*\.py", path.name):
                found.update(path.read_bytes())
    for path in sorted((ROOT / "minivllm" / "checkpoint").glob("bundled/**/*")):
        found.update(path.read_bytes() if path.is_file() else b"")
    return found.hexdigest()[:16]


def cells_of(notebook: Path) -> list[Cell]:
    """Runs the notebook in this process."""
    from marimo._output.formatting import as_html
    from static_html import static_html

    spec = importlib.util.spec_from_file_location(f"lesson_{notebook.stem}", notebook)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    outputs, _ = module.app.run()
    codes = list(visible_code(notebook))
    if len(outputs) != len(codes):
        raise ValueError(f"{notebook.name}: {len(codes)} cells, but {len(outputs)} outputs")
    return [
        Cell(code, "" if output is None else static_html(as_html(output).text))
        for code, output in zip(codes, outputs)
    ]


def visible_code(notebook: Path) -> Iterator[str]:
    """The code of each cell but the set-up, as marimo shows it; "" for a hidden one."""
    source = notebook.read_text(encoding="utf-8")
    lines = source.splitlines()
    for node in ast.parse(source).body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        marks = [ast.unparse(d) for d in node.decorator_list]
        if not any(m.startswith(tuple(f"app.{c}" for c in CELLS)) for m in marks):
            continue
        if any("hide_code=True" in m for m in marks):
            yield ""
        elif any(m.startswith("app.cell") for m in marks):
            body = lines[node.body[0].lineno - 1 : node.end_lineno]
            text = "\n".join(line.removeprefix("    ") for line in body)
            yield re.sub(r"\n?return( \(.*\)| .*)?,?\s*$", "", text).strip()
        else:
            yield "\n".join(lines[node.lineno - 1 : node.end_lineno])


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    print(json.dumps([asdict(cell) for cell in cells_of(Path(sys.argv[1]))]))
