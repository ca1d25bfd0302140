"""The simulator: hand-worked runs, conservation, the laws of queues, and its command."""

from __future__ import annotations

import json
import random
import re
import sys
from bisect import bisect_left
from dataclasses import replace

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_executor import ToyExecutor

from minivllm.__main__ import main
from minivllm.bench import simulators
from minivllm.bench.arrivals import fixed, poisson, uniform
from minivllm.bench.experiments import EXPERIMENTS
from minivllm.bench.hardware import find_hardware
from minivllm.bench.model_shapes import find_model
from minivllm.bench.plot import check_picture
from minivllm.bench.report import percentile, rows_table, summarize
from minivllm.bench.roofline import (
    Constants,
    Deployment,
    decode_work,
    prefill_work,
    step_seconds,
)
from minivllm.bench.simulate import simulate_workload
from minivllm.bench.workload import WorkloadRequest, workload_chat, workload_prefixes, workload_rag
from minivllm.config import EngineConfig
from minivllm.engine.core import EngineCore, make_scheduler
from minivllm.executor.sim import PlanJudge, SimExecutor, invented_token
from minivllm.metrics.trace import read_trace
from minivllm.outputs import NewRequest, Row, SchedulerOutput
from minivllm.sampling_params import SamplingParams

GREEDY = SamplingParams(temperature=0)


def deploy(model="llama-3-8b", hardware="h100", **more):
    return Deployment(find_model(model), find_hardware(hardware), **more)


def engine(**settings):
    limits = {"max_num_seqs": 64, "max_num_batched_tokens": 2048, "prefix_cache": "none"}
    return EngineConfig("x", **(limits | settings))


def ask(request_id, num_in, num_out, **more):
    prompt = tuple(range(num_in))
    return WorkloadRequest(request_id, prompt, num_out, **more)


def simulate(requests, deployment=None, **settings):
    config = engine(**settings)
    deployment = replace(deployment or deploy(), block_size=config.block_size)
    return simulate_workload(requests, deployment, config, check_plans=True)


def test_one_request_alone_takes_its_prefill_and_its_decodes():
    deployment = deploy()
    (record,) = simulate([ask("a", 100, 3, arrival_time=5.0)]).records
    first = 5.0 + step_seconds(deployment, prefill_work(100))
    second = first + step_seconds(deployment, decode_work(1, 101))
    third = second + step_seconds(deployment, decode_work(1, 102))
    assert record.token_times == pytest.approx([first, second, third])
    assert record.ttft_s == pytest.approx(first - 5.0)
    assert record.tpot_s == pytest.approx((third - first) / 2)
    assert record.itl_s == pytest.approx([second - first, third - second])
    assert record.latency_s == pytest.approx(third - 5.0)
    assert (record.admitted_time, record.finish_reason) == (5.0, "length")


def test_a_prompt_longer_than_the_budget_takes_its_chunks():
    deployment = deploy()
    (record,) = simulate([ask("a", 250, 1)], max_num_batched_tokens=100).records
    chunks = (prefill_work(100), prefill_work(100, 100), prefill_work(50, 200))
    unsampled = [replace(work, num_sampled=int(work is chunks[2])) for work in chunks]
    total = sum(step_seconds(deployment, work) for work in unsampled)
    assert record.ttft_s == pytest.approx(total)


def test_two_requests_at_once_share_the_weights():
    deployment = deploy()
    both = simulate([ask("a", 50, 2), ask("b", 70, 2)]).records
    # Equal beginnings, but no cache: each computes its own.
    work = replace(
        prefill_work(50), num_requests=2, num_tokens=120, num_sampled=2,
        num_attended=50 * 51 // 2 + 70 * 71 // 2, num_kv_read=120,
    )  # fmt: skip
    first = step_seconds(deployment, work)
    assert both[0].token_times[0] == both[1].token_times[0] == pytest.approx(first)


def test_an_idle_engine_waits_for_the_next_arrival():
    a, b = simulate([ask("a", 5, 1), ask("b", 5, 1, arrival_time=100.0)]).records
    assert a.token_times[-1] < 1 and b.token_times[0] == pytest.approx(100 + a.ttft_s)


