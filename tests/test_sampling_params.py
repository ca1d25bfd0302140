"""SamplingParams: what is accepted, what is refused, and that every refusal names its field."""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace

import pytest
import tables
from hypothesis import given
from hypothesis import strategies as st
from tables import write_sampling_table
from tiny_models import random_llama

from minivllm import LLM
from minivllm.engine.input_processor import InputProcessor
from minivllm.metrics.trace import pack, unpack
from minivllm.sampling_params import SamplingParams

BAD = [
    ("n", [0, -1, 1.5, True, None, "2"]),
    ("presence_penalty", [-2.01, 2.01, math.nan, math.inf, None, "1", True]),
    ("frequency_penalty", [-2.01, 2.01, math.nan, -math.inf, None]),
    ("repetition_penalty", [0, -0.1, math.nan, math.inf, None]),
    ("temperature", [-0.1, math.nan, math.inf, None, "nan", "0.5", True]),
    ("top_k", [-2, 1.0, None, "5"]),
    ("top_p", [0, 0.0, -0.1, 1.01, math.nan, None]),
    ("min_p", [-0.1, 1.01, math.nan, None]),
    ("seed", [1.5, "1", True]),
    ("max_tokens", [-1, 1.5, "16"]),
    ("min_tokens", [-1, 17, None, 1.5]),
    ("stop", [[""], "", [7], [None], 7, b"x"]),
    ("stop_token_ids", [["7"], [1.5], [True], [-1], 7, "77"]),
    ("ignore_eos", [1, "false", None]),
    ("include_stop_str_in_output", [0, None]),
    ("skip_special_tokens", [1, None]),
    ("logprobs", [-2, 1.5, True, "3"]),
    ("prompt_logprobs", [-2, 1.5, True]),
    (
        "logit_bias",
        [{7: 100.5}, {7: -101}, {7: math.nan}, {7: "1"}, {7: None}, {"x": 1}, {"-7": 1}, {-7: 1},
         {1.5: 1}, {True: 1}, {"7": 1, 7: 2}, {"": 1}, {" 7": 1}, {"²": 1}, 7, [7], "7",
         [[7, 1, 1]]],
    ),
    ("allowed_token_ids", [[], (), ["7"], [-1], [1.5], 7]),
    ("bad_words", [[""], [7], [None], 7]),
    ("bad_words_token_ids", [[[]], [["7"]], [7], [[-1]], [[3], []], 7, "7", ["77"]]),
    ("extra_args", [{"a": [1]}, {"a": None}, {7: 1}, 7, "a", ["a"]]),
]  # fmt: skip


@pytest.mark.parametrize("name, value", [(n, v) for n, values in BAD for v in values], ids=repr)
def test_h8_what_makes_no_sense_is_refused_by_name(name, value):
    """NaN too, which no comparison catches."""
    with pytest.raises(ValueError, match=name):
        SamplingParams(**{name: value})


def test_every_field_has_something_that_is_refused():
    assert [name for name, _ in BAD] == [f.name for f in fields(SamplingParams)]


@pytest.mark.parametrize(
    "name, values",
    [
        ("top_k", [-1, 0, 1, 10**9]),
        ("top_p", [1e-9, 1, 1.0]),
        ("min_p", [0, 1]),
        ("temperature", [0, 1e-300, 100]),
        ("presence_penalty", [-2, 2, 0.5]),
        ("frequency_penalty", [-2, 2]),
        ("repetition_penalty", [1e-3, 1, 50]),
        ("logprobs", [None, 0, -1]),
        ("max_tokens", [None, 0]),
        ("seed", [None, 0, -1, 2**70]),
        ("stop", [None, (), [], "a", ["a", "b"]]),
        ("bad_words", [None, "a", ["a", " b"]]),
        ("logit_bias", [None, {}, {0: 100, 5: -100}]),
        ("allowed_token_ids", [None, [0], range(5)]),
    ],
)
def test_the_ends_of_every_range_are_accepted(name, values):
    for value in values:
        SamplingParams(**{name: value})


def test_h11_a_misspelt_parameter_is_refused_by_name():
    with pytest.raises(TypeError, match="temprature"):
        SamplingParams(temprature=0.5)


def test_c19_keys_of_a_logit_bias_may_be_strings():
    assert SamplingParams(logit_bias={"7": -100, "12": 3}).logit_bias == ((7, -100), (12, 3))


def test_lists_are_kept_as_tuples_that_nobody_else_holds():
    banned, biases = [[1, 2], [3]], {5: 1.0}
    params = SamplingParams(
        stop=["x"], stop_token_ids=[1], allowed_token_ids=[2, 1], bad_words=["y"],
        bad_words_token_ids=banned, logit_bias=biases, extra_args={"k": "v"},
    )  # fmt: skip
    banned[0].append(9)
    biases[6] = 1.0
    assert params.bad_words_token_ids == ((1, 2), (3,)) and params.logit_bias == ((5, 1.0),)
    assert params == replace(params) and hash(params) == hash(replace(params))


