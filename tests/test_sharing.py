"""Forks and copies on write, swap and reservation, policies, traces: judged by the toy model."""

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_executor import assert_all_free, make_core, solo

from minivllm.engine.replay import replay
from minivllm.kvcache.caches import CACHES
from minivllm.kvcache.host_blocks import HostBlocks
from minivllm.kvcache.kv_cache_manager import KVCacheManager
from minivllm.metrics.trace import Trace, read_trace
from minivllm.outputs import EngineCoreRequest
from minivllm.request import Request
from minivllm.sampling_params import SamplingParams
from minivllm.scheduler.policy import POLICIES


def greedy(max_tokens=5, **fields):
    return SamplingParams(temperature=0, max_tokens=max_tokens, seed=0, **fields)


def request(request_id, prompt, params=None, **fields):
    return EngineCoreRequest(str(request_id), tuple(prompt), params or greedy(), **fields)


def samples(request_id, prompt, n, max_tokens=5, seed=3):
    """A prompt's n samples, as the input processor makes them."""
    params = SamplingParams(temperature=1, max_tokens=max_tokens, seed=seed, n=n)
    return [
        request(
            f"{request_id}/{i}", prompt, params, sample_index=i,
            fork_of=f"{request_id}/0" if i else None,
        )
        for i in range(n)
    ]  # fmt: skip


def run(core, limit=5000):
    tokens = {}
    for _ in range(limit):
        for output in core.step():
            tokens.setdefault(output.request_id, []).extend(output.new_token_ids)
        core.scheduler.check()
        if not core.has_unfinished_requests:
            core.step()
            return tokens
    raise AssertionError("this takes for ever")


def manager_with(prompt_len, block_size=4, num_blocks=20):
    kv = KVCacheManager(num_blocks, block_size)
    parent = Request(request("parent", range(prompt_len)))
    kv.attach(parent, [])
    kv.allocate_slots(parent, prompt_len)
    parent.num_computed_tokens = prompt_len
    kv.publish(parent)
    return kv, parent


def test_a_fork_shares_every_block_and_takes_none():
    kv, parent = manager_with(10)
    child = Request(request("child", range(10)))
    kv.fork(parent, child)
    assert kv.tables["child"].block_ids == kv.tables["parent"].block_ids == [1, 2, 3]
    assert child.num_computed_tokens == 9 and kv.pool.num_free == 16
    kv.check()


def test_whoever_writes_first_gets_a_copy_once_and_the_last_reader_none():
    kv, parent = manager_with(10)
    children = [Request(request(f"c{i}", range(10))) for i in range(2)]
    for child in children:
        kv.fork(parent, child)
    assert kv.copy_if_shared(children[0]) and kv.copy_if_shared(children[0])
    assert kv.moves.copies == [(3, 4)] and kv.tables["c0"].block_ids == [1, 2, 4]
    assert kv.copy_if_shared(parent)
    assert kv.moves.copies == [(3, 4), (3, 5)] and kv.tables["parent"].block_ids == [1, 2, 5]
    assert kv.copy_if_shared(children[1])  # the last one writes in place
    assert len(kv.take_moves().copies) == 2 and kv.tables["c1"].block_ids == [1, 2, 3]
    kv.check()


def test_a_copy_that_finds_no_block_changes_nothing():
    kv, parent = manager_with(10, num_blocks=4)
    child = Request(request("child", range(10)))
    kv.fork(parent, child)
    assert not kv.copy_if_shared(child)
    assert kv.tables["child"].block_ids == [1, 2, 3] and not kv.moves.copies
    kv.check()


def test_a_block_that_the_cache_was_offered_is_copied_even_by_its_only_reader():
    kv, parent = manager_with(8)
    child = Request(request("child", range(8)))
    kv.fork(parent, child)
    kv.free(parent)
    assert kv.pool.ref_cnt[2] == 1
    assert kv.copy_if_shared(child) and kv.moves.copies == [(2, 3)]
    assert kv.tables["child"].num_published == 1
    kv.check()


