"""What requests do to their scores: judged by plain Python, by counting draws, and in company."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from plain_sampling import judged_probs, judged_scores, judged_token
from test_sampler import assert_drawn_from
from tiny_models import oracle, random_llama

from minivllm import LLM
from minivllm.sample.logits_processors import LogitsProcessor, load_plugins, process
from minivllm.sample.rules import SamplerRow, ScoreRules
from minivllm.sample.sampler import sample
from minivllm.sampling_params import SamplingParams

VOCAB = 12
EOS = (11,)


def row_of(params, prompt=(), output=(), vocab_size=VOCAB, plugins=()) -> SamplerRow:
    tokens = [*prompt, *output]
    rules = ScoreRules(
        params, tokens, len(prompt), vocab_size=vocab_size, eos_token_ids=EOS, plugins=plugins
    )
    return SamplerRow(params, position=len(tokens), rules=rules)


def processed(logits, *rows, plugins=()) -> list[list[float]]:
    return process(torch.tensor(logits, dtype=torch.float64), rows, plugins).tolist()


ids = st.integers(0, VOCAB - 1)
id_lists = st.lists(ids, max_size=8)
scores_of_a_row = st.lists(
    st.floats(-30, 30) | st.just(-math.inf), min_size=VOCAB, max_size=VOCAB
).filter(lambda row: max(row) > -math.inf)
settings = st.builds(
    SamplingParams,
    presence_penalty=st.sampled_from([0, 0, -2, 0.5, 2]),
    frequency_penalty=st.sampled_from([0, 0, -2, 0.3, 2]),
    repetition_penalty=st.sampled_from([1, 1, 0.2, 1.5, 7]),
    logit_bias=st.dictionaries(ids, st.floats(-100, 100), max_size=3),
    allowed_token_ids=st.none() | st.lists(ids, min_size=1, max_size=VOCAB),
    bad_words_token_ids=st.lists(st.lists(ids, min_size=1, max_size=3), max_size=4),
    min_tokens=st.integers(0, 4),
    stop_token_ids=st.lists(ids, max_size=2),
    ignore_eos=st.booleans(),
)
requests = st.tuples(scores_of_a_row, settings, id_lists, id_lists)


@given(st.lists(requests, min_size=1, max_size=5))
def test_c13_scores_are_what_plain_python_makes_of_each_row_alone(batch):
    """Rows of every kind side by side, those without penalties or without history too."""
    rows = [row_of(params, prompt, output) for _, params, prompt, output in batch]
    got = processed([scores for scores, *_ in batch], *rows)
    for line, (scores, params, prompt, output) in zip(got, batch, strict=True):
        assert line == pytest.approx(judged_scores(scores, params, prompt, output, EOS), abs=1e-9)


@given(settings, id_lists, id_lists)
def test_counts_kept_token_by_token_are_those_made_at_once(params, prompt, output):
    """So that a preempted request, which is introduced anew, goes on as it would have."""
    logits = [[(7 * i % 5) - 2.0 for i in range(VOCAB)]]
    growing = row_of(params, prompt)
    for num in range(len(output) + 1):
        anew = row_of(params, prompt, output[:num])
        assert processed(logits, growing) == processed(logits, anew)
        growing.rules.token_ids.extend(output[num : num + 1])


def test_counts_start_afresh_when_tokens_have_changed():
    params = SamplingParams(frequency_penalty=1.0)
    row = row_of(params, [3], [4, 4])
    assert processed([[0.0] * VOCAB], row)[0][4] == -2
    row.rules.token_ids[2] = 5
    row.rules.recount()
    assert processed([[0.0] * VOCAB], row)[0][4:6] == [-1, -1]


def test_a_step_counts_only_the_tokens_that_are_new():
    params = SamplingParams(presence_penalty=1.0)
    row = row_of(params, [3], [4])
    processed([[0.0] * VOCAB], row)
    row.rules.token_ids[1] = 9  # counted already: nobody looks there again
    row.rules.token_ids.append(5)
    scores = processed([[0.0] * VOCAB], row)[0]
    assert (scores[4], scores[5], scores[9]) == (-1, -1, 0)


def test_rows_that_ask_for_nothing_are_not_touched():
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(0))
    before, plain = logits.clone(), SamplerRow(SamplingParams(), 5)
    assert process(logits, [plain] * 3) is logits
    banned = row_of(SamplingParams(bad_words_token_ids=[[7]]))
    got = process(logits, [plain, banned, plain])
    assert torch.equal(got[[0, 2]], before[[0, 2]]) and got[1, 7] == -math.inf
    assert torch.equal(logits, before)


def test_c14_only_a_requests_own_tokens_are_penalised():
    """Rows of prompts of many lengths, none of which holds the id 0 that others pad with."""
    params = SamplingParams(repetition_penalty=2.0, presence_penalty=1.0)
    rows = [row_of(params, [5] * n, [6] * m) for n, m in ((1, 0), (7, 3), (3, 1), (12, 9))]
    for line in processed([[4.0] * VOCAB] * 4, *rows):
        assert line[0] == 4.0 and line[5] == 2.0
        assert [x for i, x in enumerate(line) if i not in (5, 6)] == [4.0] * (VOCAB - 2)


def test_c16_a_bad_word_is_matched_at_the_end_of_the_answer():
    """Not at its start, not across the prompt's end, and every word by its own length."""
    params = SamplingParams(bad_words_token_ids=[[1, 2, 3], [2, 4], [7]])
    for prompt, output, banned in (
        ([], [1, 2], {3, 4, 7}),
        ([], [1, 2, 5], {7}),
        ([], [5, 1, 2], {3, 4, 7}),
        ([1, 2], [], {7}),
        ([1], [2], {4, 7}),
        ([], [2, 1], {7}),
        ([], [], {7}),
    ):
        (line,) = processed([[0.0] * VOCAB], row_of(params, prompt, output))
        assert {i for i, x in enumerate(line) if x == -math.inf} == banned, (prompt, output)


