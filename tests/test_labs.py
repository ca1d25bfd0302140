"""The grader graded: what is wrong fails first where it should, what is right passes."""

from __future__ import annotations

import ast
import importlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from functools import cache
from pathlib import Path

import pytest

from labs.__main__ import main
from labs.browser import importable
from labs.children import Children
from labs.compose import COMPILED, PACKAGE, Answer, answers_of, compose, compose_core, graft
from labs.histories import shortest
from labs.holes import Hole, find, strip
from labs.judge import Gone, Lab, Proxy, Raised, Wrong, connect_here
from labs.learner import Learner
from labs.manifest import ENGINE, ROOT, LabInfo, all_labs, find_lab
from labs.runner import Judge, load_tests, run_lab, stopped_after
from labs.toy import ToyEngine, greedy, next_token
from lessons.draw import block_pool, block_table, timeline
from minivllm import LLM, SamplingParams
from minivllm.__main__ import main as cli

LABS = all_labs()
PAGED = find_lab("paged_blocks", LABS)
SEEDS = range(5)
# A hole's docstring says what happens when it cannot do its work.
CANNOT = r"Raises|Asserts|None\b|False|ignored|never negative|without room|must wait|nothing|Nobody"
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


def judge_of(lab, path: Path, folder: Path, children) -> Judge:
    answers = answers_of(lab, path.read_text(encoding="utf-8"), path.name)
    return Judge(compose(folder, answers), compose_core(lab, folder, answers), children)


def judges_of(lab, path: Path, folder: Path, children) -> Iterator[tuple[int, Judge]]:
    """Seeds, and who judges. The first time it is as a learner is judged, in processes of their
    own; then in this one, as the browser does, in a tenth of the time."""
    apart = judge_of(lab, path, folder, children)
    yield SEEDS[0], apart
    for seed in SEEDS[1:]:
        with importable(folder):
            yield seed, Judge(apart.composed, apart.core, around=lambda: stopped_after(2, True))


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
    core = [test for test in lab_tests(lab.slug) if not hasattr(test, "further")]
    assert 8 <= len(core) <= 14, "further work has tests of its own"
    assert list(lab.hints) == tests, "hints: each test, in order"
    assert all(len(hints) >= 3 and all(hints) for hints in lab.hints.values())
    assert lab.points.keys() <= set(tests)
    assert lab.steps.keys() <= {hole.name for hole in lab.holes}
    assert len(lab.answers("wrong")) >= 8 and lab.answers("right")
    assert len(lab.answers("unpublished")) >= 2
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
        names = [h.name for h in lab.holes_in(file) if h.name not in lab.hunts]
        text = lab.starter((ENGINE / file).read_text(encoding="utf-8"), file)
        answers[file] = [Answer(text, file, tuple(names))]
    outcomes = list(run_lab(lab, Judge(compose(tmp_path, answers), None, children), 0))
    assert not any(outcome.passed for outcome in outcomes)
    first = outcomes[0]
    assert first.is_starter and any(h.name in first.says for h in lab.holes), first
    file, line, _ = first.trace[-1]
    assert "NotImplementedError" in answers[file][0].text.splitlines()[line - 1]


@pytest.mark.parametrize(("lab", "path"), every("right"))
def test_a_right_answer_passes(lab, path, children, tmp_path):
    tests = lab_tests(lab.slug)
    for seed, judge in judges_of(lab, path, tmp_path, children):
        outcomes = list(run_lab(lab, judge, seed, tests=tests))
        assert all(outcome.passed for outcome in outcomes), outcomes
        # Another seed changes only the tests that draw.
        tests = [t for t, outcome in zip(tests, outcomes, strict=True) if outcome.drew]


@pytest.mark.parametrize(("lab", "path"), every("wrong") + every("unpublished"))
@pytest.mark.slow
def test_a_wrong_answer_fails_first_where_its_first_line_says(lab, path, children, tmp_path):
    named = FIRST.match(path.read_text(encoding="utf-8"))[1]
    tests = lab_tests(lab.slug)
    for seed, judge in judges_of(lab, path, tmp_path, children):
        outcomes = list(run_lab(lab, judge, seed, stop_at_first=True, tests=tests))
        first = next((o for o in outcomes if not o.passed), None)
        assert first is not None, f"seed {seed}: passes"
        assert first.test == named, f"seed {seed}: {first}"
        assert first.says and not first.is_starter
        ran = zip(tests, outcomes, strict=True)
        tests = [t for t, o in ran if o.drew or o.test == named]
        if not first.drew and len(tests) == 1:
            return


