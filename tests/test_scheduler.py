"""The scheduler, its memory and the engine's loop, judged by a toy model in plain Python."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_executor import assert_all_free, make_core, solo

from minivllm.engine.core import blocks_for
from minivllm.engine.llm_engine import LLMEngine
from minivllm.entrypoints.llm import LLM
from minivllm.kvcache.spec import KVCacheSpec
from minivllm.outputs import EngineCoreRequest, ModelRunnerOutput
from minivllm.sampling_params import SamplingParams
from minivllm.scheduler.plan import StepPlan
from minivllm.tokenizer.tokenizer import IdTokenizer

GREEDY = SamplingParams(temperature=0, max_tokens=5, seed=0)


def request(request_id, prompt, params=GREEDY, **fields):
    return EngineCoreRequest(str(request_id), tuple(prompt), params, **fields)


def run(core, limit=10_000):
    """Step to the end with `check()` after each step. Returns ids and last output by request."""
    tokens, last, steps = {}, {}, 0
    while core.has_unfinished_requests:
        steps += 1
        assert steps <= limit, "this takes for ever"
        for output in core.step():
            tokens.setdefault(output.request_id, []).extend(output.new_token_ids)
            last[output.request_id] = output
        core.scheduler.check()
        assert core.executor.plans[-1].num_tokens <= core.scheduler.max_num_batched_tokens
        assert len(core.executor.plans[-1].rows) <= core.scheduler.max_num_seqs
    return tokens, last


def test_one_request_is_planned_prompt_first_then_token_by_token():
    core = make_core()
    core.add_request(request("a", [1, 2, 3]))
    tokens, last = run(core)
    assert tokens["a"] == solo([1, 2, 3], GREEDY)[0] and last["a"].finish_reason == "length"
    plans = core.executor.plans
    assert [len(p.rows[0].token_ids) for p in plans] == [3, 1, 1, 1, 1]
    assert [p.rows[0].start for p in plans] == [0, 3, 4, 5, 6]
    assert [len(p.new_requests) for p in plans] == [1, 0, 0, 0, 0]


def test_planning_changes_no_computed_count_and_one_answer_moves_it_once():
    core = make_core()
    core.add_request(request("a", [1, 2, 3]))
    plan = core.scheduler.schedule()
    (r,) = core.scheduler.running
    assert (r.num_computed_tokens, r.num_in_flight_tokens) == (0, 3)
    core.executor.execute_model(plan)
    core.scheduler.update_from_output(plan, core.executor.sample_tokens(plan.step))
    assert (r.num_computed_tokens, r.num_in_flight_tokens, r.num_tokens) == (3, 0, 4)


def test_running_requests_go_before_waiting_ones():
    core = make_core(budget=4)
    core.add_request(request("a", [1, 2, 3]))
    core.step()
    core.add_request(request("b", range(10)))
    core.step()
    assert [(r.request_id, len(r.token_ids)) for r in core.executor.plans[-1].rows] == [
        ("a", 1),
        ("b", 3),
    ]


def test_a_prompt_cut_short_samples_nothing_and_its_last_piece_gives_the_first_token():
    core = make_core(budget=4)
    core.add_request(request("a", range(10)))
    gained = [core.step()[0].new_token_ids for _ in range(3)]
    assert [len(g) for g in gained] == [0, 0, 1]
    assert [r.num_to_sample for p in core.executor.plans for r in p.rows] == [0, 0, 1]


def test_two_that_end_in_one_step_both_leave():
    core = make_core()
    one = SamplingParams(temperature=0, max_tokens=1, seed=0)
    core.add_request(request("a", [1, 2], one))
    core.add_request(request("b", [3, 4], one))
    assert {o.request_id for o in core.step()} == {"a", "b"}
    assert not core.has_unfinished_requests
    assert_all_free(core)


def test_a_free_place_is_used_in_the_step_after_it_opens():
    core = make_core(max_num_seqs=1)
    core.add_request(request("a", [1], SamplingParams(temperature=0, max_tokens=2, seed=0)))
    core.add_request(request("b", [2]))
    run(core)
    assert [p.rows[0].request_id for p in core.executor.plans] == ["a", "a"] + ["b"] * 5


@pytest.mark.parametrize("ignore_eos", [False, True])
@pytest.mark.parametrize("min_tokens", [0, 1, 3])
def test_eos_stop_ids_and_min_tokens_end_an_answer_exactly(ignore_eos, min_tokens):
    eos = tuple(range(0, 50, 3))
    params = SamplingParams(
        temperature=0, max_tokens=9, seed=0, ignore_eos=ignore_eos, min_tokens=min_tokens,
        stop_token_ids=(1, 7, 13),
    )  # fmt: skip
    for prompt in ([1], [2, 2], [3, 1, 4], [5] * 7):
        core = make_core(eos=eos)
        core.add_request(request("a", prompt, params))
        tokens, last = run(core)
        assert (tokens["a"], last["a"].finish_reason) == solo(prompt, params, eos=eos)
        if last["a"].finish_reason == "stop":
            is_eos = tokens["a"][-1] in eos and not ignore_eos
            assert last["a"].stop_reason == (None if is_eos else tokens["a"][-1])


def test_an_answer_ends_where_the_model_length_ends():
    core = make_core(max_model_len=7)
    core.add_request(request("a", [1, 2, 3], SamplingParams(temperature=0, max_tokens=99, seed=0)))
    tokens, last = run(core)
    assert len(tokens["a"]) == 4 and last["a"].finish_reason == "length"


def test_g11_a_head_that_does_not_fit_is_not_overtaken():
    core = make_core(num_blocks=1 + 4, budget=64)
    core.add_request(request("a", range(11)))  # three blocks of four: one is left
    core.step()
    core.add_request(request("big", range(9)))
    core.add_request(request("small", [1]))
    core.step()
    assert [r.request_id for r in core.executor.plans[-1].rows] == ["a"]
    run(core)
    order = [new.request_id for p in core.executor.plans for new in p.new_requests]
    assert order[:3] == ["a", "big", "small"]


def test_nobody_is_admitted_in_a_step_that_stopped_somebody():
    core = make_core()
    core.add_request(request("a", [1, 2]))
    core.step()
    core.add_request(request("b", [1]))
    plan_running = core.scheduler._plan_running

    def stop_somebody(plan, budget):
        plan.preempted_ids.append("a victim")
        return plan_running(plan, budget)

    core.scheduler._plan_running = stop_somebody
    assert [r.request_id for r in core.scheduler.schedule().rows] == ["a"]
    core.scheduler._plan_running = plan_running
    assert [r.request_id for r in core.scheduler.schedule().rows] == ["b"]


def test_g4_the_request_admitted_last_is_stopped_first_and_keeps_its_tokens():
    core = make_core(num_blocks=1 + 4, budget=64)
    params = SamplingParams(temperature=0, max_tokens=8, seed=0)
    core.add_request(request("a", range(7), params))
    core.add_request(request("b", range(8), params))
    tokens, last = run(core)
    assert {i for p in core.executor.plans for i in p.preempted_ids} == {"b"}
    assert last["b"].num_preemptions >= 1 and last["a"].num_preemptions == 0
    assert tokens["b"] == solo(range(8), params)[0]  # g4: no token twice, none lost
    resumed = [new for p in core.executor.plans for new in p.new_requests][-1]
    assert resumed.request_id == "b" and len(resumed.token_ids) > resumed.num_prompt_tokens


def test_b11_a_request_aborted_between_plan_and_result_is_harmless_and_an_empty_step_legal():
    core = make_core()
    core.add_request(request("a", [1, 2, 3]))
    plan = core.scheduler.schedule()
    core.executor.execute_model(plan)
    assert core.abort("a") and not core.abort("a")
    result = core.executor.sample_tokens(plan.step)
    assert core.scheduler.update_from_output(plan, result) == []
    core.scheduler.check()
    assert core.step() == []  # only the worker's goodbye
    assert core.executor.plans[-1].finished_ids == ("a",) and not core.executor.states
    assert core.step() == [] and len(core.executor.plans) == 2  # nothing at all to plan
    assert_all_free(core)


def test_abort_of_a_waiting_and_of_a_stopped_request_gives_everything_back():
    core = make_core(num_blocks=1 + 4, budget=64, max_num_seqs=2)
    for name in "abc":
        core.add_request(request(name, range(7), SamplingParams(temperature=0, max_tokens=8)))
    while not any(p.preempted_ids for p in core.executor.plans):
        core.step()
    assert core.abort("b") and core.abort("c")
    core.scheduler.check()
    tokens, _ = run(core)
    assert set(tokens) == {"a"}
    assert_all_free(core)


def test_c11_a_row_that_fails_ends_alone_and_is_counted():
    core = make_core(fail_on={"b"})
    for name in "abc":
        core.add_request(request(name, [ord(name) - 97, 1]))
    tokens, last = run(core)
    assert last["b"].finish_reason == "error" and last["b"].error == "scores are NaN"
    assert core.scheduler.stats.num_finished == 3 and core.scheduler.stats.num_failed == 1
    assert tokens["b"] == []
    assert tokens["a"] == solo([0, 1], GREEDY)[0] and tokens["c"] == solo([2, 1], GREEDY)[0]
    assert_all_free(core)


def test_scoring_computes_the_whole_prompt_and_writes_nothing():
    core = make_core(budget=4)
    score = SamplingParams(max_tokens=0, prompt_logprobs=0, seed=0)
    core.add_request(request("a", range(10), score, reads_prefix_cache=False))
    outputs = []
    while core.has_unfinished_requests:
        outputs += core.step()
    assert [o.new_token_ids for o in outputs] == [(), (), ()]
    assert outputs[-1].finish_reason == "length"
    values = [v for o in outputs if o.prompt_logprobs for v in o.prompt_logprobs.positions]
    assert [v[0][1] for v in values] == [-float(p) for p in range(1, 10)]
    assert_all_free(core)


def test_an_update_that_arrives_late_for_a_stopped_request_is_ignored():
    core = make_core()
    core.add_request(request("a", [1, 2, 3]))
    plan = core.scheduler.schedule()
    core.abort("a")
    assert core.scheduler.update_from_output(plan, ModelRunnerOutput(plan.step, ((7,),))) == []


def test_a_stopped_request_waits_in_front_of_those_that_never_ran():
    core = make_core(num_blocks=1 + 4, budget=64, max_num_seqs=2)
    params = SamplingParams(temperature=0, max_tokens=8, seed=0)
    for name in "abcd":
        core.add_request(request(name, range(7), params))
    while not any(p.preempted_ids for p in core.executor.plans):
        core.step()
    assert [r.request_id for r in core.scheduler.waiting] == ["b", "c", "d"]


def test_a_result_for_a_request_stopped_since_is_ignored():
    core = make_core()
    core.add_request(request("a", [1, 2, 3]))
    plan = core.scheduler.schedule()
    core.executor.execute_model(plan)
    result = core.executor.sample_tokens(plan.step)
    (running,) = core.scheduler.running
    core.scheduler._preempt(running, StepPlan(99))
    assert core.scheduler.update_from_output(plan, result) == []
    assert running.num_tokens == 3 and running.num_computed_tokens == 0


def test_steps_may_be_planned_before_the_answer_to_the_last_one():
    core = make_core(budget=4)
    core.add_request(request("a", range(10)))
    plans = [core.scheduler.schedule() for _ in range(4)]
    assert [(r.start, len(r.token_ids)) for p in plans for r in p.rows] == [(0, 4), (4, 4), (8, 2)]
    for plan in plans:
        core.executor.execute_model(plan)
        core.scheduler.update_from_output(plan, core.executor.sample_tokens(plan.step))
        core.scheduler.check()
    tokens, _ = run(core)
    assert tokens["a"] == solo(range(10), GREEDY)[0][1:]


def test_the_worker_is_told_of_each_block_once():
    core = make_core(block_size=2)
    core.add_request(request("a", [1, 2, 3]))
    run(core)
    told = [(r.table_start[0], r.table_ids[0]) for p in core.executor.plans for r in p.rows]
    assert told == [(0, (1, 2)), (2, ()), (2, (3,)), (3, ()), (3, (4,))]


def test_b10_growth_that_memory_cannot_hold_is_refused_before_it_starts():
    """Four blocks of four hold sixteen tokens: ten and six fit, ten and seven are refused, and
    two that each fit alone both end whole, whoever is stopped on the way."""
    llm = LLM.from_engine(LLMEngine(make_core(num_blocks=1 + 4), IdTokenizer(50), 50))
    prompt = list(range(10))
    with pytest.raises(ValueError, match=r"10 tokens and max_tokens is 7.*max_model_len, 16"):
        llm.generate([prompt], replace(GREEDY, max_tokens=7))
    outs = llm.generate([prompt, prompt[::-1]], replace(GREEDY, max_tokens=6))
    assert [o.outputs[0].finish_reason for o in outs] == ["length", "length"]
    assert [len(o.outputs[0].token_ids) for o in outs] == [6, 6]


@pytest.mark.parametrize("cache", ["hash", "radix"])
def test_g8_a_first_chunk_that_ends_the_prompt_because_of_a_hit_is_the_only_one(cache):
    core = make_core(budget=8, prefix_cache=cache)
    for name in "ab":
        core.add_request(request(name, range(12)))
        run(core)
    rows = [r for p in core.executor.plans for r in p.rows if r.request_id == "b"]
    assert (rows[0].start, len(rows[0].token_ids), rows[0].num_to_sample) == (8, 4, 1)
    assert all(len(r.token_ids) == 1 for r in rows[1:])


@pytest.mark.parametrize("max_model_len", [1, 5, 8, 9])
def test_g16_a_request_may_fill_a_length_that_is_no_multiple_of_the_block(max_model_len):
    core = make_core(num_blocks=1 + -(-max_model_len // 4), max_model_len=max_model_len)
    core.add_request(request("a", [1] * max(1, max_model_len - 3), replace(GREEDY, max_tokens=99)))
    tokens, last = run(core)
    assert len(tokens["a"]) == max(1, min(3, max_model_len - 1))
    assert last["a"].finish_reason == "length"


def test_n11_memory_for_no_block_is_said_with_what_to_change():
    spec = KVCacheSpec(16, 2, 2, 8, 4)
    with pytest.raises(ValueError, match=r"hold 1 blocks of 4,096 bytes.*kv_cache_memory_bytes"):
        blocks_for(spec, 5000, 512, 8)
    assert blocks_for(spec, 1 << 20, 512, 8) == 256
    assert blocks_for(spec, 1 << 30, 512, 8) == 1 + 8 * 32


arrivals = st.lists(
    st.tuples(
        st.integers(0, 12),  # step of arrival
        st.integers(1, 20),  # prompt length
        st.integers(1, 12),  # max_tokens
        st.sampled_from([0, 1.0]),  # temperature
        st.booleans(),  # aborted on the way
    ),
    min_size=1,
    max_size=9,
)


@settings(max_examples=250)
@given(
    arrivals=arrivals,
    block_size=st.integers(1, 5),
    spare=st.integers(0, 12),
    budget=st.integers(1, 30),
    max_num_seqs=st.integers(1, 5),
    rng=st.integers(0, 2**16),
)
def test_g1_g5_g10_any_company_any_chunks_any_memory_give_the_solo_tokens(
    arrivals, block_size, spare, budget, max_num_seqs, rng
):
    """The law of company for bookkeeping; with poison, `check()`, and a bound on steps (G5)."""
    rng = random.Random(rng)
    eos = (4, 9)
    longest = max(length + tokens for _, length, tokens, _, _ in arrivals)
    core = make_core(
        num_blocks=1 + -(-longest // block_size) + spare, block_size=block_size,
        max_num_seqs=max_num_seqs, budget=budget, eos=eos,
    )  # fmt: skip
    expected, todo, aborted, tokens, work = {}, [], set(), {}, 0
    for index, (step, length, max_tokens, temperature, dies) in enumerate(arrivals):
        params = SamplingParams(temperature=temperature, max_tokens=max_tokens, seed=index)
        prompt = [rng.randrange(50) for _ in range(length)]
        sample_index = rng.randrange(3)
        expected[str(index)] = solo(prompt, params, eos=eos, sample_index=sample_index)
        todo.append((step, request(index, prompt, params, sample_index=sample_index), dies))
        work += length + max_tokens
    for step in range(60 + 40 * work):
        for arrival, new, dies in todo:
            if arrival == step:
                core.add_request(new)
            if dies and arrival + 3 == step and core.abort(new.request_id):
                aborted.add(new.request_id)
        outputs = core.step()
        if core.executor.plans:
            assert core.executor.plans[-1].num_tokens <= budget
        for output in outputs:
            tokens.setdefault(output.request_id, []).extend(output.new_token_ids)
            if output.finish_reason is not None:
                assert output.finish_reason == expected[output.request_id][1]
        core.scheduler.check()
        if step > 15 and not core.has_unfinished_requests:
            break
    assert not core.has_unfinished_requests, "live-lock"
    core.step()
    assert not core.executor.states, "the worker was not told of an end"
    assert_all_free(core)
    for request_id, (ids, _) in expected.items():
        if request_id in aborted:
            assert tokens.get(request_id, []) == ids[: len(tokens.get(request_id, []))]
        else:
            assert tokens[request_id] == ids
