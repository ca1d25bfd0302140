"""The lessons: each says what it is, runs from top to bottom on either engine, and every command
that it prints can be typed."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from checkouts import ROOT, environment, make_checkout, pass_every_lab
from filelock import FileLock
from printed import commands_in, in_code, shell

from labs.manifest import LabInfo, all_labs
from lessons.glossary import GLOSSARY
from lessons.show import RUNS_ON, metadata, quizzes

NOTEBOOKS = sorted((ROOT / "lessons").glob("[0-9][0-9]_*.py"))
LABS = {lab.slug: lab for lab in all_labs()}
each_lesson = pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)


def lab_of(notebook: Path) -> LabInfo:
    return LABS[metadata(notebook)["lab"]]


# -- what a lesson says of itself


def test_there_are_lessons():
    assert NOTEBOOKS


def test_marimo_finds_nothing_to_say_against_them():
    command = [sys.executable, "-m", "marimo", "check", "--strict", *map(str, NOTEBOOKS)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@each_lesson
def test_a_lesson_is_short_and_named_as_it_says(notebook):
    said = metadata(notebook)
    assert notebook.read_text(encoding="utf-8").count("\n") <= 450
    assert notebook.stem == f"{said['number']:02}_{said['slug']}"
    assert said["question"].endswith("?") and 0 < said["minutes"] <= 240
    assert said["runs_on"] in RUNS_ON


@each_lesson
def test_what_a_lesson_reads_and_needs_is_there(notebook):
    said = metadata(notebook)
    assert said["reads"] and all((ROOT / path).is_file() for path in said["reads"])
    numbers = {metadata(path)["slug"]: metadata(path)["number"] for path in NOTEBOOKS}
    assert all(numbers.get(slug, 0) < said["number"] for slug in said["needs"])


@each_lesson
def test_a_lesson_and_its_lab_know_each_other(notebook):
    said, lab = metadata(notebook), lab_of(notebook)
    assert lab.lesson == f"lessons/{notebook.name}"
    assert (lab.number, lab.part) == (said["number"], said["part"])
    assert {f"minivllm/{file}" for file in lab.files} <= set(said["reads"])


@each_lesson
def test_every_word_that_a_lesson_explains_is_in_the_glossary(notebook):
    words = [
        node.args[0].value
        for node in ast.walk(ast.parse(notebook.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "term"
    ]
    assert set(words) <= set(GLOSSARY)


@each_lesson
def test_neither_place_nor_length_gives_an_answer_away(notebook):
    (text,) = [
        node.args[0].value
        for node in ast.walk(ast.parse(notebook.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "show.quizzes"
    ]
    choice = re.compile(r'<details[^>]*class="tt-(\w+)"[^>]*><summary>(.*?)</summary>', re.S)
    asked = [choice.findall(q) for q in quizzes(text).text.split('class="tt-quiz"')[1:]]
    assert len(asked) == 5 and all(len(choices) == 3 for choices in asked)
    places = [[kind for kind, _ in choices].index("right") for choices in asked]
    assert max(map(places.count, places)) <= 2
    longest = [max(choices, key=lambda c: len(c[1]))[0] for choices in asked]
    assert longest.count("right") <= 3


# -- run from top to bottom


def ran(notebook: Path, engine: str, factory: pytest.TempPathFactory) -> dict:
    """What the lesson shows, run once for all test processes. engine: "reference", or "composed"
    for a reader whose labs have all passed."""
    shared = factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        shared = shared.parent
    result = shared / f"{notebook.stem}-{engine}.json"
    with FileLock(shared / f"{notebook.stem}-{engine}.lock"):
        if not result.exists():
            checkout = make_checkout(shared / f"{notebook.stem}-{engine}")
            if engine == "composed":
                pass_every_lab(checkout)
            script = Path(__file__).with_name("run_lesson.py")
            command = [sys.executable, str(script), f"lessons/{notebook.name}", str(result)]
            done = subprocess.run(
                command, cwd=checkout, env=environment(checkout), capture_output=True, text=True
            )
            assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(result.read_text(encoding="utf-8"))


def headings(shown: str) -> list[str]:
    return re.findall(r"<h2[^>]*>(.*?)</h2>", shown, re.S)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["reference", "composed"])
@each_lesson
def test_a_lesson_runs_on_the_reference_and_on_the_readers_engine(
    notebook, engine, tmp_path_factory
):
    done = ran(notebook, engine, tmp_path_factory)
    assert bool(done["mine"]) == (engine == "composed")
    shown = "".join(done["shown"])
    acts = [re.match(r"\d+", heading) for heading in headings(shown)]
    assert [act and int(act[0]) for act in acts] == [*range(1, 9)]
    assert "Traceback" not in shown and "marimo-error" not in shown


@pytest.mark.slow
@each_lesson
def test_a_lesson_names_every_hole_of_its_lab_and_no_file_that_is_not_there(
    notebook, tmp_path_factory
):
    shown = "".join(ran(notebook, "reference", tmp_path_factory)["shown"])
    for hole in lab_of(notebook).holes:
        assert hole.name.rpartition(".")[2] in shown, f"{hole.name} is not in the lesson"
    for path in re.findall(r"(?<![\w/])(?:minivllm|lessons|labs)/[\w/]+\.(?:py|toml|md)\b", shown):
        assert (ROOT / path).is_file() or "labs/mine" in path, f"{path} is not there"


@pytest.mark.slow
@each_lesson
def test_a_lesson_leads_to_one_that_is_there_and_says_which_are_not(notebook, tmp_path_factory):
    shown = "".join(ran(notebook, "reference", tmp_path_factory)["shown"])
    there = {path.stem[:2]: path.stem for path in NOTEBOOKS}
    (ending,) = re.findall(
        r"<(?:span|p)[^>]*>\s*<strong>Next</strong>.*?</(?:span|p)>", shown, re.S
    )
    links = re.findall(r'href="(\d\d_\w+)\.html"', ending)
    assert links and set(links) <= set(there.values()) - {notebook.stem}
    text = re.sub(r"<[^>]+>", " ", re.sub(r"<(svg|pre|table).*?</\1>", "", shown, flags=re.S))
    absent = [
        sentence for sentence in re.split(r"[.:;]\s", text)
        if "not written yet" in sentence and re.search(r"[Ll]essons? \d\d", sentence)
    ]  # fmt: skip
    assert absent
    for sentence in absent:
        first, *more = re.findall(r"\b\d\d\b", sentence)
        last = more[0] if more and f"{first} to {more[0]}" in sentence else first
        named = [f"{n:02}" for n in range(int(first), int(last) + 1)] + more
        assert not there.keys() & set(named), sentence


@pytest.mark.slow
@each_lesson
def test_no_command_of_a_lesson_is_wider_than_its_column(notebook, tmp_path_factory):
    shown = "".join(ran(notebook, "reference", tmp_path_factory)["shown"])
    texts = [text for text in in_code(shown) if commands_in(text) and "def " not in text]
    assert texts and max(len(line) for text in texts for line in text.splitlines()) <= 72


@pytest.mark.slow
def test_the_two_memories_stand_right_below_the_step_that_moves_them(tmp_path_factory):
    (notebook,) = (path for path in NOTEBOOKS if path.stem == "05_paged_blocks")
    shown = ran(notebook, "reference", tmp_path_factory)["shown"]
    (place,) = (n for n, part in enumerate(shown) if "data-stop='160'" in part)
    assert shown[place].count("<marimo-slider") == 1 and "data-full-width='true'" in shown[place]
    below = re.sub(r"<style.*?</style>", "", shown[place + 1], flags=re.S)
    assert below.lstrip().startswith("<figure") and "two memories, slot by slot" in below


# -- every command that is printed


@pytest.fixture
def checkout(tmp_path) -> Path:
    return make_checkout(tmp_path / "checkout")


@pytest.mark.slow
@each_lesson
def test_every_command_of_a_lesson_can_be_typed(notebook, tmp_path_factory, checkout):
    texts = in_code("".join(ran(notebook, "reference", tmp_path_factory)["shown"]))
    commands = list(dict.fromkeys(c for text in texts for c in commands_in(text)))
    slug = metadata(notebook)["lab"]
    for needed in ("start", "check"):
        assert f"python -m labs {needed} {slug}" in commands
    if not (checkout / ".venv").exists():
        (checkout / ".venv").symlink_to(sys.prefix)
    for command in commands:
        done = shell(command, checkout)
        if command.startswith("source"):
            assert done.returncode == 0, done.stderr
        elif command == f"python -m labs check {slug}":  # nothing is written yet
            assert done.returncode == 1 and "is not written yet" in done.stdout
        else:
            assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
            assert done.stdout.strip(), f"{command} says nothing"
