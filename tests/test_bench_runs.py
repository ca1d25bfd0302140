"""Runs of the real engine that are timed: what they ask, what they count, what they write down."""

from __future__ import annotations

import json
import platform
from xml.etree import ElementTree

import pytest
from test_cli import toy_llm
from tiny_models import random_llama
from toy_executor import assert_all_free, solo

from minivllm.__main__ import main
from minivllm.bench.arrivals import uniform
from minivllm.bench.latency import latency_figures, latency_table
from minivllm.bench.offline import (
    engine_figures,
    middle,
    offline_requests,
    offline_table,
    records_of,
    speed_figures,
)
from minivllm.bench.plot import DECODE, PREFILL
from minivllm.bench.record import write_record
from minivllm.bench.simulate import Record
from minivllm.bench.timed_run import greedy, serve, serve_naively
from minivllm.bench.workload import WorkloadRequest
from minivllm.commands.bench import KINDS


def requests(n: int, **more) -> list[WorkloadRequest]:
    return offline_requests(n, uniform(3, 12), uniform(2, 9), vocab_size=50, **more)


def alone(request: WorkloadRequest) -> tuple[int, ...]:
    output, _ = solo(request.prompt_token_ids, greedy(request.max_tokens))
    return tuple(output)


# -- runs


@pytest.mark.parametrize("run", [serve, serve_naively])
def test_a_timed_run_says_what_each_request_says_alone_and_leaves_nothing_behind(run):
    engine = toy_llm(num_blocks=9).engine
    executor = engine.core.executor
    before, asked, told = executor.execute_model, requests(6), []
    timed = run(engine, asked, lambda *counts: told.append(counts))
    assert timed.outputs == [alone(request) for request in asked]
    assert [len(r.token_times) for r in timed.records] == [r.max_tokens for r in asked]
    assert all(r.token_times == sorted(r.token_times) for r in timed.records)
    assert told[-1] == (timed.num_new_tokens, timed.num_new_tokens)
    assert executor.execute_model == before and executor.states == {}
    assert_all_free(engine.core)


def test_the_naive_run_computes_the_whole_text_for_each_token():
    asked = requests(2)
    timed = serve_naively(toy_llm(budget=64).engine, asked)
    wanted = [len(r.prompt_token_ids) + i for r in asked for i in range(r.max_tokens)]
    assert [step.work.num_tokens for step in timed.steps] == wanted
    assert timed.prefill_share == 1


def test_each_step_is_written_down_with_its_work_and_its_phases():
    (asked,) = [WorkloadRequest("r", (1, 2, 3, 4, 5), 4)]
    timed = serve(toy_llm(block_size=4, num_blocks=11).engine, [asked])
    assert [step.work.num_tokens for step in timed.steps] == [5, 1, 1, 1]
    assert [step.num_decodes for step in timed.steps] == [0, 1, 1, 1]
    assert [round(step.kv_use * 10) for step in timed.steps] == [2, 2, 2, 0]
    times = [step.end - step.start for step in timed.steps]
    assert timed.prefill_share == pytest.approx(times[0] / sum(times))
    assert timed.records[0].admitted_time == timed.steps[0].start
    assert timed.records[0].token_times == [step.end for step in timed.steps]


def test_a_request_that_fails_or_does_not_fit_stops_the_run():
    with pytest.raises(ValueError, match="request r1 failed: scores are NaN"):
        serve(toy_llm(fail_on=["r1"]).engine, requests(3))
    with pytest.raises(ValueError, match="has 5 tokens and wants 90 more"):
        serve(toy_llm(max_model_len=20).engine, [WorkloadRequest("r", (1,) * 5, 90)])


# -- what is asked, and the figures


def test_repeats_have_the_same_lengths_and_new_ids():
    one, two = (requests(20, prefix_len=5, repeat=repeat) for repeat in (0, 1))
    lengths = [[(len(r.prompt_token_ids), r.max_tokens) for r in asked] for asked in (one, two)]
    assert lengths[0] == lengths[1] and len(set(lengths[0])) > 5
    assert one == requests(20, prefix_len=5) and one != two
    assert {r.prompt_token_ids[:5] for r in one} == {one[0].prompt_token_ids[:5]}
    assert len({r.prompt_token_ids[5:7] for r in one}) == 20
    assert max(max(r.prompt_token_ids) for r in one) < 50
    assert requests(20, seed=1) != requests(20)


def test_the_figures_are_those_of_times_that_are_known():
    asked = [WorkloadRequest(f"r{i}", (1,) * 10, 3) for i in range(4)]
    times = [[1.0 + i, 2.0 + i, 5.0 + i] for i in range(4)]
    f = speed_figures(records_of(asked, times))
    assert f["duration_s"] == 8 and f["requests_per_s"] == 0.5
    assert f["input_tokens_per_s"] == 5 and f["output_tokens_per_s"] == 1.5
    assert f["ttft_p50_s"] == 2.5 and f["ttft_mean_s"] == 2.5
    assert f["tpot_p50_s"] == f["tpot_p99_s"] == 2
    assert f["latency_p50_s"] == 6.5
    with pytest.raises(AssertionError, match="tokens are missing"):
        records_of(asked, [t[:2] for t in times])


