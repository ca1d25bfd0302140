"""What the learner has done, by lab: one small readable file, `labs/mine/progress.json`.

Losing it loses little: what passed is found again by checking. A file that cannot be read, or was
written by a newer version, is kept aside under another name.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from pathlib import Path

VERSION = 1
NAME = "progress.json"


@dataclass
class LabProgress:
    """One lab. `passed` stays when files change or are reset; `digest` says what passed."""

    started: str = ""
    passed: str = ""  # when first
    digest: str = ""  # of the files that passed last
    further: list[str] = field(default_factory=list)  # further holes whose tests passed too
    skipped: bool = False
    failing: str = ""  # the test that failed last
    num_passing: int = 0  # tests before that
    hints: dict[str, int] = field(default_factory=dict)  # shown so far, by test


class Progress:
    """Every lab's progress; written whole after each change."""

    def __init__(self, mine: Path) -> None:
        self.mine = mine
        self.path = mine / NAME
        self.labs: dict[str, LabProgress] = {}
        self.notice = ""  # what the learner should be told about the file
        self._read()

    def __getitem__(self, slug: str) -> LabProgress:
        return self.labs.setdefault(slug, LabProgress())

    def save(self) -> None:
        """Written beside and moved into place, so that an interruption leaves the old one."""
        self.mine.mkdir(parents=True, exist_ok=True)
        data = {"version": VERSION, "labs": {slug: asdict(lab) for slug, lab in self.labs.items()}}
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        os.replace(new, self.path)

    def _read(self) -> None:
        if not self.path.exists():
            return
        try:
            data = json.loads(self.path.read_text(encoding="utf-8"))
            if data["version"] != VERSION:
                raise ValueError(f"it has version {data['version']}, and {VERSION} is read here")
            self.labs = {slug: read_entry(entry) for slug, entry in data["labs"].items()}
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            self.labs = {}
            aside = self.mine / f"progress.damaged-{stamp()}.json"
            os.replace(self.path, aside)
            self.notice = (
                f"{self.path.name} could not be read ({error}).\nIt is kept as {aside.name}.\n"
                f"Checking a lab again records it again."
            )


def read_entry(entry: dict) -> LabProgress:
    """Raises TypeError or ValueError for what no version wrote."""
    known = {f.name: f for f in fields(LabProgress)}
    lab = LabProgress(**{name: value for name, value in entry.items() if name in known})
    for name, blank in asdict(LabProgress()).items():
        if type(getattr(lab, name)) is not type(blank):
            raise ValueError(f"{name} is {getattr(lab, name)!r}")
    return lab


def stamp() -> str:
    return datetime.now().strftime("%Y%m%d-%H%M%S-%f")


def today() -> str:
    return datetime.now().isoformat(timespec="minutes")


def digest(texts: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]