def test_a_request_that_follows_comes_after_the_end_of_the_one_before():
    a, b = simulate([ask("a", 5, 4), ask("b", 5, 1, after="a", arrival_time=2.0)]).records
    assert b.arrival_time == pytest.approx(a.token_times[-1] + 2.0)


def test_cached_tokens_are_not_computed_again():
    requests = [ask("a", 160, 1), ask("b", 160, 1, arrival_time=10.0)]
    a, b = simulate(requests, prefix_cache="radix").records
    assert (a.num_cached_tokens, b.num_cached_tokens) == (0, 144)  # the last block is computed
    expected = step_seconds(deploy(), prefill_work(16, 144))
    assert b.ttft_s == pytest.approx(expected)


def test_a_tenant_does_not_find_what_another_left():
    requests = [
        ask("a", 160, 1, tenant="x"),
        ask("b", 160, 1, arrival_time=10.0, tenant="y"),
        ask("c", 160, 1, arrival_time=20.0, tenant="x"),
    ]
    hits = [r.num_cached_tokens for r in simulate(requests, prefix_cache="hash").records]
    assert hits == [0, 0, 144]


loads = st.lists(
    st.tuples(st.integers(1, 60), st.integers(1, 40), st.floats(0, 0.5)), min_size=1, max_size=12
)


@settings(max_examples=60, deadline=None)
@given(
    load=loads,
    num_blocks=st.integers(26, 60),
    budget=st.integers(1, 64),
    places=st.integers(1, 12),
    cache=st.sampled_from(["none", "hash", "radix"]),
    policy=st.sampled_from(["fcfs", "static", "priority", "fair", "lpm", "dfs"]),
    preemption=st.sampled_from(["recompute", "swap", "reserve"]),
)
def test_every_request_gets_exactly_its_tokens_and_gives_all_memory_back(
    load, num_blocks, budget, places, cache, policy, preemption
):
    requests = [
        ask(f"r{i}", num_in, num_out, arrival_time=time)
        for i, (num_in, num_out, time) in enumerate(load)
    ]
    done = simulate(
        requests,
        num_blocks=num_blocks,
        block_size=4,
        max_num_batched_tokens=budget,
        max_num_seqs=places,
        prefix_cache=cache,
        policy=policy,
        preemption=preemption,
        num_host_blocks=10 if preemption == "swap" else 0,
    )
    assert [r.request.request_id for r in done.records] == [r.request_id for r in requests]
    for request, record in zip(requests, done.records):
        assert len(record.token_times) == request.max_tokens
        assert record.finish_reason == "length" and record.error is None
        assert record.token_times == sorted(record.token_times)
        assert record.token_times[0] > record.admitted_time >= record.arrival_time
    assert done.steps[-1].kv_use == 0
    assert all(a.end <= b.start for a, b in zip(done.steps, done.steps[1:]))
    assert all(s.num_tokens <= budget and s.num_rows <= places for s in done.steps)
    if preemption == "reserve":
        assert done.num_preemptions == 0


def test_the_mean_number_inside_is_arrival_rate_times_mean_stay():
    rate, n = 30.0, 3000
    requests = workload_prefixes(
        n, prompt_len=uniform(100, 600), output_len=uniform(5, 30),
        arrivals=poisson(rate, random.Random(11)), seed=11,
    )  # fmt: skip
    done = simulate(requests, max_num_seqs=8)
    starts = [s.start for s in done.steps]
    at_the_door = sum(  # who comes in the middle of a step is seen when the next one starts
        starts[bisect_left(starts, r.arrival_time)] - r.arrival_time for r in done.records
    )
    inside = sum((s.num_running + s.num_waiting) * (s.end - s.start) for s in done.steps)
    stay = sum(r.latency_s for r in done.records) / n
    assert max(s.num_waiting for s in done.steps) > 3  # a queue, too
    mean_inside = (inside + at_the_door) / done.makespan_s
    assert mean_inside == pytest.approx(n / done.makespan_s * stay, rel=1e-6)
    assert mean_inside == pytest.approx(rate * stay, rel=0.04)


