"""What lesson 01 is made of: a walk against the engine's own trace file, five pictures against the
model, the reader's loop, and the words that all of them use."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from tiny_models import oracle, random_llama

from lessons import loop, primer, rooms
from lessons.draw import DECODE, NOTHING, PREFILL
from lessons.glossary import GLOSSARY, term
from lessons.walk import EXECUTOR, KVCACHE, NAMES, SCHEDULER, Stop, names_in, record
from minivllm.engine.greedy import generate_greedy
from minivllm.entrypoints.llm import LLM
from minivllm.sampling_params import SamplingParams
from minivllm.tokenizer.bpe_file import save_bpe
from minivllm.tokenizer.bpe_training import train

ROOT = Path(__file__).parent.parent
TEXT = "Once upon a time there was a little fox. The fox wanted to see the sea. "
SIZES = {"vocab_size": 280, "intermediate_size": 20, "tie_word_embeddings": True}
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = random_llama(tmp_path_factory.mktemp("walk"), **SIZES)
    save_bpe(train(TEXT * 3, 280, ["<end>"], bos_token="<end>", add_bos_token=True), folder)
    return folder


def make(folder, **options):
    options = {"block_size": 4, "max_model_len": 80, "seed": 0, **options}
    return LLM(folder, executor="executor.plain.PlainExecutor", **options)


def planned(walk) -> list[Stop]:
    return [stop for stop in walk.stops if stop.message == "SchedulerOutput"]


def test_a_walk_shows_every_plan_and_result_that_the_trace_file_holds(folder, tmp_path):
    file = tmp_path / "trace.jsonl"
    llm = make(folder, trace_file=str(file))
    llm.generate([TEXT], GREEDY)
    llm.engine.core.step()  # tells the executor of the end, as the walk does
    llm.shutdown()
    steps = [line for line in map(json.loads, file.read_text().splitlines()) if "plan" in line]
    walk = record(make(folder), TEXT, GREEDY)
    assert len(planned(walk)) == len(steps) == 7
    results = [stop for stop in walk.stops if stop.message == "ModelRunnerOutput"]
    for step, stop in zip(steps, planned(walk)):
        assert stop.step == step["plan"]["step"]
        for row in step["plan"].get("rows", ()):
            assert f"token_ids={tuple(row['token_ids'])}" in dict(stop.fields)["rows"]
    for step, stop in zip(steps, results):
        assert dict(stop.fields)["sampled"] == f"({tuple(step['result']['sampled'][0])},)"


def test_the_answer_of_a_walk_is_what_generate_writes(folder):
    (out,) = make(folder).generate([TEXT], GREEDY)
    assert record(make(folder), TEXT, GREEDY).stops[-1].answer == out.outputs[0].text


def test_the_prompt_is_computed_once_and_then_one_token_a_step(folder):
    kinds = [stop.kind for stop in planned(record(make(folder), TEXT, GREEDY))]
    assert kinds == [PREFILL] + [DECODE] * 5 + [NOTHING]


def test_a_request_owns_as_many_blocks_as_its_tokens_need(folder):
    llm = make(folder)
    walk = record(llm, TEXT, GREEDY)
    for number, stop in enumerate(planned(walk)[:-1]):
        num_tokens = walk.num_prompt_tokens + number
        assert len(stop.block_ids) == -(-num_tokens // 4)
    given = [s for s in walk.stops if (s.source, s.target) == (KVCACHE, SCHEDULER)]
    assert sum(len(eval(dict(s.fields)["block_ids"])) for s in given) == len(given[-1].block_ids)
    assert walk.stops[-1].block_ids == ()
    assert all("A block holds 4 tokens here" in stop.says for stop in given)
    llm.engine.core.scheduler.check()


def test_a_prompt_that_is_cut_gives_its_first_token_after_the_last_piece(folder):
    walk = record(make(folder, max_num_batched_tokens=10), TEXT, GREEDY)
    num_pieces = -(-walk.num_prompt_tokens // 10)
    kinds = [stop.kind for stop in planned(walk)]
    assert kinds == [PREFILL] * num_pieces + [DECODE] * 5 + [NOTHING]
    first = next(stop for stop in walk.stops if stop.message == "RequestOutput")
    assert first.step == num_pieces
    assert walk.stops[-1].answer == record(make(folder), TEXT, GREEDY).stops[-1].answer


def test_a_stop_string_ends_the_walk_and_frees_the_blocks(folder):
    (out,) = make(folder).generate([TEXT], GREEDY)
    text = out.outputs[0].text
    stop = text[: len(text) // 2]
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, stop=stop)
    walk = record(make(folder), TEXT, params)
    assert 1 < len(planned(walk)) < 7
    last = walk.stops[-2]
    assert (last.message, last.block_ids) == ("RequestOutput", ())
    assert dict(last.fields)["finish_reason"] == "'stop'"
    assert "finished_ids" in dict(walk.stops[-1].fields)


def test_a_walk_leaves_the_engine_as_it_was(folder):
    llm = make(folder)
    core = llm.engine.core
    before = core.trace, core.scheduler.trace, core.clock
    record(llm, TEXT, GREEDY)
    with pytest.raises(ValueError, match="max_model_len"):
        record(llm, TEXT * 20, GREEDY)
    assert (core.trace, core.scheduler.trace, core.clock) == before
    assert not core.has_unfinished_requests


def test_a_busy_engine_and_several_samples_are_refused(folder):
    llm = make(folder)
    with pytest.raises(ValueError, match="n must be 1, got 2"):
        record(llm, TEXT, SamplingParams(n=2))
    answer = llm.stream(TEXT, GREEDY)
    next(answer)
    with pytest.raises(ValueError, match="busy"):
        record(llm, TEXT, GREEDY)


def test_every_stop_has_a_picture_with_a_name_and_a_text_of_80_columns(folder):
    walk = record(make(folder), TEXT, GREEDY)
    heading, rows = rooms.twin(walk)
    assert len(rows) == len(walk.stops) and {len(row) for row in rows} == {len(heading)}
    for index, stop in enumerate(walk.stops):
        image = ElementTree.fromstring(rooms.rooms_svg(walk, index))
        words = " ".join(image.itertext())
        assert image.get("role") == "img" and stop.says in words and stop.message in words
        lines = rooms.text(walk, index).splitlines()
        assert max(map(len, lines)) <= 80
        assert [line for line in lines if f"[{stop.target}]" in line]
        for name, _ in stop.fields:
            assert f">{name}</th>" in rooms.card(walk, index)


def test_a_name_that_says_little_is_explained_where_it_stands(folder):
    walk = record(make(folder), TEXT, GREEDY)
    shown = {name for stop in walk.stops for name, _ in names_in(stop)}
    assert shown == set(NAMES)
    for index, stop in enumerate(walk.stops):
        for name, value in stop.fields:
            explained = dict(names_in(stop))
            for said in (n for n in NAMES if n == name or f"{n}=" in value):
                assert explained[said] == NAMES[said]
        for name, _ in names_in(stop):
            assert f"<code>{name}</code>" in rooms.card(walk, index)


def test_a_page_steps_through_every_stop_by_itself(folder):
    walk = record(make(folder), TEXT, GREEDY)
    shown = rooms.page(walk)
    count = len(walk.stops)
    numbers = [int(n) for n in re.findall(r'<input type="radio" [^>]*id="tt-stop-(\d+)"', shown)]
    assert (
        numbers == [*range(1, count + 1)] and len(re.findall(r"<input [^>]*checked>", shown)) == 1
    )
    ways = {
        int(number): re.findall(r'<label for="tt-stop-(\d+)">(\w+)</label>', nav)
        for nav, number in re.findall(r"(<nav>.*?<b>(\d+) of .*?</nav>)", shown, re.S)
    }
    assert ways[1] == [("2", "Next")] and ways[count] == [(str(count - 1), "Back")]
    assert all(ways[n] == [(str(n - 1), "Back"), (str(n + 1), "Next")] for n in range(2, count))


def test_an_arrow_goes_down_into_the_executor_and_up_out_of_it():
    down, up = rooms._ends(SCHEDULER, EXECUTOR), rooms._ends(EXECUTOR, SCHEDULER)
    assert down == (up[2], up[3], up[0], up[1]) and down[3] > down[1]


def test_the_five_pictures_say_what_the_model_says(folder):
    llm = make(folder)
    seen = primer.look(llm, TEXT)
    model = oracle(folder)
    assert seen.num_weights == sum(p.numel() for p in model.parameters())
    (out,) = llm.generate([TEXT], SamplingParams(temperature=0, max_tokens=1))
    assert [i for i, _ in seen.tokens] == list(out.prompt_token_ids)
    assert seen.next == primer.piece(llm, out.outputs[0].token_ids[0])
    shares = torch.softmax(model(torch.tensor([out.prompt_token_ids])).logits[0, -1], -1)
    best = shares.sort(descending=True).values[: primer.NUM_SHOWN].tolist()
    assert [share for _, share in seen.best] == pytest.approx(best, abs=1e-5)
    for title, svg, _ in primer.pictures(seen):
        assert ElementTree.fromstring(svg).get("role") == "img", title
    assert all(len(row) == 2 for row in primer.twin(seen)[1])


def test_a_token_is_shown_so_that_one_can_see_it(folder):
    llm = make(folder)
    shown = [primer.piece(llm, i) for i in llm.tokenizer.encode(" the\nsea é")]
    assert shown[0] == "start" and "␣" in "".join(shown) and "⏎" in "".join(shown)
    assert "c3" in shown and "a9" in shown  # half of é each


def test_every_word_of_the_glossary_has_a_sentence_and_a_file_that_exists():
    for word, entry in GLOSSARY.items():
        assert entry.says.endswith(".") and entry.says.count(". ") == 0, word
        assert not entry.file or (ROOT / "minivllm" / entry.file).is_file(), word


def test_the_glossary_holds_the_names_that_the_engine_lives_by():
    names = """Request block block_size block_table slot_mapping num_computed_tokens ref_cnt
        get_computed_blocks allocate_slots fork free match_prefix insert evict Executor Worker
        ModelRunner KVConnector token step prefill decode TTFT kv_bytes"""
    assert not [name for name in names.split() if name not in GLOSSARY]


def test_a_word_tells_its_meaning_and_an_unknown_one_is_refused():
    shown = ElementTree.fromstring(term("token", "to<kens>"))
    assert shown.text == "to<kens>" and shown.get("title") == GLOSSARY["token"].says
    with pytest.raises(ValueError, match="no 'tokne'"):
        term("tokne")


RIGHT = """
def my_loop(step, prompt, max_tokens):
    output = []
    while len(output) < max_tokens:
        output.append(step(prompt + output))
    return output
