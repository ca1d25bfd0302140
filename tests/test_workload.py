"""Workloads: what is drawn has the distribution it should, and prompts share what they should."""

from __future__ import annotations

import itertools
import json
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minivllm.bench.arrivals import (
    all_at_once,
    bursts,
    fixed,
    lognormal,
    parse_length,
    poisson,
    uniform,
)
from minivllm.bench.hardware import find_hardware
from minivllm.bench.model_shapes import find_model
from minivllm.bench.roofline import Deployment
from minivllm.bench.simulate import simulate_workload
from minivllm.bench.workload import (
    Texts,
    answer_of,
    read_workload,
    with_tenants,
    workload_agents,
    workload_chat,
    workload_prefixes,
    workload_rag,
    workload_scrambled,
)
from minivllm.config import EngineConfig
from minivllm.metrics.trace import read_trace

VOCAB = find_model("llama-3-8b").vocab_size


def first(n, iterator):
    return list(itertools.islice(iterator, n))


def make_all(seed):
    def arrivals():
        return bursts(3.0, 2, random.Random(seed))

    short = {"prompt_len": uniform(5, 50), "output_len": lognormal(20, 1, 100)}
    return [
        workload_prefixes(
            30, **short, num_prefixes=3, prefix_len=4, arrivals=arrivals(), seed=seed
        ),
        workload_rag(20, arrivals=arrivals(), seed=seed),
        workload_scrambled(20, seed=seed),
        workload_chat(5, 3, vocab_size=VOCAB, arrivals=arrivals(), seed=seed),
        workload_agents(4, 3, vocab_size=VOCAB, seed=seed),
    ]


def test_the_same_seed_asks_the_same_and_another_asks_something_else():
    assert make_all(7) == make_all(7)
    assert all(a != b for a, b in zip(make_all(7), make_all(8)))


def test_poisson_gaps_have_the_mean_and_spread_of_an_exponential():
    times = first(20000, poisson(4.0, random.Random(1)))
    gaps = [b - a for a, b in itertools.pairwise([0.0, *times])]
    assert min(gaps) > 0
    assert statistics.mean(gaps) == pytest.approx(0.25, rel=0.03)
    assert statistics.stdev(gaps) == pytest.approx(0.25, rel=0.03)
    # Without memory: of the gaps longer than the mean, as many are longer than twice it.
    longer = [gap for gap in gaps if gap > 0.25]
    assert len(longer) / len(gaps) == pytest.approx(0.368, abs=0.01)
    assert sum(gap > 0.5 for gap in longer) / len(longer) == pytest.approx(0.368, abs=0.02)


def test_bursts_come_together_at_the_same_rate():
    times = first(4000, bursts(4.0, 5, random.Random(1)))
    assert all(len(set(times[i : i + 5])) == 1 for i in range(0, 4000, 5))
    assert len(set(times)) == 800
    assert times[-1] == pytest.approx(1000, rel=0.1)
    assert first(3, all_at_once()) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("rate", [0, -1, float("nan")])
def test_a_rate_that_is_none_is_refused(rate):
    with pytest.raises(ValueError, match="rate must be above 0"):
        poisson(rate, random.Random(1))
    with pytest.raises(ValueError, match="at least 1 request, got 0"):
        next(bursts(1.0, 0, random.Random(1)))


def test_lengths_have_their_distribution_and_bounds():
    rng = random.Random(2)
    assert {fixed(7)(rng) for _ in range(10)} == {7}
    assert {uniform(2, 4)(rng) for _ in range(100)} == {2, 3, 4}
    draws = [lognormal(200, 1.0, 10**6)(rng) for _ in range(40000)]
    assert statistics.mean(draws) == pytest.approx(200, rel=0.03)
    assert statistics.median(draws) == pytest.approx(200 / 1.6487, rel=0.03)
    assert sum(draw > 400 for draw in draws) / 40000 == pytest.approx(0.117, abs=0.01)
    assert max(lognormal(200, 2.0, 300)(rng) for _ in range(1000)) == 300


