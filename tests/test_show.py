"""What lessons show with: the contract of a lesson, source with its holes, guesses and quizzes, and
a lab solved in the page or on the reader's machine."""

from __future__ import annotations

import ast
import html
import json
import re
import shutil
from pathlib import Path

import pytest

from labs import browser
from labs.compose import Answer
from labs.learner import Learner
from labs.manifest import ENGINE, all_labs, find_lab
from labs.runner import load_tests
from lessons import lab_page, my_code, show
from lessons.bars import bars
from lessons.narrow import WIDTH, narrow
from minivllm.kvcache.block_pool import BlockPool
from minivllm.kvcache.block_table import blocks_needed, slot_mapping

SLUG, POOL = "paged_blocks", "kvcache.block_pool.BlockPool"
LESSON = {
    "number": 5, "slug": SLUG, "title": "Paged <blocks>", "part": "II. Memory", "minutes": 40,
    "question": "Where did it go?", "needs": [], "reads": ["minivllm/kvcache/block_pool.py"],
    "lab": SLUG, "runs_on": "browser",
}  # fmt: skip
RIGHT = """
class BlockPool:
    def allocate(self, n):
        if n > len(self.free_ids):
            raise ValueError("too few")
        ids = [self.free_ids.popleft() for _ in range(n)]
        for block_id in ids:
            self.ref_cnt[block_id] = 1
        return ids

    def release(self, block_ids):
        for block_id in reversed(block_ids):
            assert self.ref_cnt[block_id] > 0
            self.ref_cnt[block_id] -= 1
            if self.ref_cnt[block_id] == 0 and not self.cache.keep(block_id):
                self.give_back(block_id)

def slot_mapping(table, start, num, block_size):
    return [table[p // block_size] * block_size + p % block_size
            for p in range(start, start + num)]
"""
TAKES_ANYWAY = RIGHT.replace("n > len(self.free_ids)", "n > 99").replace(
    "range(n)", "range(min(n, len(self.free_ids)))"
)


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """An empty folder in place of labs/mine."""
    for module in (show, lab_page, my_code):
        monkeypatch.setattr(module, "MINE", tmp_path / "mine")
    return tmp_path / "mine"


@pytest.fixture(scope="module")
def once_passed(tmp_path_factory):
    """What the page says of a right answer, and the folder that it leaves."""
    folder = tmp_path_factory.mktemp("passed") / "mine"
    learner = Learner(folder, say=lambda text: None)
    return lab_page.check_text(learner, find_lab(SLUG, all_labs()), RIGHT), folder


@pytest.fixture
def passed(once_passed, mine):
    """labs/mine with the lab passed in it, and what the page said."""
    state, folder = once_passed
    shutil.copytree(folder, mine)
    return state


def in_page(text):
    return lab_page.lab_result(SLUG, text, in_browser=True)


def text_of(shown):
    markup = re.sub(r"<style>.*?</style>", "", getattr(shown, "text", None) or shown.html)
    return html.unescape(re.sub(r"<[^>]+>", "", markup))


def without_folds(shown):
    return text_of(type(shown)(re.sub(r"<details>.*?</details>", "", shown.text, flags=re.S)))


# The contract.


def notebook(tmp_path, lesson):
    path = tmp_path / "05_paged_blocks.py"
    text = f"with app.setup():\n    import nothing_of_the_sort\n    LESSON = {lesson!r}\n"
    path.write_text(text)
    return path


def test_a_lesson_is_read_without_being_run(tmp_path):
    assert show.metadata(notebook(tmp_path, LESSON)) == LESSON


@pytest.mark.parametrize("change", [{"lab": None}, {"Minutes": 3}])
def test_a_lesson_that_lacks_a_key_or_has_another_is_named(tmp_path, change):
    wrong = {k: v for k, v in (LESSON | change).items() if v is not None}
    with pytest.raises(ValueError, match="05_paged_blocks"):
        show.metadata(notebook(tmp_path, wrong))