def test_one_place_with_steps_of_one_length_is_the_queue_of_pollaczek_and_khinchine():
    deployment = deploy()
    service = step_seconds(deployment, prefill_work(64))
    load = 0.7
    requests = workload_prefixes(
        20000, prompt_len=fixed(64), output_len=fixed(1),
        arrivals=poisson(load / service, random.Random(12)), seed=12,
    )  # fmt: skip
    config = engine(max_num_seqs=1)
    done = simulate_workload(requests, deployment, config)
    waited = sum(r.admitted_time - r.arrival_time for r in done.records) / len(requests)
    assert waited == pytest.approx(load * service / (2 * (1 - load)), rel=0.06)


def test_faster_memory_ends_the_same_load_sooner():
    requests = workload_prefixes(40, prompt_len=uniform(50, 400), output_len=uniform(5, 50))
    ends = [
        simulate(requests, deploy("llama-3-8b", name)).makespan_s
        for name in ("a100", "h100", "h200")
    ]
    assert ends == sorted(ends, reverse=True) and ends[0] > 1.3 * ends[1]


def test_the_same_seed_gives_the_same_run():
    def once(seed):
        requests = workload_chat(10, 3, vocab_size=128256, seed=seed)
        done = simulate(requests, prefix_cache="radix", policy="lpm")
        return summarize(done, 1.0, 0.05), done.steps

    assert once(3) == once(3) and once(3) != once(4)


def forms(plans):
    """Plans without the ids of tokens, which the two models say differently."""
    return [
        replace(
            plan,
            rows=tuple(row._replace(token_ids=(0,) * len(row.token_ids)) for row in plan.rows),
            new_requests=tuple(
                replace(new, token_ids=(0,) * len(new.token_ids)) for new in plan.new_requests
            ),
        )
        for plan in plans
    ]


class Recording(SimExecutor):
    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        self.plans = []

    def execute_model(self, plan):
        self.plans.append(plan)
        super().execute_model(plan)


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_the_simulator_and_a_model_that_computes_get_the_same_plans(preemption):
    config = engine(
        block_size=4, max_num_batched_tokens=24, max_num_seqs=6, preemption=preemption,
        num_host_blocks=8 if preemption == "swap" else 0,
    )  # fmt: skip
    requests = workload_prefixes(12, prompt_len=uniform(3, 30), output_len=uniform(1, 30), seed=13)
    plans = []
    for executor in (ToyExecutor(), Recording(config, deploy(block_size=4), check_plans=True)):
        executor.initialize(20, config.num_host_blocks)
        core = EngineCore(make_scheduler(config, 20, 76), executor, lambda: 0.0)
        for request in requests:
            core.add_request(request.engine_request(0.0))
        while core.has_unfinished_requests:
            core.step()
        core.step()  # the last ones are forgotten
        plans.append(executor.plans)
        assert core.scheduler.stats.num_preemptions > 0
    toy, sim = plans
    assert forms(toy) == forms(sim)


def sim_executor(**more):
    executor = SimExecutor(engine(), deploy(), **more)
    executor.initialize(10)
    return executor


def plan_of(step, *rows, **more):
    new = tuple(NewRequest(row.request_id, (1,) * 40, 40, GREEDY) for row in rows if row.start == 0)
    return SchedulerOutput(step, new_requests=new, rows=rows, **more)


def row(request_id, start, num, blocks, table_start=0, num_to_sample=1):
    return Row(
        request_id, start, (1,) * num, num_to_sample, table_start=(table_start,),
        table_ids=(tuple(blocks),),
    )  # fmt: skip


def test_a_row_gets_a_token_only_where_it_samples_and_the_clock_moves_at_the_end():
    executor = sim_executor(check_plans=True)
    executor.execute_model(
        plan_of(1, row("a", 0, 20, [1, 2]), row("b", 0, 5, [3], num_to_sample=0))
    )
    assert executor.now == 0
    result = executor.sample_tokens(1)
    assert [len(ids) for ids in result.sampled] == [1, 0]
    assert result.step == 1 and result.errors == () and executor.now == executor.last_seconds > 0


def test_invented_tokens_depend_on_the_request_and_the_position_only():
    def tokens(rows):
        executor = sim_executor()
        executor.execute_model(plan_of(1, *rows))
        return dict(zip([r.request_id for r in rows], executor.sample_tokens(1).sampled))

    a, b = row("a", 0, 20, [1, 2]), row("b", 0, 30, [3, 4])
    assert tokens([a, b])["a"] == tokens([a])["a"] != tokens([row("a", 0, 21, [1, 2])])["a"]
    assert tokens([a, b])["b"] != tokens([row("c", 0, 30, [3, 4])])["c"]
    said = [invented_token(5, position, 50000) for position in range(2000)]
    assert len(set(said)) == 2000 and 0 <= min(said) <= max(said) < 50000


