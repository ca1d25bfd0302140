"""Prompts in, answers out: refusals, stop strings, samples, log-probabilities, streams. A toy model
and a vocabulary of single letters stand in for the real ones."""

import pytest
from toy_executor import assert_all_free, make_core, solo

from minivllm.engine.llm_engine import LLMEngine
from minivllm.entrypoints.llm import LLM
from minivllm.sampling_params import SamplingParams

VOCAB = 50


class Letters:
    """Token i is the i-th letter from A on."""

    add_bos_token, chat_template, bos_token_id, eos_token_ids = False, None, None, ()
    vocab_size = VOCAB

    def encode(self, text, add_special_tokens=True):
        return [ord(c) - 65 for c in text]

    def token_bytes(self, token_id):
        return chr(65 + token_id).encode()

    def is_special(self, token_id):
        return False


def engine(**options):
    return LLMEngine(make_core(**options), Letters(), VOCAB)


def llm(**options):
    return LLM.from_engine(engine(**options))


def text_of(ids):
    return "".join(chr(65 + i) for i in ids)


def greedy(**fields):
    return SamplingParams(temperature=0, **{"max_tokens": 12, "seed": 0} | fields)


def test_answers_come_in_the_order_of_the_prompts():
    prompts = ["HELLO", [1, 2, 3], "A"]
    outs = llm().generate(prompts, greedy())
    ids = [[ord(c) - 65 for c in p] if isinstance(p, str) else p for p in prompts]
    assert [o.outputs[0].token_ids for o in outs] == [tuple(solo(p, greedy())[0]) for p in ids]
    assert [o.prompt for o in outs] == ["HELLO", None, "A"]
    assert [o.prompt_token_ids for o in outs] == [tuple(p) for p in ids]
    assert all(o.finished and o.outputs[0].finish_reason == "length" for o in outs)


def test_one_prompt_may_stand_alone_and_each_may_have_its_own_params():
    model = llm()
    (alone,) = model.generate([1, 2, 3], greedy())
    assert model.generate("BCD", greedy())[0].outputs == alone.outputs
    outs = model.generate(["A", "B"], [greedy(max_tokens=1), greedy(max_tokens=3)])
    assert [len(o.outputs[0].token_ids) for o in outs] == [1, 3]
    with pytest.raises(ValueError, match="2 prompts, but 1 SamplingParams"):
        model.generate(["A", "B"], [greedy()])
    assert model.generate([], greedy()) == []


@pytest.mark.parametrize(
    "prompt, params, message",
    [
        ("", greedy(), "prompt 1: the prompt is empty"),
        ([], greedy(), "prompt 1: the prompt is empty"),
        ([VOCAB], greedy(), "prompt 1: token id 50 is outside the vocabulary of 50"),
        ([-1], greedy(), "token id -1 is outside"),
        ([1.5], greedy(), "a list of token ids, got a list with 1.5"),
        ([1] * 20, greedy(max_tokens=1), "20 tokens and max_model_len is 20"),
        ([1] * 15, greedy(max_tokens=6), "15 tokens and max_tokens is 6.*max_model_len, 20"),
        ([1], greedy(logprobs=51), "logprobs=51 is more than the vocabulary, 50"),
        ([1], greedy(stop_token_ids=[50]), "stop_token_ids: 50 is not in 0..49"),
    ],
)
def test_b4_b5_b7_b8_one_bad_prompt_is_refused_before_anything_runs(prompt, params, message):
    model = llm(max_model_len=20)
    with pytest.raises(ValueError, match=message):
        model.generate(["AB", prompt], [greedy(max_tokens=1), params])
    assert not model.engine.has_unfinished_requests and not model.engine.core.executor.plans
    assert model.generate("AB", greedy())[0].finished  # the next request works
    assert_all_free(model.engine.core)


@pytest.mark.parametrize(
    "prompts, params, message",
    [
        (5, None, "got int 5"),
        (None, None, "got NoneType None"),
        (b"hi", None, "got bytes b'hi'"),
        ({"prompt": "hi"}, None, "got dict"),
        ({"A", "B"}, None, "got set"),
        (["A", 5], None, "prompt 1: .* got int"),
        (["A", None], None, "prompt 1: .* got NoneType"),
        (["A", b"B"], None, "prompt 1: .* got bytes"),
        ("A", {"max_tokens": 2}, "params is a SamplingParams or a list of them, got dict"),
        ("A", "greedy", "got str 'greedy'"),
        (["A", "B"], [greedy(), 5], "params holds SamplingParams, got int 5"),
    ],
)
def test_what_is_no_prompt_and_what_are_no_params_is_said_in_a_sentence(prompts, params, message):
    model = llm()
    with pytest.raises(ValueError, match=message):
        model.generate(prompts, params)
    assert not model.engine.core.executor.plans


