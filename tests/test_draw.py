"""Drawings: the same facts as text, as SVG and as a table, readable at both widths and in both
lights. Geometry is measured in the SVG itself."""

from __future__ import annotations

import re
from collections import Counter
from random import Random
from xml.etree import ElementTree

import pytest

from lessons import bars, draw, lanes, memory_map, svg

NS = "{http://www.w3.org/2000/svg}"
WIDTHS = (svg.WIDE, svg.NARROW)
PAGES = {0: "#ffffff", 1: "#181c1a"}  # marimo's own grounds, in the light and in the dark


def grid():
    steps = [[("a", 8, False), ("b", 4, True)], [("a", 8, True), ("b", 1, True)]] * 20
    return draw.timeline(steps, "forty steps")


def swim_lanes():
    rows = [
        ("A", [(0, 3, "waiting"), (3, 5, "prefill", "48"), (5, 30, "decode")]),
        ("B", [(2, 9, "waiting"), (9, 10, "prefill"), (10, 50, "decode"), (50, 60, "preempted"),
               (60, 80, "decode"), (80, 81, "finished")]),
    ]  # fmt: skip
    return lanes.lanes(rows, now=12, title="two requests", caption="what happens to them")


def stacked():
    parts = [(200, "prefill"), (100, "decode"), (300, "inside"), (60, "outside"), (40, "free")]
    made = tuple(bars.Part(value, kind, kind) for value, kind in parts)
    both = (bars.Bar("contiguous", made), bars.Bar("paged", made[:2]))
    return bars.Bars(both, "slots", "where it went", "two memories", digits=0)


def memory(seed=0):
    random, slots = Random(seed), []
    for owner in "ABCDEF":
        for kind in ("prefill", "decode", "reserved", "inside"):
            slots += [(kind, owner)] * random.randint(1, 50)
        slots += [(random.choice(("free", "outside")), "")] * random.randint(1, 40)
    return memory_map.MemoryMap(memory_map.runs_of(slots), "a memory", "six users", 16), slots


DRAWINGS = {
    "pool": draw.block_pool([0, 1, 1, 0, 2, 0, 0], [3, 6, 6], "three are free"),
    "table": draw.block_table([7, 2, 9], 4, 5, 6, "six tokens"),
    "timeline": grid(),
    "lanes": swim_lanes(),
    "seconds": lanes.lanes([("you", [(0, 12.5, "prefill", "12.5 ms"), (12.5, 15, "decode")])],
                           "ms", 0.5, title="a request", caption="first and second token"),
    "bars": bars.bars([("first", 123.4, "prefill"), ("next", 7.1, "decode")], "ms", "gaps", "two"),
    "stacked": stacked(),
    "memory": memory()[0],
    "memories": memory_map.MemoryMaps((memory()[0], memory(1)[0]), "both"),
}  # fmt: skip


def parsed(picture, width):
    return ElementTree.fromstring(picture.svg(width))


def boxes(root, kind):
    """(x, width) of the boxes of a kind, by its fill and stroke; their hatching left out."""
    fill, stroke, _ = svg.KINDS[kind]
    look = f"fill:{svg.colour(fill)};stroke:{svg.colour(stroke)};"
    return [(float(r.get("x")), float(r.get("width"))) for r in root.iter(f"{NS}rect")
            if r.get("style", "").startswith(look)]  # fmt: skip


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("light", [0, 1], ids=["light", "dark"])
def test_letters_can_be_read_on_every_ground_and_edges_seen(light):
    colours = {name: pair[light] for name, pair in svg.PALETTE.items()}
    grounds = [colours["paper"], PAGES[light]]
    for ground in [*grounds, *(c for n, c in colours.items() if n.endswith("soft"))]:
        assert contrast(colours["ink"], ground) >= 7
    for ground in grounds:
        assert contrast(colours["muted"], ground) >= 4.5
        for edge in ("prefill", "decode", "warn"):
            assert contrast(colours[edge], ground) >= 4.5
    assert contrast(colours["paper"], colours["ink"]) >= 7  # letters on what is finished


@pytest.mark.parametrize(
    "kinds",
    [
        ("waiting", "prefill", "decode", "preempted", "finished"),
        ("prefill", "decode", "reserved", "inside", "outside", "free"),
    ],
)
def test_without_colours_no_two_kinds_of_a_drawing_look_alike(kinds):
    def is_filled(kind):
        fill = svg.KINDS[kind][0]
        return "dark" if fill == "ink" else fill != "none"

    looks = [(svg.KINDS[kind][2], is_filled(kind)) for kind in kinds]
    assert len(set(looks)) == len(looks)