def told_by(lab, text, number, folder, children):
    """What one of the lab's tests says of an answer."""
    answers = answers_of(lab, text, "mine.py")
    judge = Judge(compose(folder, answers), compose_core(lab, folder, answers), children)
    (outcome,) = run_lab(lab, judge, 0, tests=[lab_tests(lab.slug)[number - 1]])
    return outcome


FIRST_TOKEN = find_lab("first_token", LABS)


ASKED = {  # what a learner may guess: the object, and what it has
    "self.scheduler.plan(now)": ("Scheduler", "schedule, trace, update_from_output."),
    "self.executor.run(plan)": ("Executor", "execute_model, sample_tokens."),
    "self.schedule(now)": ("EngineCore", "abort, add_request, clock, executor, has_unfinished"),
    "plan.rowz()": ("SchedulerOutput", "connector, copies, "),
    "[].push(plan)": ("list", ""),
}


@pytest.mark.parametrize("guess", ASKED)
@pytest.mark.parametrize("apart", [True, False])
def test_who_asks_for_what_an_object_has_not_is_told_what_it_has(guess, apart, children, tmp_path):
    (path,) = FIRST_TOKEN.answers("right")
    line = "        if not plan.is_empty():\n"
    text = path.read_text(encoding="utf-8").replace(line, f"        {guess}\n{line}")
    with importable(tmp_path):
        outcome = told_by(FIRST_TOKEN, text, 7, tmp_path, children if apart else None)
    kind, has = ASKED[guess]
    assert f"raised AttributeError: '{kind}' object has no attribute" in outcome.says
    assert f". It has: {has}" in outcome.says if has else "It has" not in outcome.says


def test_a_prompt_that_is_no_list_is_said_to_be_none(children, tmp_path):
    (path,) = (p for p in FIRST_TOKEN.answers("wrong") if p.stem == "adds_a_list_to_the_prompt")
    outcome = told_by(FIRST_TOKEN, path.read_text(encoding="utf-8"), 6, tmp_path, children)
    assert "A prompt may be any sequence, a tuple for one" in outcome.says
    assert "TypeError" in outcome.got and outcome.trace[-1][2] == "generate_greedy"
    assert "any sequence" in FIRST_TOKEN.hints[outcome.test][0]


def test_a_starter_leaves_to_the_reader_what_the_readme_says_is_the_lab():
    file = "engine/core.py"
    text = FIRST_TOKEN.starter((ENGINE / file).read_text(encoding="utf-8"), file)
    node = find(ast.parse(text), "EngineCore.step")
    stub = text.splitlines()[node.lineno - 1 : node.end_lineno]
    assert "Which of them, when, and in which order is the lab." in " ".join(
        (FIRST_TOKEN.folder / "README.md").read_text(encoding="utf-8").split()
    )
    for call in ("schedule", "execute_model", "sample_tokens", "is_empty", "trace"):
        assert call not in "".join(stub)


def test_further_work_half_done_costs_no_test_of_the_core(children, tmp_path):
    (path,) = (p for p in PAGED.answers("wrong") if p.stem == "one_block_by_riddle")
    tests = lab_tests("paged_blocks")[7:]
    outcomes = list(run_lab(PAGED, judge_of(PAGED, path, tmp_path, children), 0, tests=tests))
    for test, outcome in zip(tests, outcomes, strict=True):
        assert outcome.passed or hasattr(test, "further"), outcome
    assert not all(outcome.passed for outcome in outcomes)


def test_a_lab_is_passed_by_its_core_whatever_came_of_further_work(labs):
    labs("start", "paged_blocks")
    write_right(labs.mine, PAGED)
    write_right(labs.mine, PAGED, "wrong", "one_block_by_riddle")
    status, out = labs("check", "paged_blocks")
    assert status == 1 and "all 10 tests pass. Of further work so far: 0 of 5 tests." in out
    assert "NOT YET" in out and "Hint 1 of 3" in out and re.search("10 .* ok", out)
    assert re.search(r"\[x\] 05 .*passed$", labs()[1], re.M)
    assert "your engine: BlockPool.allocate, BlockPool.release, slot_mapping\n" in labs("mine")[1]


def test_a_bug_hunt_starts_from_a_wrong_body_and_counts_once_that_is_changed():
    lab = find_lab("continuous_batching", LABS)
    ((name, wrong),) = lab.hunted.items()
    file = "scheduler/scheduler.py"
    start = lab.starter((ENGINE / file).read_text(encoding="utf-8"), file)
    assert wrong in start and "self._plan_running(plan, self.max" not in start
    assert lab.written(start, "mine.py", file) == []
    remark = start.replace("        # Then each", "        # I looked here.\n\n        # Then each")
    assert remark != start and lab.written(remark, "mine.py", file) == []
    mended = start.replace("request.num_uncomputed_tokens, self.max_chunk", "self.max_chunk, 1")
    assert lab.written(mended, "mine.py", file) == [name]