@pytest.mark.parametrize("path", sorted(Path(show.__file__).parent.glob("[0-9]*_*.py")), ids=str)
def test_each_notebook_keeps_the_contract(path):
    lesson = show.metadata(path)
    assert path.stem == f"{lesson['number']:02}_{lesson['slug']}"
    assert lesson["question"].endswith("?")


def test_a_head_says_what_the_lesson_is_and_escapes_it():
    head = show.header(LESSON)
    said = text_of(head)
    for part in ("Paged <blocks>", "Where did it go?", "nothing before it", "about 40 minutes",
                 "in your browser", "minivllm/kvcache/block_pool.py", SLUG):  # fmt: skip
        assert part in said
    assert "<blocks>" not in head.text


# Source.


def test_a_hole_is_shown_empty_and_its_body_behind_a_click(mine):
    shown = show.show(BlockPool.allocate, slot_mapping)
    seen = without_folds(shown)
    assert "refuse before you take anything" in seen and "lab paged_blocks" in seen
    assert "popleft" not in seen and "popleft" in text_of(shown)
    lines = Path("minivllm/kvcache/block_pool.py").read_text().splitlines()
    number = lines.index("    def allocate(self, n: int) -> list[int]:") + 1
    assert f"minivllm/kvcache/block_pool.py:{number}" in seen


def test_a_class_does_not_give_away_what_its_methods_hide(mine):
    seen = without_folds(show.show(BlockPool))
    assert "class BlockPool:" in seen and "self.given_up.append(block_id)" in seen
    assert "popleft" not in seen and seen.count("lab paged_blocks") == 2


def test_in_a_notebook_the_whole_file_is_there_without_its_holes(mine, monkeypatch):
    monkeypatch.setattr(show.mo, "running_in_notebook", lambda: True)
    shown = show.show(BlockPool.give_back, BlockPool.share)
    assert text_of(shown).count("all of minivllm/kvcache/block_pool.py") == 1
    assert "def check(self)" in text_of(shown) and "popleft" not in text_of(shown)


def test_what_is_no_hole_is_shown_whole(mine):
    assert "self.given_up.append(block_id)" in without_folds(show.show(BlockPool.give_back))


def test_a_passed_lab_opens_its_holes(passed):
    assert "popleft" in without_folds(show.show(BlockPool.allocate))
    assert "lab paged_blocks" in without_folds(show.show(blocks_needed))  # further, not written


def test_source_links_to_where_it_can_be_read(mine, monkeypatch):
    assert "href" not in show.show(BlockPool.give_back).text
    monkeypatch.setenv(show.SOURCE_URL, "../source/{path}/#L{line}")
    link = re.search(r'href="([^"]*)"', show.show(BlockPool.give_back).text)[1]
    assert re.fullmatch(r"\.\./source/minivllm/kvcache/block_pool\.py/#L\d+", link)


def test_what_a_hole_may_call_is_said_from_source():
    said = text_of(show.calls_of({"self.pool.release": BlockPool.release, "slots": slot_mapping}))
    lines = [line.strip() for line in said.splitlines()]
    assert "self.pool.release(block_ids)" in lines
    assert "slots(table, start, num, block_size) -> list[int]" in lines
    assert any(line.startswith("# One reader leaves each block") for line in lines)


NARROW = [
    '    """It says in one line what it does, and that line is longer than seventy columns."""',
    '    """Short.\n\n    A second paragraph whose only line is much too long to stand in the '
    'narrow column.\n    """',
    '    """A picture stays as it was drawn, wide as it may be:\n\n        [ ]'
    ' [ ] [ ] [ ] [ ] [ ] [ ] [ ] [ ] [ ] [ ] [ ] [ ] [ ] [ ] [ ] [ ]\n    """',
]