def test_steps_may_be_started_ahead_and_end_in_order():
    executor = sim_executor(check_plans=True)
    executor.execute_model(plan_of(1, row("a", 0, 20, [1, 2])))
    executor.execute_model(plan_of(2, row("a", 20, 1, [], table_start=2)))
    with pytest.raises(AssertionError, match="step 1 was started first, not 2"):
        executor.sample_tokens(2)
    executor = sim_executor()
    with pytest.raises(AssertionError, match="no step was started"):
        executor.sample_tokens(1)


def test_what_the_simulator_cannot_say_is_refused():
    executor = sim_executor(fail_on={"bad"})
    asks = {
        "plain": GREEDY, "bad": GREEDY, "scores": replace(GREEDY, logprobs=1),
        "prompt": replace(GREEDY, prompt_logprobs=1),
    }  # fmt: skip
    rows = [row(name, 0, 4, [i + 1]) for i, name in enumerate(asks)]
    new = tuple(NewRequest(name, (1,) * 4, 4, params) for name, params in asks.items())
    executor.execute_model(SchedulerOutput(1, new_requests=new, rows=tuple(rows)))
    result = executor.sample_tokens(1)
    assert [len(ids) for ids in result.sampled] == [1, 0, 0, 0]
    assert [request_id for request_id, _ in result.errors] == ["bad", "scores", "prompt"]
    assert "no log-probabilities" in result.errors[1][1]
    executor.execute_model(plan_of(2, row("late", 0, 4, [5])))
    with pytest.raises(ValueError, match="cannot obey a grammar"):
        executor.sample_tokens(2, {"late": (b"\xff",)})
    with pytest.raises(ValueError, match="block_size is 16 in the engine and 4"):
        SimExecutor(engine(), deploy(block_size=4))


GOOD = plan_of(1, row("a", 0, 20, [1, 2]), row("b", 0, 5, [3]))
BAD_PLANS = {
    "introduced twice": plan_of(2, row("a", 0, 4, [4])),
    "has two rows": plan_of(2, row("a", 20, 1, [], 2), row("a", 21, 1, [], 2)),
    "goes on at 22": plan_of(2, row("a", 22, 1, [], 2)),
    "past its table": plan_of(2, row("a", 20, 13, [], 2)),
    "hole in its table": plan_of(2, row("a", 20, 1, [7], 3)),
    "block of another": plan_of(2, row("a", 20, 1, [], 2), row("b", 5, 1, [2], 0)),
}


@pytest.mark.parametrize("complaint", BAD_PLANS)
def test_a_plan_that_does_not_follow_is_found_out(complaint):
    judge = PlanJudge(16)
    judge.num_blocks = 10
    judge.look_at(GOOD)
    with pytest.raises(AssertionError, match=complaint):
        judge.look_at(BAD_PLANS[complaint])


@pytest.mark.parametrize("block_id", [0, 10])
def test_a_plan_that_writes_outside_the_memory_is_found_out(block_id):
    judge = PlanJudge(16)
    judge.num_blocks = 10
    with pytest.raises(AssertionError):
        judge.look_at(plan_of(1, row("a", 0, 4, [block_id])))


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        ([ask("a", 9000, 1)], "a has 9000 tokens and wants 1 more: .* take 8192"),
        ([ask("a", 5, 1), ask("a", 5, 1)], "same request_id"),
        ([ask("a", 5, 1, after="b")], "a follows no request"),
    ],
)
def test_a_workload_that_cannot_be_served_is_refused(requests, message):
    with pytest.raises(ValueError, match=message):
        simulate(requests)


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=40), st.floats(0, 100))
def test_percentiles_are_numpys(values, percent):
    assert percentile(values, percent) == pytest.approx(numpy.percentile(values, percent))