@pytest.mark.parametrize("lab", LABS, ids=ids)
def test_every_test_is_the_first_to_fail_for_some_wrong_answer(lab):
    named = {FIRST.match(p.read_text(encoding="utf-8"))[1] for p in lab.answers("wrong")}
    assert named == {test.__name__ for test in lab_tests(lab.slug)}


# What a learner does.


@pytest.fixture
def labs(tmp_path, capsys):
    """Run a command in a learner's folder; gives (exit status, what was printed)."""

    def run(*arguments):
        status = main([str(a) for a in arguments], mine=tmp_path / "mine")
        out, err = capsys.readouterr()
        wide = [x for x in out.splitlines() if len(x) > 80 and str(tmp_path) not in x]
        assert arguments[:1] == ("diff",) or not wide, wide
        return status, out + err

    run.mine = tmp_path / "mine"
    return run


def write_right(mine, lab, kind="right", stem=None):
    """Fill the learner's files with one of the lab's answers."""
    path = next(p for p in lab.answers(kind) if stem in (None, p.stem))
    answers = answers_of(lab, path.read_text(encoding="utf-8"), path.name)
    for file, own in answers.items():
        target = mine / lab.folder.name / file
        target.write_text(graft(target.read_text(encoding="utf-8"), own).text, encoding="utf-8")


def test_a_newcomer_is_told_what_to_type_next_at_every_point(labs):
    for number, lab in enumerate(LABS):
        status, out = labs()
        assert status == 0 and f"python -m labs start {lab.slug}" in out
        assert f"{number} of {len(LABS)} passed" in out
        status, out = labs("start")
        assert status == 0 and f"python -m labs check {lab.slug}" in out and "README.md" in out
        for hole in lab.holes:
            lines = iter(out.splitlines())
            next(line for line in lines if line.split()[:1] == [hole.name])
            file, _, at = next(lines).strip().rpartition(":")
            text = Path(file).read_text().splitlines()
            assert hole.name.rpartition(".")[2] in "".join(text[int(at) - 1 : int(at) + 1])
        status, out = labs("check")
        assert status == 1 and "is not written yet." in out and "Hint" not in out
        write_right(labs.mine, lab)
        status, out = labs("check")
        assert status == 0 and "pass." in out, out
    assert "python -m labs mine chat" in labs()[1]


def test_who_has_passed_a_lab_is_not_sent_back_to_how_labs_work(labs):
    for lab in (find_lab("first_token", LABS), PAGED):
        labs("start", lab.slug)
        write_right(labs.mine, lab)
        status, out = labs("check", lab.slug)
        assert status == 0 and "press `look again`" in out
    assert "passed, and 2 further functions" in labs()[1] and "3 further" not in labs()[1]
    assert labs()[1].split("Type next:")[1].split()[:5] == [
        "python", "-m", "labs", "start", "continuous_batching",
    ]  # fmt: skip
    labs("start", "practice")
    assert "python -m labs check practice" in labs()[1]


def test_a_loop_without_end_gets_no_hint(labs):
    labs("start", "practice")
    path = labs.mine / "00_practice" / "outputs.py"
    text = path.read_text()
    hole = re.search(r"^ +raise NotImplementedError.*$", text, re.M)[0]
    path.write_text(text.replace(hole, "        while True:\n            pass"))
    status, out = labs("check", "practice")
    assert status == 1 and "Is there a loop without end?" in out
    assert "Hint" not in out and "python -m labs hint" in out
    assert "Hint 1 of 3" in labs("hint", "practice")[1]


def test_the_map_shows_parts_minutes_and_states_in_words_and_marks(labs):
    out = labs()[1]
    assert "New here?" in out and "about 245 minutes to go" in out
    for lab in LABS:
        assert f"\n{lab.part}\n" in out
        assert re.search(rf"\[ \] {lab.number:02}  {lab.slug} +{lab.minutes} min", out)
    assert re.search("practice .*<- next", out) and out.count("<- next") == 1
    labs("start", "paged_blocks")
    write_right(labs.mine, PAGED, "wrong", "leaks_on_short")
    labs("check", "paged_blocks")
    labs("skip", "practice")
    out = labs()[1]
    assert re.search(r"\[-\] 00 .*skipped", out) and "New here?" not in out
    assert re.search(r"\[~\] 05 .*under way, 2 tests pass", out)


