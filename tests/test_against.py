"""This engine beside another: who is asked, in which turn, and what it is given to read."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest
import torch
from tiny_models import as_gguf, oracle, random_llama, random_model
from transformers import AutoModelForCausalLM

from minivllm.__main__ import main
from minivllm.bench import against, peers
from minivllm.bench.against import (
    Comparison,
    check_peer,
    comparison_table,
    peer_spec,
    readable,
)
from minivllm.bench.arrivals import fixed
from minivllm.bench.offline import offline_requests, speed_figures
from minivllm.bench.peer_checkpoint import write_checkpoint
from minivllm.bench.peers import PeerSpec, Rules

# Its tokens come `pace` seconds apart; it writes down what it was asked.
FAKE = """
import json, sys
pace, log = float(sys.argv[2]), open(sys.argv[4].partition("=")[2], "a")
print(json.dumps({"load_s": 1, "rss_mib": 10}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    log.write(f"{pace} {len(asked['requests'])} {asked['shared']}\\n")
    log.flush()
    times = [[pace * (i + 1) for i in range(n)] for _, n in asked["requests"]]
    print(json.dumps({"times": times, "wall_s": 1, "rss_mib": 20}), flush=True)
"""


@pytest.fixture
def fakes(tmp_path, monkeypatch) -> list[PeerSpec]:
    """Two engines that only say how long they took: 0.5 and 0.25 seconds a token."""
    engine = tmp_path / "engine.py"
    engine.write_text(FAKE, encoding="utf-8")
    monkeypatch.setattr(peers, "WORKER", engine)
    monkeypatch.setattr(peers, "wait_quiet", lambda: None)
    log = {"log": tmp_path / "log"}
    return [
        PeerSpec(name, sys.executable, "hf", pace, log)
        for name, pace in (("ours", "0.5"), ("theirs", "0.25"))
    ]


def make_requests(repeat: int):
    return offline_requests(
        3, fixed(5), fixed(4), vocab_size=50, prefix_len=2, repeat=max(0, repeat)
    )


def test_both_engines_take_turns_on_the_same_requests_and_ratios_are_ours_over_theirs(fakes):
    told = []
    with Comparison(fakes, 1, Rules(foreign=1e9)) as comparison:
        runs = comparison.ask(
            make_requests, 2, speed_figures, 2, lambda name, repeat, _: told.append((name, repeat))
        )
        about = comparison.about()
    paces = [line.split() for line in fakes[0].options["log"].read_text().splitlines()]
    assert [p for p, _, _ in paces] == ["0.25", "0.5", "0.5", "0.25", "0.25", "0.5"]  # 2 warm up
    assert {(num, shared) for _, num, shared in paces} == {("3", "2")}
    assert told == [("ours", 0), ("theirs", 0), ("theirs", 1), ("ours", 1)]
    assert [run["tpot_p50_s"] for run in runs["ours"]] == [0.5, 0.5]
    lines = comparison_table(runs).splitlines()
    assert lines[0].split() == ["ours", "theirs", "ratio"]
    (rate,) = [line.split() for line in lines if line.startswith("output_tokens_per_s")]
    assert rate[1:] == ["6.0", "12.0", "0.50"] and max(map(len, lines)) <= 80
    assert about["theirs"]["peak_rss_mib"] == 20 and about["ours"]["load_s"] == 1
    assert all(peer.process.returncode == 0 for peer in comparison.peers)


def test_an_engine_that_dies_is_told_by_its_last_words_and_the_other_ends_too(fakes):
    broken = replace(fakes[1], model="fast")
    comparison = Comparison([fakes[0], broken], 1, Rules())
    with (
        pytest.raises(ValueError, match="theirs died: ValueError: could not convert string"),
        comparison,
    ):
        pass
    assert comparison.peers[0].process.returncode == 0


def test_a_peer_that_cannot_be_had_is_refused_with_what_to_change(monkeypatch):
    monkeypatch.setitem(against.PEERS, "vllm", ("vllm", "no_such_package"))
    monkeypatch.setitem(against.PEERS, "llamacpp", ("llamacpp", "json"))
    with pytest.raises(ValueError, match=r"no package no_such_package: .* --peer-python"):
        check_peer("vllm", sys.executable, "folder")
    with pytest.raises(ValueError, match="--peer-python /no/python does not run"):
        check_peer("transformers", "/no/python", "folder")
    with pytest.raises(
        ValueError, match=r"llamacpp reads \.gguf files, not folder: .*--peer-model"
    ):
        check_peer("llamacpp", sys.executable, "folder")
    check_peer("llamacpp", sys.executable, "a.gguf")


def test_a_peer_has_room_for_what_it_will_be_asked():
    sizes = {"dtype": "float32", "batch_size": 7, "max_model_len": 99}
    options = {name: dict(peer_spec(name, "p", "m", **sizes).options) for name in against.PEERS}
    assert options == {
        "llamacpp": {"slots": 7, "max_model_len": 99},
        "vllm": {"dtype": "float32", "max_num_seqs": 7, "max_model_len": 99},
        "transformers": {"dtype": "float32", "batch": 7},
    }


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gguf_file_written_anew_is_the_same_model_to_others(tied, dtype, tmp_path):
    folder = random_llama(tmp_path, tie_word_embeddings=tied)
    gguf = as_gguf(folder, tmp_path / "model.gguf")
    write_checkpoint(gguf, tmp_path, dtype)
    ours = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype).eval()
    theirs = oracle(folder, dtype)
    ids = torch.arange(20)[None] * 13 % 331
    with torch.no_grad():
        assert torch.equal(ours(ids).logits, theirs(ids).logits)


def test_only_who_cannot_read_a_gguf_file_is_given_a_folder(tmp_path):
    gguf = as_gguf(random_llama(tmp_path), tmp_path / "model.gguf")
    spec = PeerSpec("a", "python", "hf", gguf, {"dtype": "bfloat16"})
    given = readable(spec, str(tmp_path))
    assert given == replace(spec, model=str(tmp_path / "checkpoint"))
    assert AutoModelForCausalLM.from_pretrained(given.model).dtype == torch.bfloat16
    for kept in (replace(spec, engine="llamacpp"), replace(spec, model="folder")):
        assert readable(kept, str(tmp_path)) == kept


def test_what_is_no_plain_llama_is_not_written_anew(tmp_path):
    gguf = as_gguf(random_model(tmp_path, "qwen3"), tmp_path / "model.gguf")
    with pytest.raises(ValueError, match=r"another engine \(qwen3, float32\): .* --peer-model"):
        write_checkpoint(gguf, tmp_path, torch.float32)


@pytest.mark.slow
def test_the_command_measures_both_engines(tmp_path, monkeypatch, capsys):
    """The real engines, in processes of their own."""
    monkeypatch.setattr(peers, "wait_quiet", lambda: None)
    model, record = random_llama(tmp_path), tmp_path / "record.json"
    argv = ["bench", "latency", "-m", model, "--batch", "2", "--input-len", "9", "--repeats", "1"]
    more = ["--output-len", "4", "--dtype", "float32", "--against", "transformers"]
    assert main([*argv, *more, "--json", str(record)]) == 0
    out = capsys.readouterr().out
    assert "minivllm in float32, transformers in float32" in out and "per_token_s" in out
    found = json.loads(record.read_text(encoding="utf-8"))
    assert found["engines"]["transformers"]["options"]["batch"] == 2
    assert len(found["runs"]["2"]["minivllm"]) == len(found["runs"]["2"]["transformers"]) == 1
    assert main([*argv, *more, "--picture", str(tmp_path / "a.svg")]) == 2
    assert "--picture draws this engine alone" in capsys.readouterr().err