@pytest.mark.parametrize("name", DRAWINGS)
@pytest.mark.parametrize("width", WIDTHS)
def test_a_drawing_is_named_and_described_and_nothing_of_it_sticks_out(name, width):
    root = parsed(DRAWINGS[name], width)
    _, _, view_width, view_height = map(float, root.get("viewBox").split())
    assert root.get("role") == "img" and view_width == width
    ids = [e.get("id") for e in root.iter() if e.get("id")]
    assert len(ids) == len(set(ids))
    said = [e.text for i in root.get("aria-labelledby").split() for e in root.iter()
            if e.get("id") == i]  # fmt: skip
    assert len(said) == 2 and all(said)
    for rect in root.iter(f"{NS}rect"):
        x, y, w, h = (float(rect.get(k)) for k in ("x", "y", "width", "height"))
        assert x >= 0 and y >= 0 and x + w <= view_width and y + h <= view_height
        hatching = re.match(r"url\(#(.*)\)", rect.get("fill", ""))
        assert not hatching or hatching[1] in ids
    for text in root.iter(f"{NS}text"):
        size = float(re.search(r"([\d.]+)px", text.get("style"))[1])
        assert size >= 12
        length = len(text.text or "") * size * 0.63  # no letter of these faces is wider
        left = {"start": 0, "middle": length / 2, "end": length}[text.get("text-anchor")]
        x = float(text.get("x"))
        assert x - left >= -2 and x - left + length <= view_width + 8, text.text
        assert 0 < float(text.get("y")) <= view_height


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_drawing_in_letters_keeps_to_its_width(name):
    for width in (64, 76, 80):
        lines = DRAWINGS[name].text(width).splitlines()
        assert 0 < max(map(len, lines)) <= width


@pytest.mark.parametrize("name", ["pool", "table", "timeline"])
@pytest.mark.parametrize("width", WIDTHS)
def test_a_grid_shows_each_cell_once_whatever_the_bands(name, width):
    picture, root = DRAWINGS[name], parsed(DRAWINGS[name], width)
    due = Counter(c.text for row in picture.rows for c in row.cells if c.text)
    labels = {row.label for row in picture.rows}
    got = Counter(t.text for t in root.iter(f"{NS}text") if t.text and t.text not in labels)
    assert got == due
    for row in picture.rows:
        for kind in {c.kind for c in row.cells} - {"nothing"}:
            assert boxes(root, kind)


def test_a_table_says_what_colour_says():
    heading, rows = grid().twin()
    assert heading == ["step", "a", "b"]
    assert rows[:2] == [["1", "8 (prefill)", "4* (prefill)"], ["2", "8* (prefill)", "1* (decode)"]]
    assert len(rows) == 40
    heading, rows = DRAWINGS["table"].twin()
    assert rows[5] == ["5", "", "9 (new)", "^"]


@pytest.mark.parametrize("width", WIDTHS)
def test_lanes_are_as_long_as_what_they_show(width):
    picture, root = swim_lanes(), parsed(swim_lanes(), width)
    due = Counter()
    for lane in picture.lanes:
        for span in lane.spans:
            due[span.kind] += span.end - span.start
    got = {kind: sum(w + 1 for _, w in boxes(root, kind)) for kind in due}
    legend = 20  # a box of each kind stands in the legend
    pixels = (got["decode"] - legend) / due["decode"]
    assert pixels >= 11  # a step can be seen
    for kind, length in due.items():
        assert got[kind] - legend == pytest.approx(length * pixels, rel=0.02, abs=1.5), kind


def test_a_lane_in_letters_has_a_letter_for_each_unit_and_a_bar_for_now():
    letters = swim_lanes().text(200)
    lines = {line[:1]: line[3:] for line in letters.splitlines()}
    assert lines["A"] == "...PPddddddd|ddddddddddddddddd"
    assert lines["B"] == "  .......Pdd|" + "d" * 37 + "x" * 10 + "d" * 20 + "#"
    assert ". waiting  P prefill  d decode  x preempted  # finished" in letters


