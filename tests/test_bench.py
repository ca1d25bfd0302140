"""The programs that measure: what they ask, how they count, what they write down."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import gpu_check
import pytest
from test_cli import toy_llm

from minivllm.bench import peer_engines, peers
from minivllm.bench.peer_workload import HEADLINES, TESTS, score, workload
from minivllm.sampling_params import SamplingParams


@pytest.mark.parametrize("test", TESTS)
def test_repeats_ask_for_the_same_lengths_and_for_new_ids(test):
    (one, shared), (two, _) = workload(test, 0), workload(test, 1)
    lengths = [[(len(prompt), num_new) for prompt, num_new in r] for r in (one, two)]
    assert lengths[0] == lengths[1] and one == workload(test, 0)[0] and one != two
    firsts = {tuple(prompt[:64]) for prompt, _ in one}
    assert len(firsts) == (1 if shared else len(one))
    assert all(prompt[:shared] == one[0][0][:shared] for prompt, _ in one)


def test_decode256_decodes_around_position_256():
    ((prompt, num_new),), _ = workload("decode256", 0)
    assert (len(prompt), num_new) == (192, 128)


@pytest.mark.parametrize("test", TESTS)
def test_steady_tokens_score_what_they_were_made_with(test):
    requests, _ = workload(test, 0)
    times = [[1 + 0.5 * i for i in range(num_new)] for _, num_new in requests]
    scores = score(test, requests, times, wall_s=100.0)
    num_in, num_out = (sum(len(p) for p, _ in requests), sum(n for _, n in requests))
    known = {
        "decode_tok_s": 2.0, "decode32_tok_s": 64.0, "prefill_tok_s": 1024.0, "wall_s": 100.0,
        "out_tok_s": num_out / 100, "total_tok_s": (num_in + num_out) / 100,
        "ttft_p50_s": 1.0, "ttft_mean_s": 1.0,
    }  # fmt: skip
    assert {key: scores[key] for key in HEADLINES[test]} == {k: known[k] for k in HEADLINES[test]}


def test_a_lost_token_is_noticed():
    with pytest.raises(AssertionError, match="tokens are missing"):
        score("decode", [([1], 3)], [[0.1, 0.2]], wall_s=1.0)


def test_our_engine_gives_a_moment_for_every_token():
    engine = object.__new__(peer_engines.Minivllm)
    engine.engine = toy_llm(num_blocks=9).engine  # so few that requests are preempted
    engine.make_params = greedy
    requests = [([i, i + 1, i + 2], 5 + i) for i in range(6)]
    for _ in range(2):
        times = engine.run(requests, shared=0)
        assert [len(t) for t in times] == [n for _, n in requests]
        assert all(t == sorted(t) for t in times)


def greedy(num_new):
    return SamplingParams(temperature=0, max_tokens=num_new, ignore_eos=True)


def test_the_engines_file_needs_nothing_but_the_standard_library():
    code = f"import runpy; assert runpy.run_path({peer_engines.__file__!r})['ENGINES']"
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True)


def test_engines_are_compared_side_by_side(tmp_path, monkeypatch, capsys):
    engine = tmp_path / "engine.py"  # an engine whose tokens take as long as it is told
    engine.write_text(
        "import json, sys\n"
        "pace = float(sys.argv[2])\n"
        "print(json.dumps({'load_s': 1, 'rss_mib': 10}), flush=True)\n"
        "for line in sys.stdin:\n"
        "    requests = json.loads(line)['requests']\n"
        "    times = [[pace * (i + 1) for i in range(n)] for _, n in requests]\n"
        "    print(json.dumps({'times': times, 'wall_s': 1, 'rss_mib': 20}), flush=True)\n",
        encoding="utf-8",
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(peers, "WORKER", engine)
    monkeypatch.setattr(peers, "wait_quiet", lambda: None)
    specs = [f"{name}={sys.executable}:hf:{pace}" for name, pace in (("a", 0.5), ("b", 0.25))]
    argv = ["peers", "--tests", "decode:2,batch32", "--repeats", "1", "--json", "out.json"]
    monkeypatch.setattr(sys, "argv", [*argv, "--peer", specs[0], "--peer", specs[1]])
    peers.main()
    record = json.loads(Path("out.json").read_text(encoding="utf-8"))
    assert [run["decode_tok_s"] for run in record["b"]["decode"]] == [4.0, 4.0]
    assert record["a"]["batch32"][0]["decode32_tok_s"] == 64.0
    assert record["a"]["peak_rss_mib"] == 20
    assert "decode_tok_s      4.00 (x2.00)" in capsys.readouterr().out


def test_a_gpu_record_names_the_card_and_what_failed(tmp_path):
    record = {
        "date": "2030-01-02T03:04:05+00:00",
        "machine": {"card": "NVIDIA H200", "driver": "1.2"},
        "tests": {"a::b": "passed", "a::c": "assert 1 == 2"},
        "decode": {"decode_tok_s": 123.456},
    }
    page = gpu_check.write_record(record, tmp_path / "benchmarks")
    assert page.name == "gpu-2030-01-02-nvidia-h200.md"
    text = page.read_text(encoding="utf-8")
    assert "1 of 2 tests passed" in text and "- a::c: assert 1 == 2" in text and "123.5" in text
    assert json.loads(page.with_suffix(".json").read_text(encoding="utf-8")) == record


def test_a_test_that_did_not_pass_is_told_by_its_first_line():
    report = io.StringIO(
        '<s><testcase name="a"/><testcase name="b"><failure message="no&#10;way"/></testcase>'
        '<testcase name="c"><skipped message="no GPU"/></testcase></s>'
    )
    cases = ElementTree.parse(report).iter("testcase")
    assert [gpu_check.outcome(c) for c in cases] == ["passed", "no", "no GPU"]