def test_colour_changes_no_letter_and_nothing_of_it_is_needed(labs, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    plain = labs()[1]
    monkeypatch.setenv("FORCE_COLOR", "1")
    coloured = labs()[1]
    assert "\x1b[" in coloured and "\x1b[" not in plain
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == plain
    monkeypatch.setenv("NO_COLOR", "1")
    assert not re.search(r"\x1b\[[\d;]*3\dm", labs()[1])
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert labs()[1] == plain


WATCHING = """
import sys
from pathlib import Path
from labs.__main__ import main
sys.exit(main(["check", "practice", "--watch"], mine=Path(sys.argv[1])))
"""


@pytest.mark.slow
def test_watch_checks_at_each_change_until_it_is_interrupted(labs):
    labs("start", "practice")
    process = subprocess.Popen(
        [sys.executable, "-c", WATCHING, str(labs.mine)],
        cwd=ROOT, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    killer = threading.Timer(60, process.kill)
    killer.start()

    def until(text):
        found = ""
        for line in process.stdout:
            found += line
            if text in line:
                return found
        raise AssertionError(f"it ended without {text!r}: {found[-2000:]}")

    try:
        assert "is not written yet" in until("Ctrl-C ends")
        # It watches a moment after it says so: what is written meanwhile may be missed.
        writing = threading.Event()

        def write():
            while not writing.wait(0.2):
                write_right(labs.mine, LABS[0])

        writer = threading.Thread(target=write)
        writer.start()
        try:
            until("all 8 tests pass")
        finally:
            writing.set()
            writer.join()
        process.send_signal(signal.SIGINT)
        assert process.wait() in (0, 130)
    finally:
        killer.cancel()
        process.kill()


def test_watch_without_its_library_says_what_to_install(labs, monkeypatch):
    labs("start", "practice")
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    status, out = labs("check", "practice", "--watch")
    assert status == 2 and "pip install watchfiles" in out


def test_hints_come_one_at_a_time_and_the_last_one_stays(labs):
    labs("start", "paged_blocks")
    write_right(labs.mine, PAGED, "wrong", "leaks_on_short")
    hints = list(PAGED.hints["test_3_takes_nothing_when_short"])
    for number in (1, 2, 3, 3):
        status, out = labs("check", "paged_blocks")
        assert status == 1 and f"Hint {number} of 3" in out
        assert hints[number - 1].split()[-1] in out
    assert "Hint 3 of 3" in labs("hint", "paged_blocks")[1]


def test_a_failure_shows_a_sentence_a_comparison_a_picture_and_the_learners_line(labs):
    labs("start", "5")
    write_right(labs.mine, PAGED, "wrong", "leaks_on_short")
    _, out = labs("check", "5", "--seed", 3)
    assert "Three blocks are free and four are wanted." in out
    assert re.search(r"expected +3\n +yours +0", out) or "ValueError is raised" in out
    assert re.search(r"block +1 +2 +3 +4 +5\n +readers", out)
    assert "--seed 3" in out
    path = labs.mine / PAGED.folder.name / "kvcache" / "block_table.py"
    write_right(labs.mine, PAGED)
    path.write_text(
        path.read_text().replace("    slots, position", "    oops()\n    slots, position")
    )
    _, out = labs("check", "5")
    line = path.read_text().splitlines().index("    oops()") + 1
    assert f"block_table.py, line {line}, in slot_mapping" in out and "NameError" in out


def test_start_and_reset_lose_nothing(labs):
    labs("start", "practice")
    path = labs.mine / "00_practice" / "outputs.py"
    write_right(labs.mine, LABS[0])
    assert labs("check", "practice")[0] == 0
    mine = path.read_text()
    assert labs("start", "practice")[0] == 2 and path.read_text() == mine
    assert labs("reset", "practice")[0] == 0
    assert "NotImplementedError" in path.read_text()
    (kept,) = (labs.mine / "backup").glob("00_practice-*/outputs.py")
    assert kept.read_text() == mine
    assert re.search(r"00  practice .*  passed", labs()[1])


def test_a_lab_may_be_skipped_and_come_back_to(labs):
    assert labs("skip", "practice")[0] == 0
    out = labs()[1]
    assert "skipped" in out and f"start {LABS[1].slug}" in out
    assert labs("start", "practice")[0] == 0 and "start practice" not in labs()[1]


def test_diff_opens_after_a_pass_or_on_giving_up(labs):
    labs("start", "practice")
    assert labs("diff", "practice")[0] == 2
    assert "reference: RequestMetrics.ttft_s" in labs("diff", "practice", "--give-up")[1]
    write_right(labs.mine, LABS[0])
    labs("check", "practice")
    assert "+        return None if" in labs("diff", "practice")[1]


DAMAGED = (
    "", "{", "[]", '{"version": 99}', '{"version": 1, "labs": 3}',
    '{"version": 1, "labs": {"practice": {"hints": 7}}}',
)  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGED)
def test_m10_a_damaged_progress_file_is_kept_aside_and_rebuilt(labs, damage):
    labs("start", "practice")
    write_right(labs.mine, LABS[0])
    (labs.mine / "progress.json").write_text(damage)
    status, out = labs()
    assert status == 0 and "could not be read" in out and "kept as progress.damaged-" in out
    assert labs("check", "practice")[0] == 0
    (aside,) = labs.mine.glob("progress.damaged-*.json")
    assert aside.read_text() == damage and "1 of" in labs()[1]


def test_update_puts_the_learners_bodies_into_a_newer_engine(labs, tmp_path, monkeypatch):
    labs("start", "paged_blocks")
    write_right(labs.mine, PAGED)
    assert labs("check", "paged_blocks")[0] == 0
    newer = tmp_path / "minivllm"
    shutil.copytree(ENGINE, newer, ignore=shutil.ignore_patterns("__pycache__"))
    pool, table = newer / "kvcache" / "block_pool.py", newer / "kvcache" / "block_table.py"
    pool.write_text(pool.read_text().replace("def num_free(", "def num_free_now(") + "\n# newer\n")
    table.write_text(table.read_text().replace("start: int, num: int,", "start: int, many: int,"))
    monkeypatch.setattr("labs.learner.ENGINE", newer)
    theirs = labs.mine / PAGED.folder.name / "kvcache"
    before = (theirs / "block_table.py").read_text()
    status, out = labs("update")
    assert status == 1 and "slot_mapping must keep its signature" in out
    assert (theirs / "block_table.py").read_text() == before
    text = (theirs / "block_pool.py").read_text()
    assert "num_free_now" in text and "# newer" in text and "def _leave(" in text
    assert "taken = tuple(islice(self.free_ids, n))" in text
    (kept,) = (labs.mine / "backup").glob("update-*/*/kvcache/block_pool.py")
    assert "num_free_now" not in kept.read_text()


def test_a_later_starter_holds_the_bodies_of_labs_that_passed(tmp_path):
    learner = Learner(tmp_path / "mine", say=lambda text: None)
    learner.start(PAGED)
    write_right(learner.mine, PAGED)
    learner.check(PAGED, seed=0)
    later = LabInfo(
        tmp_path / "06_later", "later", "Later", "X",
        (Hole("kvcache/block_pool.py", "BlockPool.share"),),
    )  # fmt: skip
    learner.labs.append(later)
    text = learner.starter(later, "kvcache/block_pool.py")
    assert "taken = tuple(islice(self.free_ids, n))" in text
    assert 'raise NotImplementedError("lab later: BlockPool.share")' in text


def test_the_copy_holds_the_originals_of_grafted_files_in_no_form(tmp_path):
    engine = tmp_path / "engine"
    shutil.copytree(ENGINE / "kvcache", engine / "kvcache")
    for name in ("block_table.cpython-399.pyc", "block_table.cpython-399.opt-1.pyc", "other.pyc"):
        (engine / "kvcache" / "__pycache__").mkdir(exist_ok=True)
        (engine / "kvcache" / "__pycache__" / name).write_bytes(b"compiled")
    text = (ENGINE / "kvcache" / "block_table.py").read_text(encoding="utf-8")
    stub = Answer(strip(text, ["slot_mapping"], "x"), "x.py", ("slot_mapping",))
    for whole in (False, True):
        root = tmp_path / f"copy-{whole}"
        compose(root, {"kvcache/block_table.py": [stub]}, engine, whole=whole)
        copied = {
            name: Path(folder) / name
            for folder, _, names in os.walk(root, followlinks=True) for name in names
        }  # fmt: skip
        assert "other.pyc" in copied and "block_pool.py" in copied
        assert not [name for name in copied if name.startswith("block_table.cpython-399")]
        assert "position % block_size" not in copied["block_table.py"].read_text()


@pytest.mark.parametrize("may_link", [True, False])
def test_composing_leaves_the_engine_as_it_is_and_links_only_rooms_without_holes(
    tmp_path, monkeypatch, may_link
):
    """Also where folders cannot be linked, and where compiled loops are lent."""
    engine = tmp_path / "engine"
    leave = shutil.ignore_patterns("bundled", "*.nbi", "*.nbc")
    shutil.copytree(ENGINE, engine, ignore=leave)
    before = {p: p.read_bytes() for p in engine.rglob("*") if p.is_file()}
    if not may_link:
        monkeypatch.setattr(os, "symlink", lambda *a, **k: (_ for _ in ()).throw(OSError("no")))
    text = (ENGINE / "kvcache" / "block_table.py").read_text(encoding="utf-8")
    stub = Answer(strip(text, ["slot_mapping"], "x"), "x.py", ("slot_mapping",))
    answers = {"kvcache/block_table.py": [stub]}
    for number, settings in enumerate(({}, {"lend_compiled": True}, {"whole": True})):
        compose(tmp_path / str(number), answers, engine, **settings)
        package = tmp_path / str(number) / PACKAGE
        linked = {p.relative_to(package).as_posix() for p in package.rglob("*") if p.is_symlink()}
        if not may_link or "whole" in settings:
            assert not linked
        else:
            assert {"scheduler", "worker"} <= linked
            assert ("kernels" in linked) is not ("lend_compiled" in settings)
        shutil.rmtree(package)
    assert {p: p.read_bytes() for p in engine.rglob("*") if p.is_file()} == before


@pytest.mark.slow
def test_loops_that_take_long_to_compile_are_lent_where_that_is_asked_for(tmp_path, monkeypatch):
    from minivllm.kernels.cpu import decode, layer

    compose(tmp_path / "whole", {})
    compose(tmp_path / "lent", {}, package="lent_minivllm", lend_compiled=True)
    monkeypatch.syspath_prepend(tmp_path / "lent")
    for file, module in zip(COMPILED, (decode, layer), strict=True):
        assert (tmp_path / "whole" / PACKAGE / file).read_bytes() == (ENGINE / file).read_bytes()
        lent = importlib.import_module(module.__name__.replace("minivllm", "lent_minivllm"))
        for name, value in vars(module).items():
            if not name.startswith("_"):
                assert getattr(lent, name) is value
    for name in [name for name in sys.modules if name.partition(".")[0] == "lent_minivllm"]:
        del sys.modules[name]


def test_lines_are_counted_as_python_counts_them():
    engine = 'def f(x):\n    """Doubles."""\n    return 2 * x\n'
    answer = "y = 'a\x0cb\x85c\u2028d'\ndef f(x):\n    return x + x\n"
    made = graft(engine, [Answer(answer, "mine.py", ("f",))])
    space = {}
    exec(made.text, space)
    assert space["f"](4) == 8 and space["y"] == "a\x0cb\x85c\u2028d"
    number = made.text.split("\n").index("    return x + x") + 1
    assert made.origin[number] == ("mine.py", 3)


def test_strip_changes_nothing_but_the_bodies():
    text = (ENGINE / "kvcache" / "block_pool.py").read_text(encoding="utf-8")
    stripped = strip(text, ["BlockPool.release"], "x", {"BlockPool.release": ["one", "two"]})
    added = [line for line in stripped.splitlines() if line not in text.splitlines()]
    assert [line.strip() for line in added] == [
        "# 1. one", "# 2. two", 'raise NotImplementedError("lab x: BlockPool.release")',
    ]  # fmt: skip
    node = find(ast.parse(text), "BlockPool.release")
    lines = text.splitlines(keepends=True)
    start = node.body[0].end_lineno
    assert stripped.startswith("".join(lines[:start]))
    assert stripped.endswith("".join(lines[node.end_lineno :]))


# Tests that judge something other than what the engine does.
ABOUT_THE_SOURCE = {
    "test_floor_plan.py": "how the engine's own files are written and laid out",
    "test_readme.py": "what the README prints, in a checkout of its own",
    "test_bundled.py": "the models in the repository, and how they were made",
    "test_site.py": "pages made of the source",
    "test_site_live.py": "pages made of the source, in a browser",
}
# So are the tests of labs, lessons and training, and this very file. They say so by an import.
ABOUT_THE_COURSE = re.compile(r"^(?:from|import) (?:labs|lessons|training|checkouts)\b", re.M)
LOADED = """
import minivllm

assert minivllm.__file__.startswith({tree!r}), minivllm.__file__
"""


def tree_of_right_answers(tree: Path) -> None:
    """The repository with an engine, called minivllm, that holds a right answer of every lab."""
    kept = shutil.ignore_patterns(".*", "__pycache__", "mine", "build", "dist", "public", "*.egg*")
    for path in ROOT.iterdir():
        if path.name in ("Makefile", "README.md", "pyproject.toml"):
            shutil.copy(path, tree / path.name)
        elif path.name in ("labs", "lessons", "tests"):
            shutil.copytree(path, tree / path.name, ignore=kept)
    answers = {}
    for lab in LABS:
        path = lab.answers("right")[0]
        for file, own in answers_of(lab, path.read_text(encoding="utf-8"), path.name).items():
            answers.setdefault(file, []).extend(own)
    compose(tree, answers, package="minivllm", whole=True)


def run_suite(tree: Path, *arguments: str) -> subprocess.CompletedProcess:
    """pytest in a tree, two processes wide, on that tree's engine and on no other."""
    (tree / "loaded.py").write_text(LOADED.format(tree=str(tree)), encoding="utf-8")
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "loaded",
               "-p", "no:cacheprovider", *arguments]  # fmt: skip
    return subprocess.run(
        command, cwd=tree, env={**env, "PYTHONPATH": str(tree)}, capture_output=True, text=True
    )


