"""What a lab is: its holes, steps, hints and points, read from `labs/NN_slug/lab.toml`."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from .holes import Hole, body_text, strip, written_holes

LABS = Path(__file__).parent
ROOT = LABS.parent
ENGINE = ROOT / "minivllm"
UNPUBLISHED = LABS / "unpublished" / "wrong"  # outside of every lab, so that no package has it

FIELDS = {
    "slug", "title", "part", "lesson", "runs_on", "minutes", "holes", "further", "steps", "hints",
    "points", "hunts",
}  # fmt: skip


@dataclass(frozen=True)
class LabInfo:
    """One lab. `slug` is its identity; the number only sorts."""

    folder: Path
    slug: str
    title: str
    part: str
    holes: tuple[Hole, ...]  # core first, then those marked further
    lesson: str = ""
    runs_on: str = "browser"  # browser | cpu | gpu
    minutes: int = 60
    steps: dict[str, list[str]] = field(default_factory=dict)  # by hole
    hints: dict[str, list[str]] = field(default_factory=dict)  # by test
    points: dict[str, int] = field(default_factory=dict)  # by test; 1 where not said
    hunts: dict[str, str] = field(
        default_factory=dict
    )  # by hole: a file with a wrong body, to mend

    @property
    def number(self) -> int:
        return int(self.folder.name.partition("_")[0])

    @property
    def test_file(self) -> Path:
        return self.folder / f"test_{self.folder.name}.py"

    @cached_property
    def files(self) -> tuple[str, ...]:
        """The engine's files that hold holes, in order of the holes."""
        return tuple(dict.fromkeys(hole.file for hole in self.holes))

    def holes_in(self, file: str) -> list[Hole]:
        return [hole for hole in self.holes if hole.file == file]

    @cached_property
    def hunted(self) -> dict[str, str]:
        """The wrong bodies to start from, by hole."""
        return {
            name: body_text((self.folder / file).read_text(encoding="utf-8"), name)
            for name, file in self.hunts.items()
        }

    def starter(self, text: str, file: str) -> str:
        """An engine file with this lab's bodies out."""
        names = [h.name for h in self.holes_in(file)]
        return strip(text, names, self.slug, self.steps, self.hunted)

    def written(self, text: str, path: str, file: str) -> list[str]:
        """Those of a file's holes that are in the text and no longer as in the starter. Raises
        ValueError for what is not Python."""
        return written_holes(text, path, [h.name for h in self.holes_in(file)], self.hunted)

    def answers(self, kind: str) -> list[Path]:
        """The files in `right` or `wrong`; "unpublished": wrong ones that learners never get."""
        folder = UNPUBLISHED / self.folder.name if kind == "unpublished" else self.folder / kind
        return sorted(folder.glob("*.py"))


def read_lab(folder: Path) -> LabInfo:
    """Raises ValueError, naming the manifest, if it is not one."""
    path = folder / "lab.toml"
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        unknown = data.keys() - FIELDS
        if unknown:
            raise ValueError(f"unknown {', '.join(sorted(unknown))}")
        core = [Hole.parse(text) for text in data.pop("holes")]
        further = [Hole.parse(text, further=True) for text in data.pop("further", ())]
        return LabInfo(folder=folder, holes=(*core, *further), **data)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path}: {error}") from error


def all_labs(labs: Path = LABS) -> list[LabInfo]:
    """Every lab, in order."""
    return [read_lab(path.parent) for path in sorted(labs.glob("[0-9][0-9]_*/lab.toml"))]


def find_lab(name: str, labs: list[LabInfo]) -> LabInfo:
    """By slug, number ("5", "05") or folder. Raises ValueError with the names there are."""
    for lab in labs:
        if name in (lab.slug, lab.folder.name, str(lab.number), f"{lab.number:02}"):
            return lab
    known = ", ".join(lab.slug for lab in labs)
    raise ValueError(f"no lab is called {name!r}. There are: {known}")
