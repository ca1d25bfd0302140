"""The learner's engine beside the reference, in a lesson's own process.

`engine` composes the bodies of all labs that have passed into a package of its own, as
`python -m labs mine` does, and imports from it. Both engines are there at once, so a switch may
choose between them.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import marimo as mo

from labs.compose import PACKAGE, Answer, compose
from labs.learner import MINE, Learner
from labs.manifest import find_lab

from .lab_page import LabState


class Engine:
    """One of the two engines. `Engine()("kvcache.block_pool.BlockPool")`: the reference's class."""

    def __init__(self, package: str = "minivllm", folder: Any = None) -> None:
        self.package = package
        self._folder = folder  # lives as long as the engine may import from it

    @property
    def is_mine(self) -> bool:
        return self.package != "minivllm"

    @property
    def name(self) -> str:
        """For a caption."""
        return "your code" if self.is_mine else "the reference"

    def __call__(self, path: str) -> Any:
        """What stands at a path within the package: a class, a function or a module."""
        module, _, name = path.rpartition(".")
        try:
            return importlib.import_module(f"{self.package}.{path}")
        except ModuleNotFoundError:
            return getattr(importlib.import_module(f"{self.package}.{module}"), name)


def use_my_code(state: LabState) -> Any:
    """A switch for a cell of its own. It is on once the lab has passed; before that it cannot do
    anything, and says why."""
    label = {
        "passed": "use my code (the lab has passed)",
        "under way": "use my code (from when the lab passes; the reference runs)",
    }.get(state.status, "use my code (once you have built it; the reference runs)")
    return mo.ui.switch(value=state.passed, label=label, disabled=not state.passed)


def engine(mine: bool, state: LabState, folder: Path = MINE) -> Engine:
    """The learner's engine if it is wanted and the lab has passed, else the reference. mine: the
    switch's value."""
    if not mine:
        return Engine()
    learner = Learner(folder, say=lambda text: None)
    answers: dict[str, list[Answer]] = {}
    for info in learner.labs:
        for file, own in learner.passed_answers(info).items():
            answers.setdefault(file, []).extend(own)
    held = {hole.file for hole in find_lab(state.slug, learner.labs).holes}
    return composed(_frozen(answers)) if held & set(answers) else Engine()


def _frozen(answers: Mapping[str, Sequence[Answer]]) -> tuple:
    return tuple((file, tuple(own)) for file, own in sorted(answers.items()))


@lru_cache(maxsize=16)
def composed(answers: tuple[tuple[str, tuple[Answer, ...]], ...]) -> Engine:
    """An engine with these answers in it, under a name of its own: what was imported from an
    earlier one stays what it was."""
    package = f"{PACKAGE}_{hashlib.sha256(repr(answers).encode()).hexdigest()[:8]}"
    folder = tempfile.TemporaryDirectory(prefix="mine-")
    target = Path(folder.name).resolve()
    compose(target, dict(answers), package=package, lend_compiled=True)
    sys.path.append(str(target))
    importlib.invalidate_caches()
    return Engine(package, folder)