@pytest.mark.parametrize("docstring", NARROW)
def test_a_narrow_text_says_the_same_in_fewer_columns(docstring):
    code = '    text = "# no comment, however long it is, and however wide the column may be"\n'
    source = f"def f():\n{docstring}\n    # 1. {'word ' * 20}\n{code}    return text\n"
    made = narrow(source)
    was, now = (ast.parse(text).body[0] for text in (source, made))
    assert ast.get_docstring(now).split() == ast.get_docstring(was).split()
    assert [ast.dump(node) for node in now.body[1:]] == [ast.dump(node) for node in was.body[1:]]
    wide = [line for line in made.splitlines() if len(line) > WIDTH]
    assert [line for line in wide if "[ ]" not in line] == [code.rstrip()]
    assert narrow(made) == made


# Guesses and quizzes.


def test_presses_are_counted_however_few_of_them_arrive():
    press = show.Presses("Ask again")
    assert press.value == 0
    for count in (1, 4, 30):  # the browser's own count, of which marimo may leave some out
        press._update(count)
        assert press.value == count


def test_an_answer_waits_for_its_guess_only_where_one_can_be_made(monkeypatch):
    assert "<details>" in show.reveal(None, "62%", "So it is.").text
    monkeypatch.setattr(show.mo, "running_in_notebook", lambda: True)
    assert "62%" not in show.reveal(None, "62%", "So it is.").text
    said = text_of(show.reveal(30, "62%", "So **it** is."))
    assert "You said 30." in said and "62%" in said and "So it is." in said


def test_what_would_give_an_answer_away_waits_with_it(monkeypatch):
    drawing = bars([("the first gap", 7.5)], caption="Seven times")
    assert "Seven times" not in without_folds(show.reveal(None, "7", "So.", drawing))
    assert "Seven times" in show.reveal(None, "7", "So.", drawing).text
    monkeypatch.setattr(show.mo, "running_in_notebook", lambda: True)
    assert "Seven times" not in show.reveal(None, "7", "So.", drawing).text
    assert "Seven times" in show.reveal(30, "7", "So.", drawing).text


def test_a_lesson_leads_to_another_where_there_is_a_way(monkeypatch):
    def link():
        return re.findall(r'href="([^"]*)"', show.lesson_link("05_paged_blocks", "Paged <blocks>"))

    assert link() == ["05_paged_blocks.html"] and show.standing("said") == "said"
    monkeypatch.setattr(show.mo, "running_in_notebook", lambda: True)
    monkeypatch.delenv("TOKEN_BY_TOKEN_HOME", raising=False)
    assert link() == [] and show.standing("said") == ""
    assert show.lesson_link("05_paged_blocks", "Paged <blocks>") == "Paged &lt;blocks&gt;"
    monkeypatch.setenv("TOKEN_BY_TOKEN_HOME", "http://127.0.0.1:8000/")
    assert link() == ["http://127.0.0.1:8000/open/05_paged_blocks"]
    monkeypatch.setattr(show, "IN_BROWSER", True)
    assert link() == ["../../lessons/05_paged_blocks.html"]


def test_a_quiz_answers_each_choice():
    shown = show.quizzes(r"""
    ? Which `block`
      is free?
    + The third => Nobody
      reads it.
    - The <b>first</b> => It has a reader.
    """)
    said = text_of(shown)
    assert "Which block is free?" in said and "Yes. Nobody reads it." in said
    assert "The <b>first</b>" in said and "No. It has a reader." in said
    assert shown.text.count("<details") == 2 and "<code>block</code>" in shown.text


@pytest.mark.parametrize(
    "text", ["? A\n+ b => c\n+ d => e", "? A\n- b => c", "? A\n+ no reason", "+ a => b"]
)
def test_a_quiz_that_is_none_is_refused(text):
    with pytest.raises(ValueError):
        show.quizzes(text)


# The lab, on the reader's machine.


