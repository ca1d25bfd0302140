"""Pages whose text lives elsewhere in the repository: tables that tests write, the instructors'
page, the model card.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Document:
    title: str
    path: str
    markdown: str


# name in build/tables/: (title, what it says and who says it)
TABLES = {
    "features": (
        "What goes together",
        "Each cell is a test that ran: greedy text in mixed company, compared token by token with "
        "the same requests alone, with both options on.",
    ),
    "architectures": (
        "Architectures",
        "Which checkpoints the engine loads, and which it refuses by name, with the reason. A test "
        "compares each that loads with an independent implementation.",
    ),
    "sampling": (
        "Sampling parameters",
        "What a request may ask, beside what two larger engines take.",
    ),
}


def tables() -> list[Document]:
    """Raises ValueError when the tests that write them have not run."""
    return [table(name, title, says) for name, (title, says) in TABLES.items()]


def table(name: str, title: str, says: str) -> Document:
    source = ROOT / "build" / "tables" / f"{name}.md"
    if not source.exists():
        raise ValueError(f"{source.relative_to(ROOT)} is missing: `python site/build.py` makes it")
    text = source.read_text(encoding="utf-8")
    note = "Written by the project's tests, not by hand.\n"
    return Document(title, f"tables/{name}.md", f"# {title}\n\n{says} {note}\n{text}\n")


def documents() -> list[Document]:
    """The instructors' page, and the model card where there are models."""
    text = (ROOT / "labs" / "INSTRUCTORS.md").read_text(encoding="utf-8")
    found = [Document("For instructors", "instructors.md", text)]
    card = ROOT / "minivllm" / "checkpoint" / "bundled" / "README.md"
    if card.exists():
        text = card.read_text(encoding="utf-8")
        found.append(Document("The course's models", "models.md", text))
    return found


def pictures() -> dict[str, Path]:
    """Pictures that those pages show: their place in the site -> where they are."""
    bundled = ROOT / "minivllm" / "checkpoint" / "bundled"
    return {path.name: path for kind in ("png", "svg") for path in bundled.glob(f"*.{kind}")}