def test_c10_a_request_that_bans_all_it_allows_ends_alone():
    nothing = SamplingParams(allowed_token_ids=[5, 6], bad_words_token_ids=[[5], [6]], seed=1)
    sure = SamplingParams(allowed_token_ids=[5], logit_bias={5: -100}, min_p=1.0, seed=1)
    logits = torch.zeros(3, VOCAB)
    output = sample(logits, [row_of(nothing), row_of(sure), SamplerRow(sure, 0)])
    assert output.errors.keys() == {0} and "masked" in output.errors[0]
    assert output.token_ids[1] == 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_penalties_are_worked_out_in_float32_at_least(dtype):
    """0.001 times 3 is nothing to a score of 60 in bfloat16."""
    params = SamplingParams(frequency_penalty=0.001)
    scores = process(torch.full((1, VOCAB), 60.0, dtype=dtype), [row_of(params, [], [4] * 3)])
    assert scores.dtype == torch.float32
    assert scores[0, 4].item() == pytest.approx(59.997, abs=1e-5)


SMALL = [0.4, 0.25, 0.15, 0.1, 0.06, 0.04]


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.5},
        {"temperature": 3.0, "top_k": 4},
        {"top_p": 0.8},
        {"min_p": 0.2, "top_p": 0.9},
        {"presence_penalty": 1.5},
        {"frequency_penalty": 0.7},
        {"frequency_penalty": -0.5, "presence_penalty": 1.0},
        {"repetition_penalty": 1.8},
        {"repetition_penalty": 0.4, "temperature": 1.5},
        {"logit_bias": {0: -2.5, 5: 2.5}},
        {"logit_bias": {"0": -100}},
        {"allowed_token_ids": [1, 4, 5]},
        {"bad_words_token_ids": [[1], [2, 3]], "min_tokens": 9, "stop_token_ids": [5]},
        {"repetition_penalty": 1.3, "frequency_penalty": 0.4, "temperature": 1.4, "min_p": 0.15,
         "top_k": 4, "top_p": 0.95, "logit_bias": {4: 1.5}, "bad_words_token_ids": [[2, 0]]},
    ],
    ids=str,
)  # fmt: skip
def test_c19_draws_follow_the_settings(options):
    """20,000 draws of a request that has said 1 and 2, with logits above 0 and below."""
    params = SamplingParams(**options, seed=23)
    logits = [math.log(p) + 1.8 for p in SMALL]
    prompt, output = [3, 1], [1, 2, 2]
    row = row_of(params, prompt, output, vocab_size=len(SMALL))
    drawn = []
    for start in range(0, 20_000, 1000):
        rows = [replace(row, position=start + i) for i in range(1000)]
        drawn += sample(torch.tensor(logits).expand(1000, -1), rows).token_ids
    want = judged_probs(judged_scores(logits, params, prompt, output), params)
    assert_drawn_from([p if p > 1e-9 else 0 for p in want], drawn)