def test_at_home_the_page_says_what_to_type_and_how_far_it_is(mine):
    state = lab_page.lab_result(SLUG, 0, in_browser=False)
    assert state.status == "not started" and "python -m labs start paged_blocks" in state.html
    Learner(mine, say=lambda text: None).start(find_lab(SLUG, all_labs()))
    assert lab_page.lab_result(SLUG, 1, in_browser=False).status == "under way"
    assert my_code.use_my_code(state).value is False


def test_a_lab_that_changed_since_it_passed_does_not_run_and_the_page_says_so(passed, mine):
    state = lab_page.lab_result(SLUG, 0, in_browser=False)
    assert state.passed and my_code.use_my_code(state).value is True
    path = mine / "05_paged_blocks" / "kvcache" / "block_pool.py"
    path.write_text(path.read_text() + "\n# one more thought\n")
    state = lab_page.lab_result(SLUG, 0, in_browser=False)
    assert state.status == "under way"
    assert "have changed since" in text_of(state) and "passed when" not in text_of(state)


def test_how_many_tests_pass_is_said_of_the_last_check(mine):
    learner = Learner(mine, say=lambda text: None)
    info = find_lab(SLUG, all_labs())
    learner.start(info)
    learner.progress[SLUG].num_passing = 2
    learner.progress.save()
    state = lab_page.lab_result(SLUG, 0, in_browser=False)
    assert "2 tests passed when you last checked" in text_of(state)


# The lab, in the page.


def test_the_page_gives_the_holes_and_nothing_else():
    info = find_lab(SLUG, all_labs())
    text = lab_page.starter(info)
    assert re.findall(r"(?:class|def) (\w+)", text) == ["BlockPool", "allocate", "release",
                                                        "slot_mapping"]  # fmt: skip
    assert text.count("raise NotImplementedError") == 3 and "popleft" not in text
    compile(text.replace("Sequence[int]", "list"), "starter", "exec")


@pytest.mark.parametrize("info", all_labs(), ids=lambda info: info.slug)
def test_no_docstring_or_signature_runs_out_of_the_pages_editor(info):
    text = lab_page.starter(info)
    wide = [line for line in text.splitlines() if len(line) > 70]
    assert all(line.lstrip().startswith("raise NotImplementedError") for line in wide), wide
    engine = [f for file in info.files for f in contracts((ENGINE / file).read_text("utf-8"))]
    assert contracts(text) and all(contract in engine for contract in contracts(text))


def contracts(text):
    """Name, parameters and docstring of each function, however the lines are broken."""
    return [(n.name, ast.unparse(n.args), (ast.get_docstring(n) or "").split())
            for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef)]  # fmt: skip


def test_the_pages_editor_says_that_a_reload_forgets(mine):
    made = lab_page.lab_in_page(SLUG, in_browser=True)
    assert "A reload of this page forgets what you wrote" in html.unescape(made.text)


@pytest.mark.parametrize("info", all_labs(), ids=lambda info: info.slug)
def test_every_lab_of_the_browser_has_a_page_and_its_starter_is_not_written_yet(info, mine):
    if info.runs_on != "browser":
        assert info.runs_on in ("cpu", "gpu")
        return
    state = lab_page.lab_result(info.slug, lab_page.starter(info), in_browser=True)
    assert "is not written yet." in text_of(state) and not state.passed


def test_a_line_keeps_its_number_in_each_file():
    info = find_lab(SLUG, all_labs())
    made = lab_page.by_file(info, RIGHT)
    assert set(made) == set(info.files)
    for text in made.values():
        assert len(text.splitlines()) == len(RIGHT.splitlines())
    pool, table = made["kvcache/block_pool.py"], made["kvcache/block_table.py"]
    assert "slot_mapping" not in pool and "class BlockPool" not in table
    for made_line, line in zip(table.splitlines(), RIGHT.splitlines()):
        assert made_line in ("", line)


