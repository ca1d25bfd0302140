"""The grader graded: what is wrong fails first where it should, what is right passes."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from labs.children import Children
from labs.compose import Answer, Composed, answers_of, compose
from labs.holes import find, strip
from labs.manifest import ENGINE, all_labs
from labs.runner import Judge, load_tests, run_lab

LABS = all_labs()
SEEDS = range(5)
# A hole's docstring says what happens when it cannot do its work.
CANNOT = r"Raises|Asserts|None\b|False|ignored|never negative|without room|must wait|nothing"
FIRST = re.compile(r"# fails first: (test_\w+)")


def ids(value):
    return getattr(value, "slug", None) or getattr(value, "stem", None)


def every(kind):
    return [
        pytest.param(lab, p, id=f"{lab.slug}-{p.stem}") for lab in LABS for p in lab.answers(kind)
    ]


@pytest.fixture(scope="module")
def children():
    with Children() as made:
        yield made


def composed_of(lab, path: Path, folder: Path) -> Composed:
    return compose(folder, answers_of(lab, path.read_text(encoding="utf-8"), path.name))


@cache
def lab_tests(slug):
    return load_tests(next(lab for lab in LABS if lab.slug == slug))


@pytest.mark.parametrize("lab", LABS, ids=ids)
def test_a_hole_exists_states_its_errors_and_is_short(lab):
    for hole in lab.holes:
        node = find(ast.parse((ENGINE / hole.file).read_text(encoding="utf-8")), hole.name)
        assert node is not None, f"{hole.file} has no {hole.name}"
        assert node.end_lineno - node.lineno < 40, f"{hole.name} is too long for a hole"
        says = ast.get_docstring(node)
        assert re.search(CANNOT, " ".join(says.split())), (
            f"{hole.name}'s docstring does not say what happens when it cannot"
        )


def test_a_hole_is_in_one_lab_only_and_at_most_three_are_core():
    holes = [(hole.file, hole.name) for lab in LABS for hole in lab.holes]
    assert len(holes) == len(set(holes))
    assert all(sum(not h.further for h in lab.holes) <= 3 and lab.minutes <= 90 for lab in LABS)


@pytest.mark.parametrize("lab", LABS, ids=ids)
def test_a_lab_is_complete(lab):
    tests = [test.__name__ for test in lab_tests(lab.slug)]
    assert 8 <= len(tests) <= 14
    assert list(lab.hints) == tests, "hints: each test, in order"
    assert all(len(hints) >= 3 and all(hints) for hints in lab.hints.values())
    assert lab.points.keys() <= set(tests)
    assert lab.steps.keys() <= {hole.name for hole in lab.holes}
    assert len(lab.answers("wrong")) >= 8 and lab.answers("right")
    readme = (lab.folder / "README.md").read_text(encoding="utf-8")
    assert readme.count("\n") <= 60 and f"python -m labs check {lab.slug}" in readme
    for hole in lab.holes:
        assert hole.name.rpartition(".")[2] in readme, f"the README does not name {hole.name}"


@pytest.mark.parametrize("lab", LABS, ids=ids)
def test_the_reference_passes_in_this_process(lab):
    for seed in SEEDS:
        for outcome in run_lab(lab, Judge(None), seed):
            assert outcome.passed, outcome


@pytest.mark.parametrize("lab", LABS, ids=ids)
def test_m1_the_starter_fails_every_lab_by_its_holes_name(lab, children, tmp_path):
    answers = {}
    for file in lab.files:
        names = [h.name for h in lab.holes_in(file)]
        text = strip((ENGINE / file).read_text(encoding="utf-8"), names, lab.slug, lab.steps)
        answers[file] = [Answer(text, file, tuple(names))]
    outcomes = list(run_lab(lab, Judge(compose(tmp_path, answers), children), 0))
    assert not any(outcome.passed for outcome in outcomes)
    first = outcomes[0]
    assert first.is_starter and any(h.name in first.says for h in lab.holes), first
    file, line, _ = first.trace[-1]
    assert "NotImplementedError" in answers[file][0].text.splitlines()[line - 1]


@pytest.mark.parametrize(("lab", "path"), every("right"))
def test_a_right_answer_passes(lab, path, children, tmp_path):
    judge = Judge(composed_of(lab, path, tmp_path), children)
    tests = lab_tests(lab.slug)
    for seed in SEEDS:
        outcomes = list(run_lab(lab, judge, seed, tests=tests))
        assert all(outcome.passed for outcome in outcomes), outcomes
        # Another seed changes only the tests that draw.
        tests = [t for t, outcome in zip(tests, outcomes, strict=True) if outcome.drew]


@pytest.mark.parametrize(("lab", "path"), every("wrong"))
def test_a_wrong_answer_fails_first_where_its_first_line_says(lab, path, children, tmp_path):
    named = FIRST.match(path.read_text(encoding="utf-8"))[1]
    judge = Judge(composed_of(lab, path, tmp_path), children)
    tests = lab_tests(lab.slug)
    for seed in SEEDS:
        outcomes = list(run_lab(lab, judge, seed, stop_at_first=True, tests=tests))
        first = next((o for o in outcomes if not o.passed), None)
        assert first is not None, f"seed {seed}: passes"
        assert first.test == named, f"seed {seed}: {first}"
        assert first.says and not first.is_starter
        ran = zip(tests, outcomes, strict=True)
        tests = [t for t, o in ran if o.drew or o.test == named]
        if not first.drew and len(tests) == 1:
            return


@pytest.mark.parametrize("lab", LABS, ids=ids)
def test_every_test_is_the_first_to_fail_for_some_wrong_answer(lab):
    named = {FIRST.match(p.read_text(encoding="utf-8"))[1] for p in lab.answers("wrong")}
    assert named == {test.__name__ for test in lab_tests(lab.slug)}