@pytest.mark.slow
def test_the_right_answers_of_all_labs_at_once_pass_the_whole_suite(tmp_path):
    tree_of_right_answers(tmp_path)
    tests = tmp_path / "tests"
    away = set(ABOUT_THE_SOURCE) | {
        p.name for p in tests.glob("test_*.py") if ABOUT_THE_COURSE.search(p.read_text("utf-8"))
    }
    files = sorted(p for p in tests.glob("test_*.py") if p.name not in away)
    assert len(files) > 40 and {"test_scheduler.py", "test_kvcache.py"} <= {p.name for p in files}
    done = run_suite(tmp_path, "--maxfail=3", *map(str, files))
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]


@pytest.mark.slow
def test_that_suite_is_run_on_the_composed_engine(tmp_path):
    tree_of_right_answers(tmp_path)
    file = tmp_path / "minivllm" / "kvcache" / "block_table.py"
    text = file.read_text(encoding="utf-8")
    assert "divmod(position, block_size)" in text, "the right answer's, not the engine's"
    spoiled = text.replace("table[index] * block_size + offset", "table[index] * block_size")
    file.write_text(spoiled, encoding="utf-8")
    test = "test_positions_map_to_slots_through_the_table"
    done = run_suite(tmp_path, "-n", "0", str(tmp_path / "tests" / f"test_kvcache.py::{test}"))
    assert done.returncode == 1 and f"FAILED tests/test_kvcache.py::{test}" in done.stdout