def test_a_right_answer_passes_and_the_engine_runs_on_it(passed, mine):
    state = passed
    assert state.passed and "all 10 tests pass" in text_of(state)
    num_core = sum(not hasattr(test, "further") for test in load_tests(find_lab(SLUG, all_labs())))
    assert text_of(state).count("ok") == num_core == 10
    chosen = my_code.engine(True, state, mine)
    assert chosen.is_mine and chosen.name == "your code"
    pool = chosen(POOL)(4)
    with pytest.raises(ValueError, match="too few"):
        pool.allocate(9)
    assert chosen("kvcache.kv_cache_manager.KVCacheManager")(4, 2).pool.__class__ is type(pool)
    assert my_code.engine(False, state, mine)(POOL) is BlockPool
    saved = json.loads((mine / "progress.json").read_text())
    assert saved["labs"][SLUG]["passed"]


def test_a_newer_answer_stands_beside_the_older_one():
    def pool_of(text):
        answer = Answer(text, "mine", ("BlockPool.allocate",), ("slot_mapping",))
        return my_code.composed((("kvcache/block_pool.py", (answer,)),))(POOL)(4)

    older, newer = pool_of(RIGHT), pool_of(RIGHT.replace("too few", "far too few"))
    with pytest.raises(ValueError, match=r"^far too few"):
        newer.allocate(9)
    with pytest.raises(ValueError, match=r"^too few"):
        older.allocate(9)


def test_a_wrong_answer_is_told_with_its_picture_and_the_next_hint_each_time(mine):
    state = in_page(TAKES_ANYWAY)
    said = text_of(state)
    assert not state.passed and "3. takes nothing when short" in said and "NOT YET" in said
    assert "ValueError is raised" in said and "<svg" in state.html and "Hint 1 of 3" in said
    assert "Hint 2 of 3" in in_page(TAKES_ANYWAY).html.split("the next hint")[0]
    assert not my_code.engine(True, state, mine).is_mine


def test_the_next_hint_is_a_click_away_and_the_last_one_has_no_next(mine):
    state = in_page(TAKES_ANYWAY)
    hints = find_lab(SLUG, all_labs()).hints["test_3_takes_nothing_when_short"]
    folds = state.html.split("<details><summary>the next hint</summary>")
    assert len(folds) == len(hints) == 3
    for number, (fold, hint) in enumerate(zip(folds, hints), 1):
        assert f"Hint {number} of 3: {hint}" in html.unescape(fold)
    in_page(TAKES_ANYWAY)
    assert "the next hint" not in text_of(in_page(TAKES_ANYWAY))


def test_a_passed_lab_that_is_broken_again_gives_the_reference_back(passed, mine):
    state = in_page(TAKES_ANYWAY)
    assert not state.passed and not my_code.engine(True, state, mine).is_mine


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("def slot_mapping(:", "your code, line 1"),
        ("x = 1", "has no BlockPool.allocate"),
        (RIGHT.replace("(self, n)", "(self, count)"), "must keep its signature"),
    ],
)
def test_what_cannot_be_composed_is_said_and_changes_nothing(mine, text, says):
    state = in_page(text)
    assert says in text_of(state) and not state.passed
    assert not (mine / "progress.json").exists()


def test_an_endless_loop_is_stopped(mine, monkeypatch):
    monkeypatch.setattr(browser.check, "__defaults__", (0, 20_000))
    loop = RIGHT.replace("ids = [", "while True: n += 1\n        ids = [")
    said = text_of(in_page(loop))
    assert "Is there a loop without end?" in said and "hint" not in said.lower()


def test_what_a_learner_raises_is_text_in_the_page(mine):
    bad = RIGHT.replace("ids = [", "raise KeyError('<script>alert(1)</script>')\n        ids = [")
    state = in_page(bad)
    assert "<script" not in state.html and "alert(1)" in text_of(state)
    number = next(n for n, line in enumerate(bad.splitlines(), 1) if "alert" in line)
    assert f"at line {number} of your code, in allocate" in text_of(state)
