"""Names of the Hugging Face Hub: found in its cache, downloaded by its library, or refused."""

from __future__ import annotations

import sys
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub.utils import filter_repo_objects
from tiny_models import random_llama

from minivllm import LLM, SamplingParams
from minivllm.checkpoint.hub import is_hub_name
from minivllm.checkpoint.registry import resolve


@pytest.fixture
def hub_cache(tmp_path, monkeypatch) -> Path:
    """An empty cache of huggingface_hub's, which is offline in every test."""
    assert huggingface_hub.constants.HF_HUB_OFFLINE
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def put_into(cache: Path, name: str, files: dict[str, bytes]) -> Path:
    """What a download of this checkpoint leaves in the cache."""
    folder = cache / ("models--" + name.replace("/", "--"))
    snapshot = folder / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("a" * 40)
    for file, content in files.items():
        (snapshot / file).write_bytes(content)
    return snapshot


def test_a_name_of_the_hub_is_served_from_its_cache(hub_cache, tmp_path):
    source = Path(random_llama(tmp_path))
    snapshot = put_into(hub_cache, "ada/tiny", {f.name: f.read_bytes() for f in source.iterdir()})
    assert resolve("ada/tiny") == str(snapshot)
    params = SamplingParams(temperature=0, max_tokens=5)
    (named,) = LLM("ada/tiny", dtype="float32").generate([[5, 17, 330]], params)
    (direct,) = LLM(str(source), dtype="float32").generate([[5, 17, 330]], params)
    assert named.outputs[0].token_ids == direct.outputs[0].token_ids


def test_a_name_that_cannot_be_had_is_an_error_with_the_librarys_own_words(hub_cache):
    with pytest.raises(ValueError, match=r"'ada/tiny' is no path here, and huggingface_hub") as e:
        resolve("ada/tiny")
    assert "the name may be wrong, or the network absent" in str(e.value)
    assert "HF_HUB_OFFLINE" in str(e.value)
    with pytest.raises(ValueError, match=r"'ada/a--b' is no path here.*--"):
        resolve("ada/a--b")


def test_a_checkpoint_without_config_json_is_refused(hub_cache):
    put_into(hub_cache, "ada/quantized", {"README.md": b"only GGUF files here"})
    with pytest.raises(ValueError, match=r"ada/quantized is not a .* no config\.json"):
        resolve("ada/quantized")


def test_a_path_wins_over_a_name(hub_cache, tmp_path, monkeypatch):
    put_into(hub_cache, "ada/tiny", {"config.json": b"{}"})
    (tmp_path / "ada" / "tiny").mkdir(parents=True)
    (tmp_path / "ada" / "tiny" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert resolve("ada/tiny") == "ada/tiny"


def test_without_the_library_the_error_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ValueError, match="needs the package huggingface_hub"):
        resolve("ada/tiny")


def test_only_what_a_checkpoint_is_read_from_is_downloaded(monkeypatch, tmp_path):
    """Mistral's repositories hold all weights twice, Llama's in a folder of their own."""
    asked = {}

    def download(name, **patterns):
        asked.update(patterns, name=name)
        (tmp_path / "config.json").write_text("{}")
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert resolve("ada/tiny") == str(tmp_path)
    assert asked.pop("name") == "ada/tiny"
    wanted = ["config.json", "model-00001-of-00002.safetensors", "chat_template.jinja"]
    unwanted = ["consolidated.safetensors", "original/params.json", "model.onnx", "model.gguf"]
    assert list(filter_repo_objects(wanted + unwanted, **asked)) == wanted


@pytest.mark.parametrize("name", ["ada/tiny", "Qwen/Qwen2.5-0.5B-Instruct", "a_b/c.d"])
def test_what_may_be_a_name_of_the_hub(name):
    assert is_hub_name(name)


@pytest.mark.parametrize(
    "name", ["tiny", "./ada/tiny", "/ada/tiny", "~/tiny", "a/b/c", "ada/", "../tiny", "ada/t y", ""]
)
def test_what_can_only_be_a_path(name):
    assert not is_hub_name(name)