@pytest.mark.parametrize("width", WIDTHS)
def test_bars_are_as_long_as_their_values(width):
    root = parsed(DRAWINGS["bars"], width)
    ((_, first),), ((_, following),) = boxes(root, "prefill"), boxes(root, "decode")
    assert (first + 1) / (following + 1) == pytest.approx(123.4 / 7.1, rel=0.01)
    heading, rows = stacked().twin()
    assert heading == ["what", "prefill", "decode", "inside", "outside", "free", "in all"]
    assert rows[1] == ["paged", "200 slots", "100 slots", "-", "-", "-", "300 slots"]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("width", WIDTHS)
def test_a_memory_gives_each_slot_its_place(seed, width):
    picture, slots = memory(seed)
    assert [(run.kind, run.owner) for run in picture.runs for _ in range(run.length)] == slots
    root = parsed(picture, width)
    pitch = (width - 1) / (64 if width == svg.WIDE else 32)
    for kind, count in Counter(kind for kind, _ in slots).items():
        drawn = sum(w + 1 for _, w in boxes(root, kind)) - 20  # the legend's box
        assert drawn == pytest.approx(count * pitch, abs=1)


def test_two_memories_of_a_lesson_and_their_step_are_seen_at_once():
    slots = [(kind, "A") for kind in ("prefill", "decode", "reserved", "inside")] * 240
    one = memory_map.MemoryMap(memory_map.runs_of(slots), "one", "", 16)
    root = parsed(memory_map.MemoryMaps((one, one), "both"), svg.WIDE)
    assert float(root.get("height")) < 560  # of 800, with the browser's own lines and a slider


@pytest.mark.parametrize("width", WIDTHS)
def test_memories_stand_under_one_another_each_with_all_its_slots(width):
    (one, slots), (two, more) = memory(0), memory(1)
    root = parsed(memory_map.MemoryMaps((one, two), "both"), width)
    pitch = (width - 1) / (64 if width == svg.WIDE else 32)
    for kind, count in Counter(kind for kind, _ in slots + more).items():
        drawn = sum(w + 1 for _, w in boxes(root, kind)) - 20  # the legend's box, once
        assert drawn == pytest.approx(count * pitch, abs=2)


def test_a_memory_in_letters_has_a_letter_for_each_slot():
    picture, slots = memory(3)
    marks = {"prefill": str.upper, "decode": str.upper, "reserved": str.lower}
    due = "".join(marks[kind](owner) if kind in marks else {"inside": "-", "outside": "x",
                  "free": "."}[kind] for kind, owner in slots)  # fmt: skip
    lines = [line[8:] for line in picture.text().splitlines()[:-1]]
    assert "".join(lines) == due


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_figure_has_both_widths_and_the_table(name):
    html = svg.figure(DRAWINGS[name])
    assert html.count("<svg") == 2 and f'width="{svg.NARROW}"' in html
    heading, rows = DRAWINGS[name].twin()
    assert html.count("<tr>") == len(rows) + 1
    assert html.count('scope="col"') == len(heading)


def test_what_a_learner_wrote_stays_text():
    bad = '<script>alert("x")</script>'
    hostile = draw.Picture((draw.Row(bad, (draw.Cell(bad, "used"),)),), bad, title=bad)
    made = [hostile, bars.bars([(bad, 1.0)], bad, bad, bad),
            lanes.lanes([(bad, [(0, 9, "decode", bad)])], bad, title=bad, caption=bad),
            memory_map.MemoryMap((memory_map.Run(0, 9, "decode", bad),), bad, bad)]  # fmt: skip
    for picture in made:
        html = svg.figure(picture)
        assert "<script" not in html and "alert" in html
        ElementTree.fromstring(picture.svg(svg.WIDE))


def test_the_palette_is_declared_for_both_lights_and_gives_way_to_the_page():
    rules = dict(re.findall(r"([^{}]+)\{([^{}]*)\}", svg.css()))
    selectors = {s.strip().split("\n")[-1]: body for s, body in rules.items()}
    light, dark = (f"--tt-prefill:{c};" for c in svg.PALETTE["prefill"])
    assert light in selectors["[data-md-color-scheme=default],body.light"]
    assert dark in selectors["[data-md-color-scheme=slate],body.dark"]
    used = set(re.findall(r"var\(--tt-([\w-]+)", svg.css() + "".join(map(svg.colour, svg.PALETTE))))
    assert used - {"mono", "sans"} <= set(svg.PALETTE)