def test_lengths_are_read_from_text():
    rng = random.Random(3)
    assert parse_length("12")(rng) == 12
    assert {parse_length("2-3")(rng) for _ in range(50)} == {2, 3}
    assert 1 <= parse_length("lognormal:5:0.5:9")(rng) <= 9


@pytest.mark.parametrize(
    "text",
    ["", "0", "-3", "9-2", "1-2-3", "x", "lognormal:5", "lognormal:9:1:5", "lognormal:5:-1:9"],
)
def test_a_text_that_is_no_length_is_refused_with_examples(text):
    with pytest.raises(ValueError, match="is no length: give tokens"):
        parse_length(text)


@given(lengths=st.lists(st.integers(1, 300), min_size=1, max_size=60), vocab=st.integers(8, 50))
def test_no_two_texts_begin_alike(lengths, vocab):
    texts = Texts(random.Random(1), vocab)
    made = [texts.new(n) for n in lengths]
    assert [len(text) for text in made] == lengths
    heads = [text[:2] for text in made if len(text) > 1]
    assert len(set(heads)) == len(heads)
    assert all(0 <= token < vocab for text in made for token in text)


def test_prompts_share_one_of_the_prefixes_and_nothing_more():
    requests = workload_prefixes(
        40, prompt_len=fixed(30), output_len=fixed(1), num_prefixes=3, prefix_len=10, seed=4
    )
    prompts = [r.prompt_token_ids for r in requests]
    assert {len(p) for p in prompts} == {30}
    assert len({p[:10] for p in prompts}) == 3
    for one, two in itertools.combinations(prompts, 2):
        num_equal = next(i for i, pair in enumerate(zip(one, two)) if len(set(pair)) > 1)
        # Ids that count texts come first: their upper halves are equal.
        assert num_equal in ((10, 11) if one[:10] == two[:10] else (0, 1))
    alone = workload_prefixes(40, prompt_len=fixed(30), output_len=fixed(1))
    assert len({r.prompt_token_ids[:2] for r in alone}) == 40


def test_a_prompt_is_longer_than_its_prefix():
    requests = workload_prefixes(
        5, prompt_len=fixed(3), output_len=fixed(1), num_prefixes=1, prefix_len=10
    )
    assert {len(r.prompt_token_ids) for r in requests} == {11}


def test_scrambled_prompts_hold_the_same_documents_in_another_order():
    sizes = {"num_topics": 2, "system_len": 16, "doc_len": 8, "question_len": 4}
    by_order = {
        order: [r.prompt_token_ids for r in workload_rag(60, 3, order=order, **sizes, seed=5)]
        for order in ("fixed", "scrambled", "stamped")
    }
    fixed_parts = {prompt[:40] for prompt in by_order["fixed"]}
    assert len(fixed_parts) == 2  # one beginning a topic
    contents = {tuple(sorted(part)) for part in fixed_parts}
    assert {tuple(sorted(p[:40])) for p in by_order["scrambled"]} == contents
    assert len({p[:40] for p in by_order["scrambled"]}) > 20
    assert {tuple(sorted(p[16:56])) for p in by_order["stamped"]} == contents
    assert len({p[:2] for p in by_order["stamped"]}) == 60
    assert workload_scrambled(60, 3, **sizes, seed=5) == workload_rag(
        60, 3, order="scrambled", **sizes, seed=5
    )
    with pytest.raises(ValueError, match="order must be fixed, scrambled or stamped"):
        workload_rag(order="sorted")


def served(requests):
    """Each request's prompt and answer, read from the trace of a simulation."""
    lines = []
    deployment = Deployment(find_model("llama-3-8b"), find_hardware("h100"))
    config = EngineConfig("x", max_num_seqs=64, max_num_batched_tokens=4096)
    simulate_workload(requests, deployment, config, trace=lines.append)
    said = {}
    for kind, message in read_trace(lines):
        if kind == "add":
            said[message.request_id] = list(message.prompt_token_ids)
        if kind == "step":
            _, plan, result, _ = message
            for row, token_ids in zip(plan.rows, result.sampled):
                said[row.request_id] += token_ids
    return said