def test_a_copy_into_a_block_that_was_given_up_is_not_made():
    kv, parent = manager_with(10)
    child = Request(request("child", range(10)))
    kv.fork(parent, child)
    kv.copy_if_shared(child)
    kv.free(child)
    assert kv.take_moves().copies == []


def test_kv_that_is_copied_and_swapped_out_in_one_plan_is_read_where_it_still_is():
    kv = KVCacheManager(20, 4, num_host_blocks=5)
    parent = Request(request("parent", range(10)))
    kv.attach(parent, [])
    kv.allocate_slots(parent, 10)
    parent.num_computed_tokens = 10
    kv.publish(parent)
    child = Request(request("child", range(10)))
    kv.fork(parent, child)
    kv.copy_if_shared(child)
    assert kv.swap_out(child)
    moves = kv.take_moves()
    assert [block for block, _ in moves.swap_out] == [1, 2, 3] and moves.copies == []


def test_host_memory_takes_whole_requests_or_nothing():
    host = HostBlocks(3)
    assert host.store("a", 2) == [0, 1]
    assert host.store("b", 2) is None and host.store("c", 1) == [2]
    host.check()
    assert host.take_back("a") == [0, 1] and host.store("b", 2) == [0, 1]
    host.check()


@pytest.mark.parametrize("prompt_len", [1, 3, 4, 5, 8, 9])
@pytest.mark.parametrize("budget", [3, 64])
def test_samples_share_their_prompt_and_say_what_they_say_alone(prompt_len, budget):
    core = make_core(budget=budget)
    for sample in samples("s", range(prompt_len), 3):
        core.add_request(sample)
    tokens = run(core)
    params = SamplingParams(temperature=1, max_tokens=5, seed=3)
    for i in range(3):
        assert tokens[f"s/{i}"] == solo(range(prompt_len), params, sample_index=i)[0]
    rows = [r for p in core.executor.plans for r in p.rows]
    first = {}
    for row in rows:
        first.setdefault(row.request_id, row)
    assert all(first[f"s/{i}"].start == prompt_len - 1 for i in (1, 2))  # the last token only
    assert sum(len(r.token_ids) for r in rows) == prompt_len + 2 + 3 * 4
    assert_all_free(core)


def test_samples_of_a_first_one_that_ended_at_once_compute_for_themselves():
    core = make_core()
    for sample in samples("s", range(6), 3, max_tokens=1):
        core.add_request(sample)
    tokens = run(core)
    params = SamplingParams(temperature=1, max_tokens=1, seed=3)
    assert [tokens[f"s/{i}"] for i in range(3)] == [
        solo(range(6), params, sample_index=i)[0] for i in range(3)
    ]


def test_an_aborted_first_sample_lets_the_others_go_and_a_held_one_can_be_aborted():
    core = make_core(budget=2)
    for sample in samples("s", range(9), 3):
        core.add_request(sample)
    core.step()
    assert core.abort("s/1") and core.abort("s/0")
    core.scheduler.check()
    assert set(run(core)) == {"s/2"}
    assert_all_free(core)


def test_a_request_that_holds_its_blocks_reports_once_and_can_be_forked_for_another_token():
    core = make_core()
    core.add_request(request("beam", range(6), greedy(9), holds_blocks=True))
    (output,) = core.step()
    assert len(output.new_token_ids) == 1 and core.step() == []
    core.scheduler.check()
    for name, token in (("left", 7), ("right", 8)):
        core.add_request(request(name, [*range(6), token], greedy(3), fork_of="beam"))
    tokens = {o.request_id: list(o.new_token_ids) for o in core.step()}
    core.scheduler.check()
    new_rows = core.executor.plans[-1].rows
    assert [(r.start, r.token_ids) for r in new_rows] == [(6, (7,)), (6, (8,))]
    core.abort("beam")
    for name, rest in run(core).items():
        tokens[name] += rest
    assert tokens == {
        "left": solo([*range(6), 7], greedy(3))[0],
        "right": solo([*range(6), 8], greedy(3))[0],
    }
    assert_all_free(core)