def test_an_engine_on_the_learners_code_calls_every_hole(labs, monkeypatch):
    for lab in LABS:
        labs("start", lab.slug)
        write_right(labs.mine, lab)
        assert labs("check", lab.slug)[0] == 0
    learner = Learner(labs.mine, say=lambda text: None)
    composed, names = learner.compose_mine(labs.mine.parent / "composed")
    assert sorted(names) == sorted(hole.name for lab in LABS for hole in lab.holes)
    called = set()

    def note(frame, event, arg):
        if event == "call" and frame.f_code.co_filename.startswith(str(composed.root)):
            called.add(frame.f_code.co_qualname)

    with importable(composed.root):
        lab = Lab()
        connect_here(lab, composed.package)
        engine = ToyEngine(
            lab, slots=lambda *args: lab.call("kvcache.block_table.slot_mapping", *args)
        )
        engine.add("a", range(9), 12)
        sys.setprofile(note)
        engine.run(50, "one request")
        lab.new("outputs.RequestMetrics", 1.0).ttft_s  # noqa: B018
        lab.call("engine.greedy.generate_greedy", lab.lend(next_token, "__call__"), [1], 2, [])
        sys.setprofile(None)
    assert engine.outputs["a"] == greedy(range(9), 12)
    assert set(names) <= called, set(names) - called