"""
LOOPS = {  # what a reader may write: what the page says of it
    "": "There is no function my_loop.",
    "my_loop = 3": "There is no function my_loop.",
    "def my_loop(step, prompt, max_tokens)\n    pass": "Line 1 is not Python",
    RIGHT.replace("output = []", "output = [\n"): "Line 3 is not Python",
    RIGHT.replace("prompt + output", "prompt"): "Each question brought the same",
    RIGHT.replace("return output", "return prompt + output"): "without the prompt",
    RIGHT.replace("return output", "pass"): "It returns None",
    RIGHT.replace("return output", "return [10 ** 9]"): "no token ids",
    RIGHT.replace("while", "if"): "1 of 6 tokens. Again",
    RIGHT.replace("len(output) < max_tokens", "False"): "It returns no ids yet.",
    RIGHT.replace("len(output) < max_tokens", "True"): "asks a 10th time for 6 tokens",
    RIGHT.replace("output.append(step(prompt + output))", "pass"): "without asking the model",
    RIGHT.replace("    while", "    step(prompt)\n    while").replace(
        "output.append(step(prompt + output))", "pass"
    ): "without asking the model",
    RIGHT.replace("step(prompt + output)", "step('a', 1)"): "Line 5: TypeError",
    RIGHT.replace("step(prompt + output)", "step([])"): "the prompt is empty",
    RIGHT.replace("append", "add"): "Line 5: AttributeError",
    RIGHT.replace("return output", "raise SystemExit"): "Line 6: SystemExit",
}


def test_a_readers_loop_writes_what_the_engine_writes(folder):
    llm = make(folder)
    written = loop.run(RIGHT, "my_loop", llm, TEXT, 6)
    (out,) = make(folder).generate([TEXT], GREEDY)
    assert written.problem == "" and written.text == out.outputs[0].text
    num = len(out.prompt_token_ids)
    assert [q.num_tokens for q in written.questions] == [*range(num, num + 6)]


@pytest.mark.parametrize("source", LOOPS, ids=range(len(LOOPS)))
def test_a_loop_that_is_not_yet_right_is_told_what_is_odd(folder, source):
    before = sys.gettrace()
    written = loop.run(source, "my_loop", make(folder), TEXT, 6)
    assert LOOPS[source] in written.problem
    assert sys.gettrace() is before


def test_an_endless_loop_still_shows_what_it_wrote(folder):
    (out,) = make(folder).generate([TEXT], GREEDY)
    written = loop.run(RIGHT.replace("len(output) < max_tokens", "True"), "my_loop",
                       make(folder), TEXT, 6)  # fmt: skip
    assert written.text.startswith(out.outputs[0].text)


def test_the_race_times_each_token_of_both_and_two_single_questions(folder):
    llm = make(folder, max_model_len=300)
    race = loop.race(llm, generate_greedy, TEXT, 5)
    assert len(race.loop) == len(race.engine) == 5 and race.long > race.short > 0
    for picture in race.pictures("said here"):
        assert ElementTree.fromstring(picture.svg(312)).get("role") == "img"
        assert "now" not in picture.caption  # the site shows it days later
    first, second = loop.first_two(llm, TEXT)
    assert first > second > 0


def test_what_else_a_machine_does_now_and_then_changes_no_gap(monkeypatch):
    runs = iter([[0.3, 0.04], [0.9, 0.05], [0.2, 0.5], [0.3, 0.7], [0.8, 0.04]])
    monkeypatch.setattr(loop, "gaps", lambda *_: next(runs))
    assert loop.first_two(None, TEXT) == (0.3, 0.05)


def test_the_race_asks_for_its_short_word_before_and_after_the_long_one(folder, monkeypatch):
    asked = []

    class Noted(loop.Memoryless):
        def __call__(self, token_ids):
            asked.append(len(token_ids))
            seconds = {1: (0.01, 0.02, 0.09)[len(asked) % 3], 200: 3.0}[len(token_ids)]
            self.questions.append(loop.Question(len(token_ids), seconds))

    monkeypatch.setattr(loop, "Memoryless", Noted)
    race = loop.race(make(folder), lambda *_: None, TEXT, 2)
    assert (race.short, race.long) == (20, 3000) and asked.index(200) == len(asked) // 2


def test_an_answer_that_one_asks_for_ends_once_and_says_why():
    assert "asked for: 3. The next question brings 12 tokens" in primer.asked(3, 30, 12, False)
    for num_presses in (30, 31, 99):
        said = primer.asked(num_presses, 30, 39, False)
        assert "asked for: 30. Here it ends" in said and "this page asks for 30 tokens" in said
        assert "chose its end token" in primer.asked(num_presses, 5, 14, True)


def test_the_law_counts_what_a_loop_asks_and_what_the_engine_plans(folder):
    llm = make(folder)
    walk = record(llm, TEXT, GREEDY)
    model = loop.Memoryless(llm)
    generate_greedy(model, llm.tokenizer.encode(TEXT), 6)
    num = walk.num_prompt_tokens
    assert sum(q.num_tokens for q in model.questions) == loop.work_without_memory(num, 6)
    assert walk.num_computed == loop.work_with_memory(num, 6)
    assert loop.times_the_work(1, 200) == 20100 / 200


def test_a_stop_is_found_by_its_message_and_step(folder):
    walk = record(make(folder), TEXT, GREEDY)
    number = walk.find("SchedulerOutput", 2)
    assert (walk.stops[number - 1].message, walk.stops[number - 1].step) == ("SchedulerOutput", 2)
    assert number > walk.find("ModelRunnerOutput", 1)
    with pytest.raises(ValueError):
        walk.find("SchedulerOutput", 99)