def test_the_figures_add_up():
    requests = workload_prefixes(
        50, prompt_len=fixed(100), output_len=fixed(20),
        arrivals=poisson(5.0, random.Random(14)), seed=14,
    )  # fmt: skip
    done = simulate(requests)
    f = summarize(done, slo_ttft_s=1e-9, slo_tpot_s=1.0)
    assert (f["num_prompt_tokens"], f["num_output_tokens"]) == (5000, 1000)
    assert f["goodput_share"] == 0 and f["hit_rate"] == 0
    assert f["output_tokens_per_s"] * f["duration_s"] == pytest.approx(1000)
    assert f["duration_s"] == pytest.approx(done.makespan_s - requests[0].arrival_time)
    limit = summarize(done, 9.0, 9.0)
    assert limit["goodput_requests_per_s"] == pytest.approx(limit["requests_per_s"])
    limit = sorted(r.ttft_s for r in done.records)[29]
    assert summarize(done, limit + 1e-9, 9.0)["goodput_share"] >= 0.6
    assert summarize(done, limit - 1e-9, 9.0)["goodput_share"] < 0.6


def test_continuous_batches_serve_more_than_static_ones():
    requests = workload_prefixes(48, prompt_len=uniform(50, 200), output_len=uniform(5, 200))
    static = simulators.simulate_static(requests, batch=16)
    continuous = simulators.simulate_continuous(requests, chunked=True)
    assert continuous["output_tokens_per_s"] > 1.5 * static["output_tokens_per_s"]


def test_chunks_shorten_the_worst_gap():
    chats = [ask(f"c{i}", 20, 60) for i in range(8)]
    long = [
        replace(ask(f"l{i}", 4000, 2, arrival_time=0.1 * i), prompt_token_ids=(i,) * 4000)
        for i in range(3)
    ]
    whole = simulators.simulate_continuous([*chats, *long], chunked=False)
    chunked = simulators.simulate_continuous([*chats, *long], chunked=True)
    assert chunked["itl_p99_s"] < 0.4 * whole["itl_p99_s"]


def test_the_longest_prefix_first_finds_more_in_a_small_cache():
    requests = workload_prefixes(
        60, prompt_len=fixed(420), output_len=fixed(4), num_prefixes=12, prefix_len=400, seed=15
    )
    fcfs = simulators.simulate(requests, "FCFS", num_blocks=120)
    aware = simulators.simulate(requests, "CACHE_AWARE", num_blocks=120)
    assert aware["hit_rate"] > fcfs["hit_rate"] + 0.1
    with pytest.raises(ValueError, match="order must be one of FCFS, CACHE_AWARE"):
        simulators.simulate(requests, "LIFO")


def test_scrambled_documents_are_found_less_often():
    hits = [
        summarize(simulate(workload_rag(40, order=order), prefix_cache="radix"), 1, 1)["hit_rate"]
        for order in ("fixed", "scrambled", "stamped")
    ]
    assert hits[0] > 0.75 and hits[1] < hits[0] - 0.25 and hits[2] == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_shows_what_it_is_for(name, tmp_path):
    outcome = EXPERIMENTS[name]()
    rows = outcome.rows
    claims = {
        "static-batching": lambda: rows[1]["output tokens/s"] > 2 * rows[0]["output tokens/s"],
        "chunked-prefill": lambda: rows[-1]["ITL p99 (ms)"] > 8 * rows[2]["ITL p99 (ms)"],
        "scrambled-prompts": lambda: rows[0]["hit rate"] > 2 * rows[2]["hit rate"] > 0,
        "cache-aware-order": lambda: rows[1]["hit rate"] > 1.5 * rows[0]["hit rate"],
        "preemption-cliff": lambda: (
            rows[3]["preemptions a request"] == 0 and rows[9]["preemptions a request"] > 0.5
        ),
        "recompute-or-swap": lambda: (
            rows[0]["swap"] > rows[0]["recompute"] and rows[1]["swap"] < 0.25 * rows[1]["recompute"]
        ),
    }
    assert claims[name]()
    assert max(map(len, rows_table(rows).splitlines())) <= 80
    outcome.save(str(tmp_path / "picture.svg"))
    text = (tmp_path / "picture.svg").read_text(encoding="utf-8")
    assert "Modelled" in text and outcome.title.split()[0] in text


def run_command(capsys, *args):
    status = main(["simulate", *args])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


SMALL = ("--requests", "20", "--input-len", "50-100", "--output-len", "5")