def test_preemptions_memory_and_hits_are_those_of_the_scheduler():
    llm = toy_llm(num_blocks=9, prefix_cache="hash")
    asked = requests(8, prefix_len=8)
    timed = serve(llm.engine, asked)
    figures, stats = engine_figures(timed), llm.engine.core.scheduler.stats
    assert figures["num_preemptions"] == stats.num_preemptions > 0
    assert 0.5 < figures["kv_use_max"] <= 1 and figures["num_blocks"] == 9
    assert figures["num_steps"] == len(llm.engine.core.executor.plans) - 1  # the last one forgets
    assert figures["hit_rate"] > 0.2


def test_the_middle_of_the_repeats_is_their_median():
    assert middle([{"a_s": 1.0}, {"a_s": 9.0}, {"a_s": 2.0}]) == {"a_s": 2.0}


def test_a_batch_is_judged_while_all_of_it_decodes():
    """Two requests, admitted one after the other: between 3 s and 7 s both decode."""
    times = [[1.0, 2.0, 3.0, 5.0, 7.0], [3.0, 5.0, 7.0, 8.0, 9.0]]
    records = [Record(WorkloadRequest("r", (1,), 5), 0.0, token_times=t) for t in times]
    f = latency_figures(records)
    assert f == {"ttft_s": 2, "per_token_s": 2, "latency_s": 9, "decode_tokens_per_s": 1}
    apart = [Record(WorkloadRequest("r", (1,), 2), 0.0, token_times=[t, t + 1]) for t in (1, 5)]
    assert latency_figures(apart)["per_token_s"] == 1
    assert "2.00 s" in latency_table({2: f})


# -- the commands


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> str:
    return random_llama(tmp_path_factory.mktemp("models"))


@pytest.mark.parametrize("kind", KINDS)
def test_every_benchmark_explains_itself(kind, capsys):
    with pytest.raises(SystemExit):
        main(["bench", kind, "--help"])
    out = capsys.readouterr().out
    assert f"usage: minivllm bench {kind}" in out and f"examples:\n  minivllm bench {kind}" in out


@pytest.mark.parametrize(
    "argv, figure, said",
    [
        (["offline", "--requests", "4", "--input-len", "9-20"], "output_tokens_per_s", "repeat 2"),
        (["latency", "--batch", "1,3", "--input-len", "9"], "per_token_s", "batch 3"),
    ],
)
def test_a_benchmark_prints_a_table_and_writes_a_record_and_a_picture(
    argv, figure, said, tiny, tmp_path, capsys
):
    record, picture = tmp_path / "record.json", tmp_path / "picture.svg"
    argv = ["bench", *argv, "-m", tiny, "--output-len", "5", "--repeats", "2"]
    assert main([*argv, "--json", str(record), "--picture", str(picture)]) == 0
    out, err = capsys.readouterr()
    assert said in err and "ready in" in err
    assert "TTFT" in out and max(map(len, out.splitlines())) <= 80
    found = json.loads(record.read_text(encoding="utf-8"))
    assert found["settings"]["model"] == tiny and found["settings"]["repeats"] == 2
    assert found["versions"].keys() >= {"python", "torch"} and found["date"][:2] == "20"
    assert found["machine"].keys() >= {"processor", "threads", "cores", "device", "dtype"}
    assert platform.node() not in json.dumps(found["machine"])
    figures = found["figures"] if figure in found["figures"] else found["figures"]["3"]
    assert figures[figure] > 0
    text = picture.read_text(encoding="utf-8")
    ElementTree.fromstring(text)
    assert PREFILL in text and DECODE in text and "Measured by minivllm bench" in text


def test_json_without_a_name_goes_to_stdout_and_the_table_nowhere(tiny, capsys):
    argv = ["bench", "offline", "-m", tiny, "--requests", "2", "--repeats", "1"]
    assert main([*argv, "--output-len", "2", "--input-len", "4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert offline_table(found["figures"]) and len(found["runs"]) == 1


def test_a_record_is_written_as_it_is_read(tmp_path):
    write_record(str(tmp_path / "a.json"), {"what": "é", "runs": {1: [0.5]}})
    text = (tmp_path / "a.json").read_text(encoding="utf-8")
    assert json.loads(text) == {"what": "é", "runs": {"1": [0.5]}}


@pytest.mark.parametrize(
    "argv, message",
    [
        (["offline", "--requests", "0"], "--requests must be at least 1"),
        (["offline", "--input-len", "9-3"], "'9-3' is no length"),
        (["offline", "--repeats", "0"], "--repeats must be at least 1, got 0"),
        (["offline", "--threads", "0"], "--threads must be at least 1, got 0"),
        (["offline", "--json", "/no/such/folder/a.json"], "'/no/such/folder', where the JSON"),
        (["offline", "--picture", "a.gif"], "a picture is an .svg or a .png file"),
        (["offline", "-m", "nothing-such"], "'nothing-such' is not known"),
        (["offline", "--backend", "abacus"], "--backend abacus is not supported"),
        (["latency", "--batch", "1,x"], "--batch must be numbers above 0"),
        (["latency", "--output-len", "1"], "--output-len at least 2"),
        (["ladder", "--static-batch", "0"], "--static-batch must be at least 1, got 0"),
        (["ladder", "-m", "nothing-such"], "'nothing-such' is not known"),
    ],
)
def test_what_cannot_be_measured_is_said_before_a_model_is_loaded(argv, message, capsys):
    assert main(["bench", *argv]) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1