def test_swapped_requests_come_back_without_computing_again():
    params = greedy(8)
    work = {}
    for preemption in ("recompute", "swap"):
        core = make_core(
            num_blocks=1 + 4, budget=64, num_host_blocks=4,
            scheduling={"preemption": preemption},
        )  # fmt: skip
        for name in "ab":
            core.add_request(request(name, range(7), params))
        tokens = run(core)
        assert tokens["a"] == tokens["b"] == solo(range(7), params)[0]
        assert core.scheduler.stats.num_preemptions >= 1
        work[preemption] = sum(p.num_tokens for p in core.executor.plans)
        assert_all_free(core)
    assert core.scheduler.stats.num_swaps == core.scheduler.stats.num_preemptions
    assert work["swap"] == 2 * (7 + 7) < work["recompute"]


def test_when_host_memory_is_full_a_stopped_request_is_computed_again():
    core = make_core(
        num_blocks=1 + 4, budget=64, num_host_blocks=1, scheduling={"preemption": "swap"}
    )
    for name in "ab":
        core.add_request(request(name, range(7), greedy(8)))
    tokens = run(core)
    assert core.scheduler.stats.num_preemptions > core.scheduler.stats.num_swaps == 0
    assert tokens["b"] == solo(range(7), greedy(8))[0]


def test_an_aborted_request_leaves_host_memory():
    core = make_core(
        num_blocks=1 + 4, budget=64, num_host_blocks=4, scheduling={"preemption": "swap"}
    )
    for name in "ab":
        core.add_request(request(name, range(7), greedy(8)))
    while not core.scheduler.stats.num_swaps:
        core.step()
    core.abort("b")
    core.scheduler.check()
    run(core)
    assert_all_free(core)


def test_reservation_to_the_end_never_stops_anybody_but_admits_fewer():
    for preemption, most in (("recompute", 3), ("reserve", 1)):
        core = make_core(num_blocks=1 + 6, budget=64, scheduling={"preemption": preemption})
        for name in "abc":
            core.add_request(request(name, range(6), greedy(12)))
        tokens = run(core)
        assert len(core.executor.plans[0].rows) == most
        stopped = core.scheduler.stats.num_preemptions
        assert (stopped == 0) == (preemption == "reserve")
        assert all(tokens[name] == solo(range(6), greedy(12))[0] for name in "abc")


def test_a_long_prompt_takes_no_more_of_a_step_than_it_may():
    core = make_core(budget=16, scheduling={"long_prefill_token_threshold": 4})
    core.add_request(request("long", range(13)))
    core.add_request(request("short", [1, 2]))
    run(core)
    longest = [
        max(len(r.token_ids) for r in p.rows if r.request_id == "long")
        for p in core.executor.plans
        if any(r.request_id == "long" for r in p.rows)
    ]
    assert longest[:4] == [4, 4, 4, 1]
    assert {r.request_id for r in core.executor.plans[0].rows} == {"long", "short"}


@pytest.mark.parametrize("cache", ["hash", "radix"])
def test_e10_weights_loaded_anew_find_nothing_of_the_old_ones(cache):
    """extra_key holds the adapter's load id, which is another one at each load."""
    core = make_core(prefix_cache=cache)
    for name, load_id, hit in (("a", 1, 0), ("b", 1, 8), ("c", 2, 0), ("d", 2, 8), ("e", 1, 8)):
        core.add_request(request(name, range(9), extra_key=("adapter", load_id)))
        before = core.scheduler.stats.num_cached_tokens
        run(core)
        assert core.scheduler.stats.num_cached_tokens - before == hit


