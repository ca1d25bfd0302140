"""The course's own models, `tiny` and `small`: by name, offline, with nothing but Python."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from minivllm import LLM, SamplingParams
from minivllm.checkpoint.registry import BUNDLED, bundled_path, pull, resolve
from minivllm.tokenizer.bpe_file import load_bpe

ROOT = Path(__file__).parents[1]
MOST_BYTES = {"tiny": 600_000, "small": 8_000_000}
PARAMETERS = {"tiny": range(240_000, 280_000), "small": range(2_000_000, 4_000_001)}
GREEDY = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
OPENINGS = ["Once upon a time", "Tom and his dog went to the beach.", "The little bear"]


@pytest.mark.parametrize("name", BUNDLED)
def test_a_bundled_name_is_a_folder_of_this_package_and_is_never_pulled(name, monkeypatch):
    monkeypatch.setattr("minivllm.checkpoint.registry.download_wheel", None)
    assert resolve(name) == pull(name, fetch=None) == bundled_path(name)
    assert Path(bundled_path(name)).parent == ROOT / "minivllm/checkpoint/bundled"


@pytest.mark.parametrize("name", BUNDLED)
def test_a_bundled_model_is_as_small_as_promised(name):
    torch = pytest.importorskip("torch")
    from safetensors import safe_open

    folder = Path(bundled_path(name))
    assert sum(file.stat().st_size for file in folder.iterdir()) <= MOST_BYTES[name]
    with safe_open(folder / "model.safetensors", "pt") as file:
        tensors = [file.get_tensor(key) for key in file.keys()]  # noqa: SIM118
    assert sum(t.numel() for t in tensors) in PARAMETERS[name]
    assert all(t.dtype == torch.bfloat16 and t.isfinite().all() for t in tensors)


def test_the_two_share_one_vocabulary():
    tiny, small = (Path(bundled_path(name)) for name in ("tiny", "small"))
    for file in ("tokenizer.json", "tokenizer_config.json"):
        assert (tiny / file).read_bytes() == (small / file).read_bytes()
    assert len(load_bpe(tiny).ids) + len(load_bpe(tiny).added) == 1024


@pytest.mark.parametrize("name", BUNDLED)
def test_transformers_reads_a_bundled_model_and_writes_the_same(name):
    transformers = pytest.importorskip("transformers")
    import torch

    folder = bundled_path(name)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    llm = LLM(name, dtype="float32", device="cpu")
    for out in llm.generate(OPENINGS, GREEDY):
        ids = tokenizer(out.prompt, return_tensors="pt").input_ids
        assert ids[0].tolist() == list(out.prompt_token_ids)
        written = theirs.generate(ids, do_sample=False, max_new_tokens=40, eos_token_id=-1)
        assert written[0, ids.shape[1] :].tolist() == list(out.outputs[0].token_ids)


def test_plain_python_writes_the_story_that_torch_writes():
    plain = LLM("tiny", executor="plain").generate(OPENINGS, GREEDY)
    ours = LLM("tiny", executor="uniproc", dtype="float32", device="cpu")
    for a, b in zip(plain, ours.generate(OPENINGS, GREEDY)):
        assert a.outputs[0].text == b.outputs[0].text


NOTHING_BUT_PYTHON = """
import sys
for name in ("torch", "numpy", "tokenizers", "jinja2", "regex"): sys.modules[name] = None
from minivllm import LLM, SamplingParams
(out,) = LLM("tiny").generate("Once upon a time", SamplingParams(temperature=0, max_tokens=80))
print(out.prompt + out.outputs[0].text)
"""


def test_a_story_is_written_where_there_is_nothing_but_python():
    done = subprocess.run(
        [sys.executable, "-X", "utf8", "-c", NOTHING_BUT_PYTHON],
        capture_output=True, text=True, encoding="utf-8", cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    story = done.stdout.strip()
    assert story.startswith("Once upon a time there was") and story.count(".") >= 3
    assert len(set(story.lower().split())) > 12


@pytest.mark.parametrize("name", BUNDLED)
def test_the_config_says_where_a_story_ends_and_how_long_one_may_be(name):
    config = json.loads(Path(bundled_path(name), "config.json").read_text())
    assert config["eos_token_id"] == 1023 and config["max_position_embeddings"] == 512
    (out,) = LLM(name, device="cpu").generate("Once", SamplingParams(seed=1, max_tokens=300))
    assert out.outputs[0].finish_reason == "stop"


def test_an_executor_that_does_not_exist_is_named_beside_those_that_do():
    with pytest.raises(ValueError, match=r"executor='fast' is not there .*auto, uniproc, plain"):
        LLM("tiny", executor="fast")