def test_one_prompt_methods_say_so():
    model = llm()
    with pytest.raises(ValueError, match="one prompt is a string or a list of token ids, got a li"):
        model.stream(["A", "B"], greedy())
    with pytest.raises(ValueError, match="got int"):
        model.stream(5, greedy())
    with pytest.raises(ValueError, match=r"put the one message into \[ \]"):
        model.chat({"role": "user", "content": "A"})
    with pytest.raises(ValueError, match="beam_search takes BeamSearchParams, got SamplingParams"):
        model.beam_search("A", greedy())
    model.shutdown()
    with pytest.raises(ValueError, match="was shut down"):
        model.generate("A", greedy())


@pytest.mark.parametrize(
    "option, value, message",
    [
        ("block_size", "16", "block_size must be a whole number, got '16'"),
        ("block_size", None, "block_size must be a whole number, got None"),
        ("max_model_len", 9.5, "max_model_len must be a whole number, got 9.5"),
        ("max_num_seqs", True, "max_num_seqs must be a whole number, got True"),
        ("gpu_memory_utilization", "x", "gpu_memory_utilization must be above 0"),
        ("preemption", "swap", "needs num_host_blocks"),
    ],
)
def test_options_of_the_wrong_kind_are_said_in_a_sentence(option, value, message):
    with pytest.raises(ValueError, match=message):
        LLM("anything", **{option: value})


def test_b1_b4_a_prompt_of_the_full_length_may_be_scored_but_not_continued():
    model = llm(max_model_len=20)
    (out,) = model.generate([[1] * 20], SamplingParams(max_tokens=0, prompt_logprobs=0))
    assert out.outputs[0].token_ids == () and out.outputs[0].text == ""
    assert out.outputs[0].finish_reason == "length"
    assert out.prompt_logprobs[0] is None
    assert [p[1].logprob for p in out.prompt_logprobs[1:]] == [-float(i) for i in range(1, 20)]
    assert model.generate("A", greedy())[0].finished


def test_b2_without_max_tokens_an_answer_may_fill_the_model_length():
    (out,) = llm(max_model_len=20).generate([[1] * 5], greedy(max_tokens=None))
    assert len(out.outputs[0].token_ids) == 15


def test_g7_scores_of_a_prompt_survive_preemption_without_a_double():
    model = llm(num_blocks=1 + 6, budget=5)
    params = greedy(max_tokens=8, prompt_logprobs=0)
    outs = model.generate([list(range(10)), list(range(12))], params)
    assert any(p.preempted_ids for p in model.engine.core.executor.plans)
    for out in outs:
        values = [p[i + 1].logprob for i, p in enumerate(out.prompt_logprobs[1:])]
        assert values == [-float(i) for i in range(1, len(out.prompt_token_ids))]


@pytest.mark.parametrize("include", [False, True])
def test_a7_a10_a_stop_string_over_several_tokens_cuts_the_text_in_stream_and_without(include):
    ids, _ = solo([1, 2], greedy())
    whole = text_of(ids)
    params = greedy(stop=whole[4:7], include_stop_str_in_output=include)
    expected = whole[: 7 if include else 4]
    model = llm()
    (out,) = model.generate([[1, 2]], params)
    assert out.outputs[0].text == expected
    assert out.outputs[0].finish_reason == "stop" and out.outputs[0].stop_reason == whole[4:7]
    assert out.outputs[0].token_ids == tuple(ids[:7])
    reports = list(model.stream([1, 2], params))
    assert "".join(r.outputs[0].new_text for r in reports) == expected
    assert reports[-1].outputs[0].text == expected and reports[-1].finished
    model.engine.step()
    assert_all_free(model.engine.core)


def test_a_stop_token_ends_the_text_before_it_unless_asked_for():
    ids, _ = solo([1, 2], greedy())
    params = greedy(stop_token_ids=[ids[3]])
    end = ids.index(ids[3])
    for include, length in ((False, end), (True, end + 1)):
        (out,) = llm().generate(
            [[1, 2]], greedy(stop_token_ids=[ids[3]], include_stop_str_in_output=include)
        )
        assert out.outputs[0].text == text_of(ids[:length])
        assert out.outputs[0].token_ids == tuple(ids[: end + 1])
        assert out.outputs[0].stop_reason == ids[3] and params.stop_token_ids == (ids[3],)


def test_n_samples_are_reproducible_differ_and_come_in_order():
    params = SamplingParams(n=4, temperature=1, seed=7, max_tokens=6)
    (out,) = llm().generate([[1, 2]], params)
    assert [s.index for s in out.outputs] == [0, 1, 2, 3]
    assert [list(s.token_ids) for s in out.outputs] == [
        solo([1, 2], params, sample_index=i)[0] for i in range(4)
    ]
    assert len({s.token_ids for s in out.outputs}) == 4


