"""What the home page tells: the lessons there are, what is done, and what is next.

A lesson says what it is in a dict of its notebook (lessons/show.py has the contract), which is read
here without running the notebook.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

from labs.manifest import LabInfo, all_labs
from labs.progress import LabProgress, Progress

from ..show import metadata
from .notebooks import LESSONS
from .places import Place, Places

ROOT = LESSONS.parent
MINE = ROOT / "labs" / "mine"


@dataclass(frozen=True)
class Lesson:
    """What a notebook says of itself. name: its file's, without `.py`."""

    name: str
    number: int
    slug: str
    title: str
    part: str
    question: str
    minutes: int
    lab: str  # its slug, "" for none


@dataclass
class Entry:
    """A lesson and its lab, and how far the reader is in both. `lesson` is None where a lab
    stands alone."""

    part: str
    lesson: Lesson | None
    lab: LabInfo | None
    place: Place
    progress: LabProgress
    is_started: bool  # the lab's starter is written
    is_next: bool = False

    @property
    def is_done(self) -> bool:
        """The lab has passed; where there is none, the lesson was read to its end."""
        return bool(self.progress.passed) if self.lab else self.is_read

    @property
    def stage(self) -> str:
        """done | begun | new"""
        is_begun = self.place.opened or self.is_started
        return "done" if self.is_done else "begun" if is_begun else "new"

    @property
    def number(self) -> int:
        return self.lesson.number if self.lesson else self.lab.number

    @property
    def is_read(self) -> bool:
        return 0 < self.place.num_acts == self.place.furthest

    @property
    def lesson_status(self) -> str:
        if not self.place.opened:
            return ""
        if self.is_read:
            return "read to the end"
        if self.place.furthest:
            return f"read to act {self.place.furthest} of {self.place.num_acts}"
        return "opened"

    @property
    def lab_status(self) -> str:
        if self.progress.passed:
            return "passed"
        if self.progress.skipped:
            return "skipped"
        if not self.is_started:
            return ""
        return f"{self.progress.num_passing} tests pass" if self.progress.num_passing else "started"

    @property
    def command(self) -> str:
        """What to type next for the lab."""
        if self.lab is None:
            return ""
        verb = "diff" if self.is_done else "check" if self.is_started else "start"
        return f"python -m labs {verb} {self.lab.slug}"


@dataclass
class State:
    """Everything on the page. next: where to go on, None when all is done."""

    entries: list[Entry]
    next: Entry | None
    notice: str = ""  # about a file of progress that could not be read
    root: Path = field(default=ROOT)

    @property
    def parts(self) -> list[tuple[str, list[Entry]]]:
        names = list(dict.fromkeys(entry.part for entry in self.entries))
        return [(name, [e for e in self.entries if e.part == name]) for name in names]

    @property
    def num_done(self) -> int:
        return sum(entry.is_done for entry in self.entries)


class Course:
    """The lessons of a folder and one reader's progress; read anew at each question."""

    def __init__(self, folder: Path = LESSONS, mine: Path = MINE) -> None:
        self.folder, self.mine = folder, mine

    def lessons(self) -> list[Lesson]:
        return [read_lesson(path) for path in sorted(self.folder.glob("[0-9][0-9]_*.py"))]

    def places(self) -> Places:
        return Places(self.mine)

    def state(self) -> State:
        labs, progress, places = all_labs(), Progress(self.mine), self.places()
        by_slug = {lab.slug: lab for lab in labs}
        entries = []
        for lesson in self.lessons():
            entries.append(self.entry(lesson, by_slug.pop(lesson.lab, None), progress, places))
        entries += [self.entry(None, lab, progress, places) for lab in by_slug.values()]
        entries.sort(key=lambda entry: entry.number)
        upcoming = choose_next(entries, places.latest())
        if upcoming:
            upcoming.is_next = True
        return State(entries, upcoming, progress.notice)

    def entry(
        self, lesson: Lesson | None, lab: LabInfo | None, progress: Progress, places: Places
    ) -> Entry:
        place = places[lesson.name] if lesson else Place()
        done = progress.labs.get(lab.slug, LabProgress()) if lab else LabProgress()
        is_started = lab is not None and (self.mine / lab.folder.name).is_dir()
        return Entry(lesson.part if lesson else lab.part, lesson, lab, place, done, is_started)


def read_lesson(path: Path) -> Lesson:
    """Raises ValueError, naming the notebook, if it does not say what it is."""
    said = metadata(path)
    return Lesson(path.stem, **{f.name: said[f.name] for f in fields(Lesson) if f.name != "name"})


def choose_next(entries: Sequence[Entry], latest: str | None) -> Entry | None:
    """The lesson opened last if it is not done, else the first that is not."""
    open_ones = [e for e in entries if e.lesson and not e.is_done and not e.progress.skipped]
    started = [e for e in open_ones if e.lesson.name == latest]
    return next(iter(started + open_ones), None)