def test_the_command_prints_a_table_of_80_columns_that_says_it_is_modelled(capsys):
    status, out, err = run_command(capsys, *SMALL, "--prefixes", "2", "--prefix-len", "32")
    assert status == 0 and err == ""
    assert out.startswith("modelled: Llama 3 8B on H100 SXM")
    assert max(map(len, out.splitlines())) <= 80
    for word in ("TTFT", "TPOT", "ITL", "p99", "goodput", "hit rate", "preemptions", "KV use"):
        assert word in out
    assert re.search(r"hit rate +[1-9]", out)


def test_the_command_gives_json_a_trace_and_a_picture(capsys, tmp_path):
    trace, picture = tmp_path / "trace.jsonl", tmp_path / "run.png"
    status, out, _ = run_command(
        capsys, *SMALL, "--json", "--trace", str(trace), "--picture", str(picture)
    )
    figures = json.loads(out)
    assert status == 0 and figures["modelled"] is True and figures["num_output_tokens"] == 100
    kinds = [kind for kind, _ in read_trace(trace.read_text().splitlines())]
    assert kinds[0] == "about" and kinds.count("add") == 20
    assert kinds.count("step") == figures["num_steps"]
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("workload", ["rag", "scrambled", "chat", "agents"])
def test_the_command_knows_each_workload(capsys, workload):
    status, out, _ = run_command(capsys, "--workload", workload, "--requests", "10", "--json")
    assert status == 0 and json.loads(out)["num_requests"] == 10


def test_the_command_serves_recorded_traffic(capsys, tmp_path):
    path = tmp_path / "traffic.jsonl"
    path.write_text('{"arrival_time": 3, "prompt_tokens": 40, "output_tokens": 7}\n')
    status, out, _ = run_command(capsys, "--workload-file", str(path), "--json")
    assert status == 0 and json.loads(out)["num_output_tokens"] == 7


def test_the_command_runs_an_experiment(capsys, tmp_path):
    picture = tmp_path / "p.svg"
    status, out, err = run_command(
        capsys, "--experiment", "recompute-or-swap", "--picture", str(picture)
    )
    assert status == 0 and out.startswith("modelled: ") and "running" in err
    assert max(map(len, out.splitlines())) <= 80
    assert "<svg" in picture.read_text()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--hardware", "h999"], "known are h100, h200, b200"),
        (["--model", "gpt"], "known are llama-3-8b"),
        (["--model", "llama-3-70b"], "raise --tensor-parallel-size, or lower --weight-bits"),
        (["--preemption", "swap"], "--preemption swap needs --num-host-blocks"),
        (["--workload", "chat", "--input-len", "9"], "--input-len has no effect with --workload"),
        (["--experiment", "recompute-or-swap", "--rate", "3"], "--rate has no effect"),
        (["--experiment", "none"], "unknown experiment 'none': known are static-batching"),
        (["--picture", "run.gif"], ".svg or a .png"),
        (["--picture", "no-folder/run.svg"], "'no-folder', where the picture shall go, is no"),
        (["--rate", "-1"], "--rate must be 0 (all at once) or more, got -1"),
        (["--requests", "0"], "minivllm: --requests must be at least 1, got 0"),
        (["--burst", "0"], "--burst must be at least 1"),
        (["--workload-file", "there-is-none.jsonl"], "there-is-none.jsonl does not exist"),
        (["--workload-file", __file__], "line 1 is no request of a workload: it is not a"),
    ],
)  # fmt: skip
def test_the_command_says_in_one_line_what_to_change(capsys, args, message):
    status, out, err = run_command(capsys, *args)
    assert status == 2 and out == "" and err.count("\n") == 1
    assert message in err


def test_a_picture_is_checked_before_anything_runs():
    check_picture("a.SVG")
    with pytest.raises(ValueError, match="'a'"):
        check_picture("a")


def test_without_matplotlib_a_picture_is_refused_before_anything_runs(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    status, out, err = run_command(capsys, "--picture", "run.svg")
    assert status == 2 and out == ""
    assert "a picture needs matplotlib" in err and "-m pip install matplotlib" in err


def test_constants_that_were_measured_change_the_time():
    slow = deploy(constants=Constants(seconds_per_step=1.0))
    (record,) = simulate([ask("a", 5, 2)], slow).records
    assert record.tpot_s == pytest.approx(1.0, rel=0.01)
