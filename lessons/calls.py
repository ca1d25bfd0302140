"""What a hole may call: functions of the engine, each with what it is for, from source."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Mapping

WIDTH = 70


def calls(functions: Mapping[str, Callable]) -> str:
    """Each call as Python, and the first lines of its docstring as comments. functions: by how
    they are reached from where they are called, "self.scheduler.schedule". What may be None is
    left out of a signature."""
    return "\n".join(_call(name, function) for name, function in functions.items())


def _call(name: str, function: Callable) -> str:
    signature = inspect.signature(function)
    given = [p.name for p in signature.parameters.values() if p.default is not None]
    text = f"{name}({', '.join(p for p in given if p != 'self')})"
    if signature.return_annotation not in (None, "None", inspect.Signature.empty):
        text += f" -> {signature.return_annotation}"
    said = (inspect.getdoc(function) or "").partition("\n\n")[0]
    lines = textwrap.wrap(said, WIDTH, initial_indent="    # ", subsequent_indent="    # ")
    return "\n".join([text, *lines])