def pairs_drawn(first: list[SamplerRow], second: list[SamplerRow]) -> list[int]:
    """Both draws of each pair of rows as one number of 16."""
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    a, b = (sample(logits.expand(len(rows), -1), rows).token_ids for rows in (first, second))
    return [4 * i + j for i, j in zip(a, b, strict=True)]


@pytest.mark.parametrize("varied", ["seed", "sample_index", "position"])
def test_draws_of_neighbours_are_independent(varied):
    """Of seed and seed + 1, of one sample and the next, of one position and the next: the pairs
    follow the product of the two distributions, over 20,000 of them."""

    def rows(offset: int) -> list[SamplerRow]:
        made = []
        for i in range(20_000):
            numbers = {"seed": i, "sample_index": 3, "position": 5}
            if varied != "seed":
                numbers = {"seed": 77, "sample_index": i // 100, "position": 2 * (i % 100)}
            numbers[varied] += offset
            params = params_of[numbers["seed"]]
            made.append(SamplerRow(params, numbers["position"], numbers["sample_index"]))
        return made

    params_of = [SamplingParams(seed=s) for s in range(20_001)]
    single = [0.4, 0.3, 0.2, 0.1]
    assert_drawn_from([p * q for p in single for q in single], pairs_drawn(rows(0), rows(1)))


class Parity(LogitsProcessor):
    """Keeps to ids of one parity."""

    arg_names = ("parity",)

    def wants(self, params):
        parity = dict(params.extra_args).get("parity")
        if parity not in (None, 0, 1):
            raise ValueError(f"extra_args: parity must be 0 or 1, got {parity!r}")
        return parity is not None

    def apply(self, scores, rows):
        for line, row in zip(scores, rows, strict=True):
            line[1 - dict(row.params.extra_args)["parity"] :: 2] = -math.inf


class LastAgain(LogitsProcessor):
    """Raises the score of the last token."""

    arg_names = ("again",)

    def wants(self, params):
        return "again" in dict(params.extra_args)

    def apply(self, scores, rows):
        assert len(scores) == len(rows)
        for line, row in zip(scores, rows, strict=True):
            line[row.rules.token_ids[-1]] += dict(row.params.extra_args)["again"]


HERE = __name__
PLUGINS = (f"{HERE}:Parity", f"{HERE}:LastAgain")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return random_llama(tmp_path_factory.mktemp("rules"), dtype="float64")


def test_a_plug_in_changes_the_requests_that_ask_and_no_others(folder):
    llm = LLM(folder, dtype="float64", num_blocks=30, block_size=4, logits_processors=PLUGINS)
    plain = SamplingParams(temperature=0, max_tokens=8)
    even = replace(plain, extra_args={"parity": 0})
    again = replace(plain, extra_args={"parity": 1, "again": 1000.0})
    wrong = replace(plain, extra_args={"parity": 2})
    outputs = llm.generate([[5, 6, 7]] * 4, [plain, even, again, wrong])
    said = [list(o.outputs[0].token_ids) for o in outputs]
    without = LLM(folder, dtype="float64", num_blocks=30, block_size=4)
    assert said[0] == list(without.generate([[5, 6, 7]], plain)[0].outputs[0].token_ids)
    assert any(i % 2 for i in said[0]) and not any(i % 2 for i in said[1])
    assert said[2] == [7] * 8
    assert outputs[3].outputs[0].finish_reason == "error"
    assert "parity must be 0 or 1" in outputs[3].outputs[0].error


def test_plug_ins_come_before_penalties():
    """vLLM's order: 0 + 8, and only then divided by 2."""
    (plugin,) = load_plugins([f"{HERE}:LastAgain"])
    params = SamplingParams(repetition_penalty=2.0, extra_args={"again": 8})
    row = row_of(params, [3], plugins=(plugin,))
    assert processed([[0.0] * VOCAB], row, plugins=[plugin])[0][3] == 4


@pytest.mark.parametrize("name", ["nowhere.at.all:X", "math:X", "math", "math:pi", "math:sin", ""])
def test_what_is_no_plug_in_is_refused_by_name(name):
    with pytest.raises(ValueError, match=f"logits_processors.*{name}"):
        load_plugins([name])


def random_settings(rng: random.Random, seed: int) -> SamplingParams:
    def some(values, chance=0.4):
        return values if rng.random() < chance else None

    return SamplingParams(
        temperature=rng.choice([0, 0.5, 1.0, 1.7]),
        top_k=rng.choice([0, 0, 3, 40]),
        top_p=rng.choice([1.0, 0.9, 0.5]),
        min_p=rng.choice([0.0, 0.0, 0.1]),
        presence_penalty=rng.choice([0, 0, 1.5, -1]),
        frequency_penalty=rng.choice([0, 0, 0.8, -0.5]),
        repetition_penalty=rng.choice([1, 1, 1.4, 0.8]),
        logit_bias=some({rng.randrange(331): rng.uniform(-9, 9) for _ in range(9)}),
        allowed_token_ids=some(rng.sample(range(331), 40), 0.2),
        bad_words_token_ids=[[i] for i in rng.sample(range(331), 60)] + [[2, 3]],
        min_tokens=rng.choice([0, 5]),
        stop_token_ids=rng.sample(range(331), 20),
        n=rng.choice([1, 2]),
        max_tokens=rng.randint(6, 16),
        logprobs=2,
        seed=seed,
    )


def judged_answer(judge, prompt, params, sample_index, eos) -> list[int]:
    """The whole answer by transformers' scores and plain Python."""
    output: list[int] = []
    while len(output) < params.max_tokens:
        with torch.no_grad():
            raw = judge(torch.tensor([[*prompt, *output]])).logits[0, -1].tolist()
        scores = judged_scores(raw, params, prompt, output, eos)
        output.append(judged_token(scores, params, len(prompt) + len(output), sample_index))
        if len(output) >= params.min_tokens and output[-1] in {*eos, *params.stop_token_ids}:
            break
    return output


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_requests_with_every_setting_say_in_full_memory_what_plain_python_says(folder, preemption):
    """16 random requests, some of two samples, in memory for three or four: every token is the one
    that transformers' scores and plain sampling give, whoever was stopped in between."""
    judge, rng = oracle(folder, torch.float64), random.Random(5)
    llm = LLM(
        folder, dtype="float64", debug=True, num_blocks=24, block_size=4, max_num_seqs=12,
        max_num_batched_tokens=24, preemption=preemption, num_host_blocks=30,
    )  # fmt: skip
    prompts = [[rng.randrange(331) for _ in range(rng.randint(1, 20))] for _ in range(16)]
    params = [random_settings(rng, seed) for seed in range(16)]
    outputs = llm.generate(prompts, params)
    assert sum(o.metrics.num_preemptions for o in outputs) >= 3
    eos = tuple(llm.engine.core.scheduler.eos_token_ids)
    for prompt, own, output in zip(prompts, params, outputs, strict=True):
        for answer in output.outputs:
            want = judged_answer(judge, prompt, own, answer.index, eos)
            assert list(answer.token_ids) == want, own