@pytest.mark.parametrize("cache", ["hash", "radix"])
@pytest.mark.parametrize("past_border", range(4, 11))
def test_e16_what_lies_past_the_last_block_border_is_never_reused(cache, past_border):
    """A first prompt ends some tokens after a border; a second one goes on from it. Only what was
    kept at a border may be taken over, and the answer is the solo answer."""
    core = make_core(prefix_cache=cache, block_size=16, budget=64, num_blocks=20)
    first = [*range(32), *range(past_border)]
    core.add_request(request("first", first, greedy(2)))
    run(core)
    for name, prompt in (("longer", [*first, 40, 41]), ("again", first)):
        core.add_request(request(name, prompt))
        assert run(core)[name] == solo(prompt, greedy())[0]
        rows = [r for p in core.executor.plans for r in p.rows if r.request_id == name]
        assert rows[0].start == 32


def order_of_admission(core):
    return [new.request_id for p in core.executor.plans for new in p.new_requests]


def test_priority_goes_first_and_the_least_urgent_is_stopped_first():
    core = make_core(max_num_seqs=1, policy="priority")
    for name, priority in (("a", 5), ("b", 1), ("c", 3), ("d", 1)):
        core.add_request(request(name, [1], priority=priority))
    run(core)
    assert order_of_admission(core) == ["b", "d", "c", "a"]
    core = make_core(num_blocks=1 + 5, budget=64, policy="priority")
    core.add_request(request("idle", range(7), greedy(8), priority=9))
    core.step()
    core.add_request(request("urgent", range(7), greedy(8), priority=0))
    run(core)
    assert {i for p in core.executor.plans for i in p.preempted_ids} == {"idle"}


def test_waiting_makes_the_least_urgent_urgent_some_day():
    now = [0.0]
    core = make_core(max_num_seqs=1, policy="priority", clock=lambda: now[0])
    core.add_request(request("least", [1], greedy(1), priority=3, arrival_time=0.0))
    for second in range(400):  # a more urgent one arrives before each step
        now[0] = float(second)
        core.add_request(request(second, [1], greedy(1), priority=0, arrival_time=now[0]))
        core.step()
    assert "least" in order_of_admission(core)


def test_fair_serves_tenants_alike_whatever_they_ask_for():
    core = make_core(max_num_seqs=1, policy="fair")
    for i in range(6):
        core.add_request(request(f"greedy {i}", range(8), extra_key=("greedy",)))
    for i in range(3):
        core.add_request(request(f"modest {i}", range(8), extra_key=("modest",)))
    run(core)
    tenants = [request_id.split()[0] for request_id in order_of_admission(core)]
    assert tenants[:6].count("modest") == 3
    assert tenants[6:] == ["greedy"] * 3


def test_a_tenant_that_comes_late_cannot_have_saved_up():
    core = make_core(max_num_seqs=1, policy="fair")
    for i in range(16):
        core.add_request(request(f"first {i}", range(8), extra_key=("first",)))
    for _ in range(30):
        core.step()
    for i in range(8):
        core.add_request(request(f"late {i}", range(8), extra_key=("late",)))
    core.step()
    seen = len(order_of_admission(core))
    run(core)
    order = [r.split()[0] for r in order_of_admission(core)[seen:]]
    assert all(order[:4].count(t) == 2 for t in ("first", "late")), order


def test_static_batches_wait_for_the_slowest():
    core = make_core(max_num_seqs=2, policy="static")
    for name, length in (("a", 2), ("b", 6), ("c", 2), ("d", 2)):
        core.add_request(request(name, [1, 2], greedy(length)))
    run(core)
    admitted = [(p.step, new.request_id) for p in core.executor.plans for new in p.new_requests]
    assert admitted == [(1, "a"), (1, "b"), (7, "c"), (7, "d")]


