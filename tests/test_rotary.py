"""RoPE's angles against transformers and the papers' formulas, as far as position 20,000."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch
import transformers
from tiny_models import llama3_divisor
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from minivllm.checkpoint.model_config import ModelConfig, RopeScaling, read_model_config
from minivllm.layers.rotary import RotaryTable, frequencies

NUM_POSITIONS = 20_001
HEAD_DIM = 64
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
ORIGINAL = {"original_max_position_embeddings": 4096}
# By name: positions that config.json says, and its rope_scaling.
SCALINGS = {
    "none": (32768, {"rope_type": "default"}),
    "linear": (8192, {"rope_type": "linear", "factor": 4.0}),
    "linear, old spelling": (8192, {"type": "linear", "factor": 2.5}),
    "dynamic": (8192, {"rope_type": "dynamic", "factor": 4.0}),
    "dynamic, old spelling": (16384, {"type": "dynamic", "factor": 1.5}),
    "llama3": (131072, {"rope_type": "llama3", "factor": 8.0, **LLAMA3, **ORIGINAL}),
    "llama3 of 3.2": (131072, {"rope_type": "llama3", "factor": 32.0, **LLAMA3, **ORIGINAL}),
    "llama3, borders of its own": (
        32768,
        {"rope_type": "llama3", "factor": 3.0, "low_freq_factor": 2.0, "high_freq_factor": 9.0},
    ),
    "yarn": (32768, {"rope_type": "yarn", "factor": 8.0, **ORIGINAL}),
    "yarn, old spelling": (32768, {"type": "yarn", "factor": 8.0, **ORIGINAL, "finetuned": True}),
    "yarn, both spellings": (4096, {"type": "linear", "rope_type": "yarn", "factor": 8.0}),
    "yarn, attention factor": (
        32768, {"rope_type": "yarn", "factor": 8.0, **ORIGINAL, "attention_factor": 1.7},
    ),
    "yarn, two scales": (
        32768,
        {"rope_type": "yarn", "factor": 8.0, **ORIGINAL, "mscale": 0.7, "mscale_all_dim": 1.3},
    ),
    "yarn, borders of its own": (
        32768, {"rope_type": "yarn", "factor": 8.0, **ORIGINAL, "beta_fast": 16, "beta_slow": 2},
    ),
    "yarn, broken borders": (
        32768, {"rope_type": "yarn", "factor": 8.0, **ORIGINAL, "truncate": False},
    ),
    "yarn, one border": (
        32768, {"rope_type": "yarn", "factor": 8.0, **ORIGINAL, "beta_fast": 1, "beta_slow": 1,
                "truncate": False},
    ),
    "yarn, factor of lengths": (32768, {"rope_type": "yarn", "factor": None, **ORIGINAL}),
}  # fmt: skip


def config_json(folder, max_positions: int, scaling: dict, **outside) -> str:
    settings = {
        "model_type": "llama", "vocab_size": 331, "hidden_size": 2 * HEAD_DIM,
        "intermediate_size": 40, "num_hidden_layers": 1, "num_attention_heads": 2,
        "max_position_embeddings": max_positions, "rope_theta": 5e5, "rope_scaling": scaling,
        **outside,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(settings))
    return str(folder)


def theirs(folder: str, num_seen: int) -> tuple[torch.Tensor, torch.Tensor]:
    """transformers' cosines and sines, each [positions, head_dim], when it has seen a sequence of
    num_seen tokens."""
    rotary = LlamaRotaryEmbedding(transformers.AutoConfig.from_pretrained(folder))
    cos, sin = rotary(torch.zeros(1), torch.arange(num_seen)[None])
    return cos[0, :NUM_POSITIONS], sin[0, :NUM_POSITIONS]


@pytest.mark.parametrize("name", SCALINGS)
def test_k14_angles_are_those_of_transformers_at_every_position(tmp_path, name):
    """The frequencies are the same bits, so no error grows with the position: 2 roundings of a
    number near 1, and of the factor on it, are all."""
    max_positions, scaling = SCALINGS[name]
    folder = config_json(tmp_path, max_positions, scaling)
    config = read_model_config(folder)
    assert config.max_position_embeddings >= NUM_POSITIONS
    table = RotaryTable(config, dtype=torch.float32, device="cpu")
    cos, sin = theirs(folder, config.max_position_embeddings)
    ours = table.look_up(torch.arange(NUM_POSITIONS))
    sign = torch.cat((-torch.ones(HEAD_DIM // 2), torch.ones(HEAD_DIM // 2)))
    for got, want in zip(ours, (cos, sin * sign), strict=True):
        assert got.shape == (NUM_POSITIONS, 1, HEAD_DIM)
        assert (got[:, 0] - want).abs().max() <= 3 * torch.finfo(torch.float32).eps


@pytest.mark.parametrize("kind", ["llama3", "yarn"])
def test_an_original_length_outside_the_scaling_wins_as_in_transformers(tmp_path, kind):
    inside = {**SCALINGS[kind][1], "original_max_position_embeddings": 1024}
    folder = config_json(tmp_path, 32768, inside, original_max_position_embeddings=4096)
    config = read_model_config(folder)
    assert config.rope_scaling.original_max_position_embeddings == 4096
    judge = LlamaRotaryEmbedding(transformers.AutoConfig.from_pretrained(folder))
    assert torch.equal(frequencies(config), judge.inv_freq)


def by_the_papers(config: ModelConfig) -> list[float]:
    """Every pair's frequency in Python's own numbers, told by turns and not by wavelength."""
    scaling, half = config.rope_scaling, config.head_dim // 2
    found = []
    for pair in range(half):
        plain = config.rope_theta ** (-pair / half)
        if scaling is None:
            found.append(plain)
            continue
        turns = scaling.original_max_position_embeddings * plain / (2 * math.pi)
        if scaling.kind == "linear":
            found.append(plain / scaling.factor)
        elif scaling.kind == "dynamic":
            # The slowest pair is to turn, over all positions, as far as it did in training.
            longest = scaling.factor * scaling.factor - (scaling.factor - 1)
            found.append(plain * longest ** (-pair / (half - 1)))
        elif scaling.kind == "llama3":
            low, high = scaling.low_freq_factor, scaling.high_freq_factor
            share = min(max((turns - low) / (high - low), 0), 1)
            found.append(plain * (share + (1 - share) / scaling.factor))
        else:

            def border(times, scaling=scaling):
                length = scaling.original_max_position_embeddings
                return half * math.log(length / (2 * math.pi * times), config.rope_theta)

            first, last = border(scaling.beta_fast), border(scaling.beta_slow)
            if scaling.truncate:
                first, last = math.floor(first), math.ceil(last)
            share = 1 - min(max((pair - first) / max(last - first, 1e-3), 0), 1)
            found.append(plain * (share + (1 - share) / scaling.factor))
    return found


@pytest.mark.parametrize("name", SCALINGS)
def test_frequencies_are_those_of_the_papers(tmp_path, name):
    config = read_model_config(config_json(tmp_path, *SCALINGS[name]))
    want = torch.tensor(by_the_papers(config), dtype=torch.float64)
    # A power, a quotient and a mixture, each rounded to float32.
    torch.testing.assert_close(frequencies(config).double(), want, rtol=1e-6, atol=0)


def test_a_fast_pair_is_kept_and_a_slow_one_is_slowed(tmp_path):
    for name in ("llama3", "yarn"):
        config = read_model_config(config_json(tmp_path, *SCALINGS[name]))
        plain = read_model_config(config_json(tmp_path, *SCALINGS["none"]))
        ratio = frequencies(plain) / frequencies(config)
        assert ratio[0] == 1 and ratio[-1] == pytest.approx(8)
        assert (ratio.diff() >= -1e-6).all()


def test_k14_divisors_of_a_gguf_file_are_llama3s_rule(tmp_path):
    config = read_model_config(config_json(tmp_path, *SCALINGS["llama3"]))
    rope = {**SCALINGS["llama3"][1], "rope_theta": config.rope_theta}
    divisors = tuple(llama3_divisor(pair, HEAD_DIM, rope) for pair in range(HEAD_DIM // 2))
    told = replace(config, rope_scaling=RopeScaling("divisors", divisors=divisors))
    torch.testing.assert_close(frequencies(told), frequencies(config), rtol=1e-6, atol=0)


def test_dynamic_angles_do_not_depend_on_what_else_was_said(tmp_path):
    """transformers turns a short text by other angles before it has seen a long one."""
    folder = config_json(tmp_path, *SCALINGS["dynamic"])
    table = RotaryTable(read_model_config(folder), dtype=torch.float32, device="cpu")
    cos, _ = table.look_up(torch.arange(100))
    early, _ = theirs(folder, 100)
    late, _ = theirs(folder, 32768)
    assert (cos[:, 0] - late[:100]).abs().max() <= 3 * torch.finfo(torch.float32).eps
    assert (early - late[:100]).abs().max() > 0.1