POOL = "kvcache.block_pool.BlockPool"


@pytest.mark.parametrize("num", [1, 49, 50, 51, 120])
@pytest.mark.parametrize("apart", [True, False])
def test_steps_are_what_one_call_after_the_other_would_be(children, tmp_path, num, apart):
    """The attributes are those of that moment, over borders of questions too; and a call that
    raises ends the steps after those before it were seen."""
    judge = Judge(compose(tmp_path, {}) if apart else None, None, children)
    names = ("ref_cnt", "free_ids", "num_free")
    with judge.connected(lab := Lab(), judge.composed):
        calls = [("allocate", (2,)) if i % 2 == 0 else ("release", ([i % 3 + 1],))
                 for i in range(num)]  # fmt: skip
        want, pool = [], lab.new(POOL, 8 + num)
        with suppress(Raised):
            for name, args in calls:
                want.append((getattr(pool, name)(*args), *(getattr(pool, n) for n in names)))
        got, pool = [], lab.new(POOL, 8 + num)
        raises = pytest.raises(Raised, match="AssertionError") if len(want) < num else nullcontext()
        before = lab.drew
        with raises:
            for done in lab.steps(pool, calls, *names):
                got.append(done)
        assert got == want and len(want) > min(num, 5) - 1 and lab.drew is before