ids = st.lists(st.integers(0, 99), max_size=3)
some_params = st.builds(
    SamplingParams,
    presence_penalty=st.floats(-2, 2), repetition_penalty=st.floats(0.1, 3),
    temperature=st.floats(0, 2), top_k=st.integers(-1, 9), seed=st.none() | st.integers(0, 9),
    stop=st.lists(st.text(min_size=1), max_size=2), stop_token_ids=ids,
    logit_bias=st.dictionaries(st.integers(0, 99), st.floats(-100, 100), max_size=3),
    allowed_token_ids=st.none() | st.lists(st.integers(0, 99), min_size=1, max_size=3),
    bad_words_token_ids=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=3), max_size=2),
    extra_args=st.dictionaries(st.text(max_size=3), st.integers() | st.text(), max_size=2),
    prompt_logprobs=st.none() | st.integers(0, 3),
)  # fmt: skip


@given(some_params)
def test_params_come_back_from_a_trace_as_they_were(params):
    assert unpack(SamplingParams, json.loads(json.dumps(pack(params)))) == params


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    folder = random_llama(tmp_path_factory.mktemp("params"))
    return LLM(folder, dtype="float32", num_blocks=20, block_size=4)


@pytest.mark.parametrize("token_id", [331, 10**9])
@pytest.mark.parametrize(
    "name, wrap",
    [
        ("logit_bias", lambda i: {i: 1.0}),
        ("allowed_token_ids", lambda i: [3, i]),
        ("stop_token_ids", lambda i: [i]),
        ("bad_words_token_ids", lambda i: [[3, i]]),
    ],
)
def test_c17_ids_that_the_model_does_not_have_are_refused_and_the_engine_lives(
    llm, name, wrap, token_id
):
    with pytest.raises(ValueError, match=f"{name}.*{token_id}"):
        llm.generate([[5, 6]], SamplingParams(**{name: wrap(token_id)}))
    (output,) = llm.generate([[5, 6]], SamplingParams(**{name: wrap(330)}, max_tokens=1))
    assert output.outputs[0].finish_reason in ("length", "stop")


def test_logprobs_of_minus_1_are_those_of_the_whole_vocabulary(llm):
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=-1, prompt_logprobs=-1)
    (output,) = llm.generate([[5, 6]], params)
    for found in (output.outputs[0].logprobs[0], output.prompt_logprobs[1]):
        assert sorted(found) == list(range(331))
        assert math.fsum(math.exp(x.logprob) for x in found.values()) == pytest.approx(1)


class Words:
    """A vocabulary in which a space before a word may or may not make it another token."""

    def encode(self, text, add_special_tokens=True):
        words = {
            "cat": [5], " cat": [6], "dog": [7], " dog": [8, 9], "pig": [4, 3], " pig": [4, 2]
        }  # fmt: skip
        return words.get(text, [])


@pytest.mark.parametrize(
    "word, sequences",
    [
        ("cat", [(5,), (6,)]),
        (" cat", [(5,), (6,)]),
        ("dog", [(7,)]),  # " dog" is two tokens: vLLM leaves it out
        ("pig", [(4, 3)]),  # " pig" begins with the same token
    ],
)
def test_bad_words_become_ids_by_vllms_rule(word, sequences):
    processor = InputProcessor(Words(), vocab_size=10, max_model_len=50)
    params = SamplingParams(bad_words=[word], bad_words_token_ids=[[1]])
    (request,) = processor.process("r", [1], params).samples
    assert request.sampling_params.bad_words_token_ids == ((1,), *sequences)
    with pytest.raises(ValueError, match=r"bad_words.*'cow'"):
        processor.process("r", [1], SamplingParams(bad_words=["cow"]))


def test_bad_words_are_never_written(llm):
    """The tokens of this model are numbers, and their text too."""
    params = SamplingParams(temperature=0, max_tokens=6)
    (free,) = llm.generate([[5, 6]], params)
    written = free.outputs[0].token_ids
    assert written[0] != written[1]
    banned = replace(params, bad_words=[str(written[1])])
    (without,) = llm.generate([[5, 6]], banned)
    assert without.outputs[0].token_ids[0] == written[0]
    assert written[1] not in without.outputs[0].token_ids


def test_an_extra_argument_that_no_plug_in_reads_ends_its_request_alone(llm):
    outputs = llm.generate(
        [[5, 6], [5, 6]],
        [SamplingParams(extra_args={"shout": 1}), SamplingParams(max_tokens=2)],
    )
    first, second = (output.outputs[0] for output in outputs)
    assert first.finish_reason == "error" and "shout" in first.error
    assert second.error is None and len(second.token_ids) == 2


def test_the_table_of_sampling_parameters_is_true():
    """build/tables/sampling.md: every field of ours is in it, and every other one is refused."""
    names, ours = write_sampling_table(), [f.name for f in fields(SamplingParams)]
    assert names[: len(ours)] == ours and len(names) == len(set(names))
    assert set(tables.IN_LLAMA_CPP) | set(tables.NOTES) <= set(ours)
    for name in names[len(ours) :]:
        with pytest.raises(TypeError, match=name):
            SamplingParams(**{name: 1})