@pytest.mark.parametrize("policy", ["lpm", "dfs"])
@pytest.mark.parametrize("cache", [c for c in CACHES if c != "none"])
def test_what_is_cached_is_used_before_it_is_forgotten(policy, cache):
    """Three documents, asked about in scrambled order, with memory for about one of them."""
    documents = {d: [d] * 12 for d in (1, 2, 3)}
    order = [1, 2, 3, 1, 2, 3, 1, 2, 3]
    hits = {}
    for name in ("fcfs", policy):
        core = make_core(
            num_blocks=1 + 5, max_num_seqs=1, budget=64, policy=name, prefix_cache=cache
        )
        for i, document in enumerate(order):
            core.add_request(request(i, documents[document] + [10 + i], greedy(2)))
        tokens = run(core)
        hits[name] = core.scheduler.stats.num_cached_tokens
        for i, document in enumerate(order):
            assert tokens[str(i)] == solo(documents[document] + [10 + i], greedy(2))[0]
    assert hits["fcfs"] == 0 and hits[policy] == 6 * 12


@pytest.mark.parametrize("policy", ["lpm", "dfs"])
def test_no_match_makes_anybody_wait_for_ever(policy):
    now = [0.0]
    caches = [c for c in CACHES if c != "none"]
    core = make_core(
        max_num_seqs=1, policy=policy, prefix_cache=caches[0] if caches else "none",
        clock=lambda: now[0],
    )  # fmt: skip
    core.add_request(request("stranger", [9] * 9, greedy(1)))
    for second in range(60):
        now[0] = second / 2
        core.add_request(request(second, [1] * 9, greedy(1), arrival_time=now[0]))
        core.step()
    assert "stranger" in order_of_admission(core)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_trace_says_why_and_replays_to_the_same_plans(policy):
    options = {
        "num_blocks": 1 + 8, "budget": 7, "policy": policy, "num_host_blocks": 3,
        "scheduling": {"preemption": "swap"}, "eos": (4,),
    }  # fmt: skip
    lines = []
    core = make_core(trace=Trace(lines.append, policy=policy), **options)
    for i in range(5):
        core.add_request(request(i, range(i, i + 9), greedy(9), priority=i % 2, extra_key=(i % 2,)))
    for sample in samples("s", [1] * 6, 3):
        core.add_request(sample)
    core.step()
    core.abort("2")
    run(core)
    plans = [p for kind, m in read_trace(lines) if kind == "step" for p in [m[1]]]
    assert plans == core.executor.plans
    reasons = {why[0] for kind, m in read_trace(lines) if kind == "step" for why in m[3]}
    assert {"admitted", "chunked"} <= reasons
    if policy not in ("static",):
        assert "preempted" in reasons
    again = make_core(**options).scheduler
    assert replay(lines, again) == len(plans)
    again.check()
    if policy == "fcfs":
        other = make_core(**options | {"budget": 6}).scheduler
        with pytest.raises(ValueError, match="step 1: rows was"):
            replay(lines, other)


@pytest.mark.parametrize(
    "lines, message",
    [
        (['{"trace": 99}'], "line 1 .* version is 99"),
        (["nonsense"], "line 1 is not part"),
        (['{"trace": 1}', '{"add": {"request_id": "a"}}'], "line 2 is not part"),
        (['{"trace": 1}', "{}"], "line 2 is not part"),
    ],
)
def test_what_is_no_trace_is_refused_by_line(lines, message):
    with pytest.raises(ValueError, match=message):
        list(read_trace(lines))


@pytest.mark.parametrize("cache", ["hash", "radix"])
def test_samples_that_fork_a_request_just_swapped_in_keep_the_cache_in_order(cache):
    for seed in range(120):
        rng = random.Random(seed)
        block_size = rng.choice([1, 2, 4])
        core = make_core(
            num_blocks=rng.randint(8, 16), block_size=block_size, budget=rng.choice([4, 8, 64]),
            prefix_cache=cache, num_host_blocks=rng.choice([6, 30]),
            scheduling={"preemption": "swap"},
        )  # fmt: skip
        for i in range(6):
            prompt = [1] * rng.randint(1, 3 * block_size)
            prompt += [rng.randrange(2) for _ in range(rng.randint(0, block_size + 1))]
            room = core.scheduler.max_model_len - len(prompt)
            max_tokens = min(rng.randint(2, 3 * block_size + 2), room)
            if max_tokens > 0:
                for new in samples(f"r{i}", prompt, rng.choice([1, 2, 3]), max_tokens=max_tokens):
                    core.add_request(new)
        run(core)
        assert_all_free(core)


