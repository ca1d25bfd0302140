"""The ladder: every rung is the engine, says the same, and is told as it was."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree

import pytest
import torch
from tiny_models import oracle, random_llama

from minivllm.__main__ import main
from minivllm.bench.arrivals import uniform
from minivllm.bench.hardware import Hardware
from minivllm.bench.ladder import (
    FUSED,
    NAIVE,
    Ladder,
    RungResult,
    base_config,
    measured_gains,
    parted_texts,
    roofline_gains,
    rungs,
)
from minivllm.bench.ladder_report import RungRow, draw_ladder, ladder_table
from minivllm.bench.offline import engine_figures, offline_requests
from minivllm.bench.peaks import measured_peaks, quickest
from minivllm.bench.plot import DECODE, PREFILL, save
from minivllm.commands import bench_ladder

NUM_REQUESTS, BATCH = 5, 2
PEAKS = {
    dtype: Hardware("x", 0.0, 4e9, {bits: 1e9 * flops}, 0.0, 1.0, "", "")
    for dtype, bits, flops in ((torch.float32, 32, 20), (torch.bfloat16, 16, 80))
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> str:
    return random_llama(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def ladder(tiny) -> Ladder:
    """All rungs, run once."""
    base = base_config(
        tiny, device="cpu", batch_size=BATCH, max_model_len=64, max_num_batched_tokens=48
    )
    ladder = Ladder(base, rungs(BATCH, NUM_REQUESTS))
    ladder.load()
    requests = offline_requests(
        NUM_REQUESTS, uniform(3, 9), uniform(3, 8), vocab_size=331, prefix_len=20
    )
    for result in ladder.results:
        assert ladder.run(result, requests, lambda num_done, num: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("minivllm.bench.ladder.measured_peaks", lambda dtype, *unused: PEAKS[dtype])
        assert ladder.predict() == {
            "float32": PEAKS[torch.float32],
            "bfloat16": PEAKS[torch.bfloat16],
        }
    ladder.compare_texts()
    return ladder


def rung(ladder: Ladder, name: str) -> RungResult:
    return next(result for result in ladder.results if result.rung.name == name)


def test_a_rung_differs_from_the_one_below_by_its_own_settings_alone(ladder):
    for below, above in pairwise(ladder.results):
        assert replace(below.config, **above.rung.settings) == above.config
    assert [result.config.max_num_seqs for result in ladder.results[:4]] == [1, 1, 2, 5]
    assert {result.config.num_blocks for result in ladder.results} == {1 + BATCH * 4}
    assert {result.runs[0].num_blocks for result in ladder.results} == {1 + BATCH * 4}
    assert FUSED not in [rung.name for rung in rungs(BATCH, NUM_REQUESTS, "cuda")]


def test_every_rung_says_what_the_lowest_says_or_parts_at_a_tie(ladder):
    lowest = rung(ladder, NAIVE)
    for result in ladder.results:
        if result.config.dtype == "float32":
            assert all(gap < 1e-2 for _, _, gap in result.parted)
            num_same = sum(a == b for a, b in zip(result.runs[0].outputs, lowest.runs[0].outputs))
            assert num_same == NUM_REQUESTS - len(result.parted)


def test_each_idea_is_seen_in_the_steps(ladder):
    most = {r.rung.name: max(s.work.num_requests for s in r.runs[0].steps) for r in ladder.results}
    assert most[NAIVE] == most["KV cache"] == 1 and most["static batch"] == BATCH
    assert most["paged, continuous"] > BATCH
    cached, before = rung(ladder, "prefix cache"), rung(ladder, "paged, continuous")
    assert engine_figures(cached.runs[0])["hit_rate"] > 0.3
    assert engine_figures(before.runs[0])["hit_rate"] == 0
    num_tokens = {r.rung.name: sum(s.work.num_tokens for s in r.runs[0].steps)
                  for r in ladder.results}  # fmt: skip
    assert num_tokens[NAIVE] > num_tokens["KV cache"] == num_tokens["static batch"]
    assert num_tokens["prefix cache"] < num_tokens["KV cache"]


def test_nobody_joins_a_static_batch_and_somebody_a_continuous_one(ladder):
    def joins_late(name: str) -> list[bool]:
        records = rung(ladder, name).runs[0].records
        ends = [max(r.token_times[-1] for r in records[i : i + BATCH]) for i in (0, 2)]
        return [records[i].admitted_time >= ends[i // BATCH - 1] for i in (2, 3, 4)]

    assert all(joins_late("static batch")) and not all(joins_late("paged, continuous"))


def test_the_roofline_predicts_from_the_steps_and_sees_nothing_in_fusing(ladder):
    gains = dict(zip([r.rung.name for r in ladder.results], roofline_gains(ladder.results)))
    assert gains[NAIVE] is None and gains["KV cache"] > 1.5 and gains["prefix cache"] > 1.1
    assert gains[FUSED] == pytest.approx(1, rel=0.2)  # its steps are the same, its cost too
    assert 2 <= gains["bfloat16"] <= 4  # half the bytes, a quarter of the time for products
    # By hand: one request, one step, as many bytes as weights and KV, as many products as weights.
    peaks, result = PEAKS[torch.float32], rung(ladder, "KV cache")
    params = dict(oracle(result.config.model).named_parameters())
    num_head = params["lm_head.weight"].numel()
    num_layers = sum(p.numel() for n, p in params.items() if "layers" in n or "model.norm" in n)
    wanted = 0.0
    for step in result.runs[-1].steps:
        work = step.work
        num_flops = 2 * num_layers * work.num_tokens + 2 * num_head * work.num_sampled
        num_flops += 4 * 2 * 60 * work.num_attended  # layers, heads x head_dim
        num_bytes = 4 * (num_layers + num_head * (work.num_sampled > 0))
        num_bytes += 4 * 2 * 2 * 20 * (work.num_kv_read + work.num_tokens)
        wanted += max(num_flops / peaks.flops_per_s[32], num_bytes / peaks.memory_bytes_per_s)
    assert result.roofline_s == pytest.approx(wanted, rel=0.01)


def test_where_texts_part_the_gap_is_the_models_own(ladder):
    lowest, other = rung(ladder, NAIVE).runs[0], rung(ladder, "KV cache").runs[0]
    first = list(other.outputs[3])
    first[2] = (first[2] + 7) % 331
    planted = replace(other, outputs=[*lowest.outputs[:3], tuple(first), lowest.outputs[4]])
    engine = ladder.engine(ladder.results[0].config)
    ((request, place, gap),) = parted_texts(engine, lowest, planted)
    assert (request, place) == (3, 2)
    prompt = lowest.records[3].request.prompt_token_ids
    ids = torch.tensor([[*prompt, *lowest.outputs[3][:2]]])
    with torch.no_grad():
        logprobs = oracle(ladder.results[0].config.model)(ids).logits[0, -1].log_softmax(-1)
    wanted = float(logprobs.max() - logprobs[first[2]])
    assert wanted > 0.1 and gap == pytest.approx(wanted, abs=1e-3)
    engine.core.scheduler.check()


def test_a_rung_that_takes_long_is_run_once_and_gains_are_medians_of_ratios(ladder, monkeypatch):
    monkeypatch.setattr("minivllm.bench.ladder.LONG_S", 0.0)
    result = ladder.results[-1]
    assert not ladder.run(result, [], lambda num_done, num: None) and len(result.runs) == 1

    class Run:
        def __init__(self, wall_s):
            self.wall_s = wall_s

    def ran(*walls):
        return RungResult(result.rung, result.config, [Run(wall_s) for wall_s in walls])

    slow, quick, quicker = ran(100.0), ran(10.0, 30.0, 20.0), ran(5.0, 5.0, 5.0)
    assert measured_gains([slow, quick, quicker]) == [None, 5.0, 4.0]


def test_the_quickest_of_the_calls_counts(monkeypatch):
    clock = iter([0.0, 0.0, 3.0, 3.0, 4.0, 4.0, 4.0, 9.0, 9.0])  # calls of 3, 1 and 5 seconds
    monkeypatch.setattr("minivllm.bench.peaks.time.perf_counter", lambda: next(clock))
    assert quickest(lambda: None, 5.0) == 1.0


def test_peaks_are_work_over_the_time_that_it_took(monkeypatch):
    called = []

    def took(call, seconds):
        called.append(call())
        return (0.5, 0.25)[len(called) - 1]

    monkeypatch.setattr("minivllm.bench.peaks.quickest", took)
    peak = measured_peaks(torch.bfloat16, torch.device("cpu"), 8_000_000)
    assert peak.flops_per_s == {16: 2 * 512 * 1024 * 4096 / 0.5}
    assert peak.memory_bytes_per_s == 8_000_000 / 0.25
    assert called == [1024.0, 2_000_000.0]  # a product of ones, and a sum of them


# -- what is told of it

ROW = RungRow(
    name="KV cache", what="each token is computed once", dtype="float32", tokens_per_s=31.5,
    seconds=10.0, seconds_of_runs=(10.0,), prefill_share=0.25, gain=3.1, roofline_s=5.0,
    roofline_gain=9.0, num_requests=16, num_same=16, parted=(), ttft_p50_s=1.0,
    num_preemptions=0, hit_rate=0.0,
)  # fmt: skip
LOWEST = replace(ROW, name="naive", gain=None, roofline_gain=None)
LOSER = replace(ROW, name="static batch", gain=0.8)


def test_a_rung_that_loses_is_shown_as_such(tmp_path):
    rows = [LOWEST, ROW, LOSER]
    (line,) = [x for x in ladder_table(rows).splitlines() if x.startswith("static batch  ")]
    assert line.endswith("SLOWER") and "x0.80" in line and "x9.00" in line and "50%" in line
    assert ladder_table([LOWEST, ROW]).count("SLOWER") == 0
    path = tmp_path / "ladder.svg"
    save(str(path), draw_ladder(rows), title="a", caption="b")
    words = [e.text for e in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")]
    assert words.count("slower") == 1 and {"x3.10", "x0.80", "naive", "prefill"} <= set(words)
    text = path.read_text(encoding="utf-8")
    assert text.count(f"fill: {PREFILL}") == text.count(f"fill: {DECODE}") >= 3


def test_texts_that_differ_for_no_good_reason_are_called_wrong():
    tie = replace(ROW, num_same=15, parted=((3, 2, 1e-5),))
    fault = replace(ROW, num_same=15, parted=((3, 2, 1e-5), (4, 0, 0.5)))
    assert not tie.is_wrong and fault.is_wrong and not replace(fault, dtype="bfloat16").is_wrong
    assert "WRONG: KV cache: 2 of 16 texts part" in ladder_table([fault])
    assert "15/16" in ladder_table([tie]) and "WRONG" not in ladder_table([tie])


SMALL = [
    "--requests", "3", "--prefix-len", "18", "--input-len", "3", "--output-len", "2-4",
    "--max-model-len", "48", "--static-batch", "2", "--repeats", "1",
]  # fmt: skip


def test_the_command_climbs_all_rungs_and_writes_them_down(tiny, tmp_path, capsys):
    record, picture = tmp_path / "ladder.json", tmp_path / "ladder.png"
    files = ["--json", str(record), "--picture", str(picture)]
    assert main(["bench", "ladder", "-m", tiny, *SMALL, *files]) == 0
    out, err = capsys.readouterr()
    assert "GFLOP/s" in out and max(map(len, out.splitlines())) <= 80
    found = json.loads(record.read_text(encoding="utf-8"))
    names = [rung["name"] for rung in found["rungs"]]
    assert names[0] == NAIVE and names[-1] == "bfloat16" and len(names) == 7
    assert all(name in out and f"{name}:" in err for name in names)
    assert all(rung["tokens_per_s"] > 0 and rung["gain"] != 0 for rung in found["rungs"])
    assert found["peaks"].keys() == {"float32", "bfloat16"}
    assert found["settings"]["requests"] == 3 and "torch" in found["versions"]
    assert picture.read_bytes()[:4] == b"\x89PNG"
    assert not any(math.isnan(rung["roofline_s"]) for rung in found["rungs"])


def test_a_wrong_text_is_an_exit_status(ladder, monkeypatch, capsys):
    """The rungs that were climbed already, and a text planted."""
    result = ladder.results[3]
    monkeypatch.setattr(bench_ladder, "make_ladder", lambda args: (ladder, "cpu"))
    monkeypatch.setattr(bench_ladder, "climb", lambda *unused: None)
    monkeypatch.setattr(ladder, "predict", lambda: {"float32": PEAKS[torch.float32]})
    monkeypatch.setattr(ladder, "compare_texts", lambda: None)
    for gap, status in ((1e-5, 0), (0.7, 1)):
        monkeypatch.setattr(result, "parted", [(0, 0, gap)])
        assert main(["bench", "ladder", "-m", "any", *SMALL]) == status
        assert ("WRONG: paged, continuous" in capsys.readouterr().out) == bool(status)