@pytest.mark.parametrize(
    "requests",
    [
        workload_chat(3, 4, vocab_size=VOCAB, seed=6),
        workload_agents(2, 3, vocab_size=VOCAB, seed=6),
    ],
)
def test_a_next_turn_repeats_all_that_was_said_and_the_answer_really_given(requests):
    said, by_id = served(requests), {r.request_id: r for r in requests}
    followers = [r for r in requests if r.after]
    assert len(followers) > len(requests) / 2
    for request in followers:
        before = by_id[request.after]
        past = said[request.after]
        assert tuple(past) == before.prompt_token_ids + answer_of(before, VOCAB)
        assert list(request.prompt_token_ids[: len(past)]) == past
        assert len(request.prompt_token_ids) > len(past)


def test_tenants_get_their_shares_and_keep_their_conversations():
    requests = workload_chat(500, 2, vocab_size=VOCAB, system_len=2, output_len=(1, 2))
    mixed = with_tenants(requests, {"large": 3, "small": 1}, seed=7)
    assert [r.prompt_token_ids for r in mixed] == [r.prompt_token_ids for r in requests]
    tenants = {r.request_id: r.tenant for r in mixed}
    assert all(tenants[r.after] == r.tenant for r in mixed if r.after)
    share = sum(r.tenant == "large" for r in mixed) / len(mixed)
    assert share == pytest.approx(0.75, abs=0.05)
    assert mixed[0].engine_request(1.5).extra_key == (mixed[0].tenant,)
    assert requests[0].engine_request(1.5).extra_key == ()
    assert mixed[0].engine_request(1.5).arrival_time == 1.5


def test_recorded_traffic_is_read_line_by_line():
    entries = [
        {"arrival_time": 0.5, "prompt_tokens": 9, "output_tokens": 3},
        {"arrival_time": 1, "prompt_tokens": 8, "output_tokens": 1, "prefix": "a",
         "prefix_tokens": 6, "tenant": "t", "priority": -1},
        {"arrival_time": 2, "prompt_tokens": 7, "output_tokens": 1, "prefix": "a",
         "prefix_tokens": 5},
    ]  # fmt: skip
    one, two, three = read_workload(json.dumps(entry) for entry in entries)
    assert (one.arrival_time, len(one.prompt_token_ids), one.max_tokens) == (0.5, 9, 3)
    assert (two.tenant, two.priority) == ("t", -1)
    assert two.prompt_token_ids[:5] == three.prompt_token_ids[:5]
    assert two.prompt_token_ids[5:7] != three.prompt_token_ids[5:]


@pytest.mark.parametrize(
    "line",
    [
        "no json",
        "[]",
        '{"arrival_time": 0, "prompt_tokens": 4}',
        '{"arrival_time": 0, "prompt_tokens": 4, "output_tokens": 0}',
        '{"arrival_time": 0, "prompt_tokens": 4, "output_tokens": 1, "prefix_tokens": 4}',
        '{"arrival_time": 0, "prompt_tokens": 4, "output_tokens": 1, "colour": "red"}',
    ],
)
def test_a_line_that_is_no_request_is_refused_by_its_number(line):
    good = '{"arrival_time": 0, "prompt_tokens": 4, "output_tokens": 1}'
    with pytest.raises(ValueError, match="line 2 is no request"):
        read_workload([good, line])


def test_a_prefix_is_not_longer_than_when_it_came_first():
    line = '{{"arrival_time": 0, "prompt_tokens": 9, "output_tokens": 1, "prefix_tokens": {}}}'
    with pytest.raises(ValueError, match=r"line 2 .*had 3 tokens before"):
        read_workload([line.format(3), line.format(4)])
