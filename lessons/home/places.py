"""Where the reader was: the lesson opened last, and in each the act they are at and came to.

One small readable file beside the labs' progress, `labs/mine/lessons.json`. Losing it loses
little, so one that cannot be read is begun anew.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

VERSION = 1
NAME = "lessons.json"
MARK = re.compile(r"(\d{1,3})-(\d{1,3})-(\d{1,3})")


@dataclass
class Place:
    opened: str = ""  # when last
    act: int = 0  # the heading they are at; 0: the top
    num_acts: int = 0
    furthest: int = 0  # the last heading that they ever saw

    @property
    def mark(self) -> str:
        """As the lesson's bookmark writes it: "3-8-5" is the third heading of eight, after the
        fifth was seen."""
        return f"{self.act}-{self.num_acts}-{self.furthest}"


class Places:
    """Every lesson's place, by the name of its file without `.py`."""

    def __init__(self, mine: Path) -> None:
        self.path = mine / NAME
        self.places: dict[str, Place] = {}
        try:
            data = json.loads(self.path.read_text(encoding="utf-8"))
            if data["version"] == VERSION:
                self.places = {name: read(entry) for name, entry in data["places"].items()}
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            pass

    def __getitem__(self, name: str) -> Place:
        return self.places.get(name, Place())

    def open(self, name: str) -> None:
        place = self.places.setdefault(name, Place())
        place.opened = datetime.now().isoformat(timespec="seconds")
        self.save()

    def mark(self, name: str, mark: str) -> None:
        """What a bookmark wrote; anything else changes nothing."""
        found = MARK.fullmatch(mark)
        if not found or self[name].mark == mark:
            return
        act, num_acts, furthest = map(int, found.groups())
        if not act <= furthest <= num_acts:
            return
        place = self.places.setdefault(name, Place())
        place.act, place.num_acts, place.furthest = act, num_acts, furthest
        self.save()

    def latest(self) -> str | None:
        opened = [(place.opened, name) for name, place in self.places.items() if place.opened]
        return max(opened)[1] if opened else None

    def save(self) -> None:
        """Written beside and moved into place, so that an interruption leaves the old one."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        data = {"version": VERSION, "places": {n: asdict(p) for n, p in self.places.items()}}
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        os.replace(new, self.path)


def read(entry: dict) -> Place:
    """Raises ValueError or AttributeError for what no version wrote."""
    blank = asdict(Place())
    known = {name: value for name, value in entry.items() if name in blank}
    if any(type(value) is not type(blank[name]) for name, value in known.items()):
        raise ValueError(f"not a place: {entry}")
    return Place(**known)
