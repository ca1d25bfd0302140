"""The engine's rooms as a picture: who decides, who computes, and who imports whom."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

from engine_pages import half, own_files, room, room_says, rooms

from lessons.svg import NARROW, SIZE, Sheet, tag, wrapped
from tests.test_floor_plan import imports, rank

TOOLS = ("bench", "commands")  # may import anything, so no arrow says much
HIGH, GAP = 34, 26


@cache
def imported_rooms() -> dict[str, set[str]]:
    """Room -> the rooms that its files import, those that only open the package apart."""
    found: dict[str, set[str]] = {name: set() for name in rooms()}
    for name in (file for one in found for file in own_files(one)):
        found[room(name)] |= {room(other) for other in imports(name)[0]} - {room(name)}
    return found


def arrows(found: dict[str, set[str]]) -> list[tuple[str, str]]:
    """The imports that no longer way already says, tools left out."""
    graph = {a: {b for b in to if b not in TOOLS} for a, to in found.items() if a not in TOOLS}

    def reaches(start: str, goal: str) -> bool:
        seen, left = set(), [n for n in graph[start] if n != goal]
        while left:
            here = left.pop()
            if here == goal:
                return True
            if here not in seen:
                seen.add(here)
                left += graph[here]
        return False

    return sorted((a, b) for a, to in graph.items() for b in to if not reaches(a, b))


def level(name: str) -> int:
    """How high a room stands: as high as its highest file."""
    return max(rank(file) for file in own_files(name))


@dataclass(frozen=True)
class EngineMap:
    """Rooms by rank: a room imports only what stands below it. Each box is a link."""

    title: str = "The rooms of the engine"
    caption: str = (
        "Left: who decides, in nothing but Python's standard library. Right: who computes, in "
        "torch. Between them: the door. A line leads from a room down to one that it imports, "
        "unless a longer way says the same. Made from the imports themselves."
    )
    found: dict[str, set[str]] = field(default_factory=imported_rooms)

    def svg(self, width: float) -> str:
        sheet = Sheet(width)
        narrow = width <= NARROW
        box_width = (width - 16) / 2 if narrow else 104
        places = self.places(width, box_width, narrow)
        sheet.text(0, SIZE, "decides", role="muted", bold=True)
        sheet.text(width, SIZE, "computes", role="muted", bold=True, anchor="end")
        if not narrow:
            for start, end in arrows(self.found):
                (x1, y1), (x2, y2) = places[start], places[end]
                sheet.line(x1 + box_width / 2, y1 + HIGH, x2 + box_width / 2, y2, "line", 1.5)
        for name, (x, y) in places.items():
            self.box(sheet, name, x, y, box_width)
        tools = ", ".join(name for name in self.found if name in TOOLS)
        y = max(y for _, y in places.values()) + HIGH + 24
        for line in wrapped(f"Beside it, and free to import anything: {tools}.", width):
            sheet.text(0, y, line, role="muted")
            y += SIZE + 5
        # Its boxes are links: a picture (role img) must not hold any.
        return sheet.svg(self.title, self.caption).replace('role="img"', 'role="group"', 1)

    def places(self, width: float, box_width: float, narrow: bool) -> dict[str, tuple]:
        """Where each room's box begins: its half from left to right, its rank from the top."""
        placed, y = {}, 26.0
        levels = sorted({level(n) for n in self.found if n not in TOOLS}, reverse=True)
        for height in levels:
            lines = 1
            for is_left in (True, False):
                here = [n for n in self.found if n not in TOOLS and level(n) == height
                        and (half(own_files(n)) != "computes") == is_left]  # fmt: skip
                left, per_line = (0 if is_left else width / 2 + 8), 1 if narrow else 3
                if "door" in [half(own_files(n)) for n in here]:
                    left = (width - box_width) / 2
                for index, name in enumerate(here):
                    row, column = divmod(index, per_line)
                    placed[name] = (left + column * (box_width + 10), y + row * (HIGH + 10))
                    lines = max(lines, row + 1)
            y += lines * (HIGH + 10) + (4 if narrow else GAP - 10)
        return placed

    def box(self, sheet: Sheet, name: str, x: float, y: float, width: float) -> None:
        inside = Sheet(sheet.width)
        inside.add(tag("rect", x=x + 0.5, y=y + 0.5, width=width - 1, height=HIGH - 1, rx=4,
                       style="fill:var(--tt-paper);stroke:var(--tt-ink)"), 0, 0)  # fmt: skip
        inside.text(x + width / 2, y + HIGH / 2 + 5, name, anchor="middle", bold=True)
        link = tag("a", tag("title", room_says(name)), *inside.shapes, href=f"{name}.html",
                   aria_label=name)  # fmt: skip
        sheet.add(link, x + width, y + HIGH)

    def twin(self) -> tuple[list[str], list[list[str]]]:
        heading = ["room", "decides or computes", "imports"]
        return heading, [
            [
                name,
                "tool" if name in TOOLS else half(own_files(name)),
                ", ".join(sorted(to)) or "nothing",
            ]
            for name, to in self.found.items()
        ]