def test_a_stream_of_samples_reports_only_what_is_new():
    model = llm(max_num_seqs=2)  # two samples run, the third waits
    joined = ["", "", ""]
    for report in model.stream([1, 2], SamplingParams(n=3, temperature=1, seed=7, max_tokens=5)):
        for sample in report.outputs:
            joined[sample.index] += sample.new_text
    assert joined == [s.text for s in report.outputs] and all(len(t) == 5 for t in joined)


def test_c22_without_a_seed_answers_differ_and_with_an_engine_seed_they_repeat():
    params = SamplingParams(temperature=1, max_tokens=8)
    fresh = llm()
    texts = {fresh.generate([[1, 2]], params)[0].outputs[0].text for _ in range(4)}
    assert len(texts) == 4

    def seeded():
        model = LLM.from_engine(LLMEngine(make_core(), Letters(), VOCAB, seed=5))
        return [model.generate([[1, 2]], params)[0].outputs[0].text for _ in range(3)]

    first = seeded()
    assert first == seeded() and len(set(first)) == 3


def test_streams_of_one_model_may_take_turns():
    model = llm()
    a, b = model.stream([1, 2], greedy()), model.stream([3], greedy())
    texts = {"a": "", "b": ""}
    for _ in range(12):
        texts["a"] += next(a).outputs[0].new_text
        texts["b"] += next(b).outputs[0].new_text
    assert texts == {"a": text_of(solo([1, 2], greedy())[0]), "b": text_of(solo([3], greedy())[0])}
    assert list(a) == [] and list(b) == []


def test_a_stream_that_is_closed_or_never_read_gives_its_memory_back():
    model = llm()
    model.stream([1, 2], greedy())  # never read
    reports = model.stream([1, 2], greedy())
    next(reports)
    assert model.engine.has_unfinished_requests
    reports.close()
    assert not model.engine.has_unfinished_requests
    assert_all_free(model.engine.core)
    running = model.stream([1, 2], greedy())
    next(running)
    model.abort_all()
    assert list(running) == []
    assert_all_free(model.engine.core)
    with pytest.raises(ValueError, match="empty"):
        model.stream([], greedy())


def test_a_row_that_fails_says_so_and_the_others_are_whole():
    outs = llm(fail_on={"1"}).generate(["AB", "CD", "EF"], greedy())
    assert [o.outputs[0].finish_reason for o in outs] == ["length", "error", "length"]
    assert outs[1].outputs[0].error == "scores are NaN" and outs[1].outputs[0].text == ""


def test_a_request_id_in_use_is_refused():
    served = engine()
    served.add_request("x", "AB", greedy())
    with pytest.raises(ValueError, match="request id 'x' is in use"):
        served.add_request("x", "CD", greedy())
    while served.has_unfinished_requests:
        served.step()
    served.add_request("x", "CD", greedy())


def test_metrics_tell_when_the_first_and_last_token_came():
    ticks = iter(range(1000))
    model = llm()
    model.engine.core.clock = lambda: float(next(ticks))
    (out,) = model.generate([[1, 2]], greedy(max_tokens=3))
    m = out.metrics
    assert m.arrival_time < m.first_token_time < m.last_token_time
    assert m.ttft_s == m.first_token_time - m.arrival_time


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"temperature": -1}, "temperature must be at least 0"),
        ({"temperature": float("nan")}, "temperature must be a finite number"),
        ({"temperature": None}, "temperature must be a finite number"),
        ({"top_p": 0}, "top_p must be above 0"),
        ({"top_p": 1.1}, "top_p must be between 0 and 1"),
        ({"top_k": -2}, "top_k must be at least -1"),
        ({"top_k": 1.5}, "top_k must be a whole number"),
        ({"min_p": 2}, "min_p must be between 0 and 1"),
        ({"n": 0}, "n must be at least 1"),
        ({"n": True}, "n must be a finite number"),
        ({"max_tokens": -1}, "max_tokens must be at least 0"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens 5 is more than max_tokens 4"),
        ({"stop": [""]}, "stop must hold non-empty strings"),
        ({"seed": 1.0}, "seed must be a whole number"),
    ],
)
def test_sampling_params_name_the_field_and_what_it_may_be(fields, message):
    with pytest.raises(ValueError, match=message):
        SamplingParams(**fields)


def test_unknown_options_and_unsupported_settings_are_refused_by_name():
    with pytest.raises(ValueError, match="LLM has no option 'blok_size'"):
        LLM("anything", blok_size=16)
    with pytest.raises(ValueError, match="policy='lifo' is not supported"):
        LLM("anything", policy="lifo")
    with pytest.raises(ValueError, match="block_size must be at least 1"):
        LLM("anything", block_size=0)