@pytest.mark.parametrize("steps", [[], [[1, 2]], None, 7, [[1, 2], [1, 2], [1, 2], [1, 2]]])
def test_steps_that_were_not_all_answered_are_no_answer(steps):
    lab = Lab()
    lab.ask = lambda message: {"steps": steps}
    calls = [("allocate", (1,))] * 3
    with pytest.raises((Gone, TypeError)):
        list(lab.steps(Proxy(lab, 1, "BlockPool"), calls, "ref_cnt"))


def test_a_picture_is_drawn_only_to_be_shown():
    drawn = []
    lab = Lab()
    lab.same(1, 1, "one", lambda: drawn.append("needless"))
    with pytest.raises(Wrong) as wrong:
        lab.same(1, 2, "one", lambda: drawn.append("shown") or "a picture")
    assert wrong.value.picture == "a picture" and drawn == ["shown"]


STORY = SamplingParams(temperature=0, max_tokens=8)


@pytest.mark.slow
def test_the_engine_of_all_right_answers_tells_the_references_story(children, tmp_path):
    answers = {}
    for lab in LABS:
        path = lab.answers("right")[0]
        for file, own in answers_of(lab, path.read_text(encoding="utf-8"), path.name).items():
            answers.setdefault(file, []).extend(own)
    lab, judge = Lab(), Judge(compose(tmp_path, answers), None, children)
    with judge.connected(lab, judge.composed) as child:
        told = lab.engine("tiny", max_model_len=64).generate("Once upon a time", STORY)
        assert child is not None, "in a process of its own"
    due = LLM("tiny", executor="plain", max_model_len=64).generate("Once upon a time", STORY)
    assert told[0].outputs[0].token_ids == due[0].outputs[0].token_ids
    assert len(due[0].outputs[0].text) > 10


@pytest.mark.slow
def test_mine_generates_with_a_bundled_model(tmp_path, capfd):
    mine = tmp_path / "mine"
    main(["start", "practice"], mine=mine)
    write_right(mine, LABS[0])
    assert main(["check", "practice"], mine=mine) == 0
    capfd.readouterr()
    arguments = ["generate", "-m", "tiny", "--max-tokens", "8", "Once upon a time"]
    assert main(["mine", *arguments], mine=mine) == 0
    told = capfd.readouterr()
    assert "your engine: RequestMetrics.ttft_s" in told.err
    assert cli(arguments) == 0 and capfd.readouterr().out == told.out != ""


def test_mine_says_so_when_nothing_is_passed(labs):
    status, out = labs("mine", "chat")
    assert status == 2 and "nothing is passed yet" in out


def test_mine_leaves_out_what_changed_since_it_passed(labs):
    labs("start", "practice")
    write_right(labs.mine, LABS[0])
    labs("check", "practice")
    assert "RequestMetrics.ttft_s" in labs("mine")[1]
    path = labs.mine / "00_practice" / "outputs.py"
    path.write_text(path.read_text() + "\n# later\n")
    assert "practice changed since it passed" in labs("mine")[1]


def test_mine_runs_the_command_line_of_the_composed_engine(labs):
    labs("start", "practice")
    write_right(labs.mine, LABS[0])
    labs("check", "practice")
    assert labs("mine", "generate", "--no-such-option")[0] == 2


def test_the_learners_folder_asks_assistants_to_tutor(labs):
    labs("start", "practice")
    text = (labs.mine / "AGENTS.md").read_text()
    assert "tutor" in text and "Do not write or complete the body" in text


def test_what_is_no_lab_or_no_command_is_one_line(labs):
    status, out = labs("check", "nonsense")
    assert (
        status == 2 and out.startswith("labs: no lab is called 'nonsense'.") and "practice" in out
    )
    status, out = labs("check", "paged_blocks")
    assert status == 2 and "python -m labs start paged_blocks" in out


def test_a_picture_keeps_to_eighty_columns_and_loses_nothing():
    wide = block_pool([0] + [1] * 70, [], "seventy blocks")
    lines = wide.text().splitlines()
    assert max(map(len, lines)) <= 80
    assert re.findall(r"\d+", " ".join(x for x in lines if x.startswith("block"))) == [
        str(n) for n in range(1, 71)
    ]
    table = block_table([7, 2, 9], 4, 5, 6).text()
    assert "28 29 30 31 |  8  9 10 11 | 36 37 38 39" in table
    steps = [[("a", 3, True)], [("a", 1, True), ("b", 2, False)]]
    assert re.search(r"a +3\* +1\*\nb +\. +2$", timeline(steps).text())


def test_a_shortest_history_still_fails_and_no_step_of_it_can_go():
    fails = lambda some: some.count("take") >= 3 and "leave" in some  # noqa: E731
    history = ["take", "share"] * 40 + ["leave"] * 5 + ["take"] * 10
    short = shortest(history, fails)
    assert fails(short) and sorted(short) == ["leave", "take", "take", "take"]
