"""Runs one notebook from top to bottom: `python run_lesson.py NOTEBOOK RESULT`. RESULT gets, as
JSON, the HTML of what each cell shows, and the names under which the lesson holds an engine of the
reader's. Ends with an error where a cell does."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import marimo as mo

from lessons.my_code import Engine


def main(notebook: str, result: str) -> None:
    spec = importlib.util.spec_from_file_location("lesson", notebook)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    outputs, defined = module.app.run()
    shown = [mo.as_html(output).text for output in outputs if output is not None]
    mine = [name for name, value in defined.items() if isinstance(value, Engine) and value.is_mine]
    Path(result).write_text(json.dumps({"shown": shown, "mine": mine}), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