FEATURES = {
    "prefix_cache": list(CACHES),
    "preemption": ["recompute", "swap", "reserve"],
    "policy": list(POLICIES),
    "n": [1, 4],
    "budget": [1, 3, 9, 40],
    "block_size": [1, 3, 4],
    "max_chunk": [0, 2],
}


@settings(max_examples=400)
@given(
    features=st.fixed_dictionaries({k: st.sampled_from(v) for k, v in FEATURES.items()}),
    spare=st.integers(0, 10),
    num_host_blocks=st.integers(1, 12),
    max_num_seqs=st.integers(1, 5),
    seed=st.integers(0, 2**20),
)
def test_any_features_in_any_company_give_the_solo_tokens(
    features, spare, num_host_blocks, max_num_seqs, seed
):
    """Bookkeeping under every combination: caches, preemption, forks, policies, chunks, aborts."""
    rng = random.Random(seed)
    block_size, n = features["block_size"], features["n"]
    common = [rng.randrange(50) for _ in range(8)]
    jobs = []
    for _ in range(rng.randint(1, 6)):
        prompt = common[: rng.randrange(9)] + [rng.randrange(50) for _ in range(rng.randint(1, 6))]
        jobs.append((prompt, rng.choice([0, 1.0]), rng.randint(1, 9), rng.randrange(3)))
    longest = max(len(p) + max_tokens for p, _, max_tokens, _ in jobs) + block_size
    core = make_core(
        num_blocks=1 + -(-longest // block_size) + spare, block_size=block_size,
        budget=features["budget"], max_num_seqs=max_num_seqs, eos=(4, 9),
        prefix_cache=features["prefix_cache"], policy=features["policy"],
        num_host_blocks=num_host_blocks,
        scheduling={
            "preemption": features["preemption"],
            "long_prefill_token_threshold": features["max_chunk"],
        },
    )  # fmt: skip
    expected, arrivals, deaths = {}, [], {}
    for index, (prompt, temperature, max_tokens, tenant) in enumerate(jobs):
        params = SamplingParams(temperature=temperature, max_tokens=max_tokens, seed=index)
        arrival = rng.randint(0, 6)
        for i in range(n):
            request_id = f"{index}/{i}"
            expected[request_id] = solo(prompt, params, eos=(4, 9), sample_index=i)
            new = request(
                request_id, prompt, params, sample_index=i, extra_key=(tenant,),
                fork_of=f"{index}/0" if i else None, priority=tenant,
            )  # fmt: skip
            arrivals.append((arrival, new))
            if rng.random() < 0.1:
                deaths[request_id] = arrival + rng.randint(0, 9)
    tokens, aborted = {}, set()
    for step in range(4000):
        for arrival, new in arrivals:
            if arrival == step:
                core.add_request(new)
        for request_id, death in deaths.items():
            if death == step and core.abort(request_id):
                aborted.add(request_id)
        for output in core.step():
            tokens.setdefault(output.request_id, []).extend(output.new_token_ids)
        core.scheduler.check()
        if step > 16 and not core.has_unfinished_requests:
            break
    assert not core.has_unfinished_requests, "live-lock"
    core.step()
    assert not core.executor.states
    for request_id, (ids, _) in expected.items():
        got = tokens.get(request_id, [])
        assert got == (ids[: len(got)] if request_id in aborted else ids)
    if features["preemption"] == "reserve":
        assert core.scheduler.stats.num_preemptions == 0
    assert_all_free(core)
    steps = [plan.step for plan in core.executor.plans]
    assert all(a < b for a, b in pairwise(steps))
