"""A checkpoint's shape as a Hugging Face folder tells it: config.json, generation_config.json."""

from __future__ import annotations

import math
import os
from typing import Any

from .keys import Keys, read_json
from .model_config import ModelConfig, RopeScaling
from .unsupported import what_is_missing

_DTYPES = ("float64", "float32", "bfloat16", "float16")
_CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
}
MODEL_TYPES = tuple(_CLASSES)
# transformers' defaults where config.json has no such key; a null there means none.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {"bos_token_id": 1, "eos_token_id": 2, "max_position_embeddings": 2048},
    "mistral": {
        "bos_token_id": 1, "eos_token_id": 2, "max_position_embeddings": 131072,
        "num_key_value_heads": 8, "sliding_window": 4096,
    },
    "qwen2": {
        "max_position_embeddings": 32768, "num_key_value_heads": 32, "sliding_window": 4096,
        "max_window_layers": 28,
    },
    "qwen3": {
        "max_position_embeddings": 32768, "num_key_value_heads": 32, "sliding_window": 4096,
        "max_window_layers": 28, "head_dim": 128,
    },
    "phi3": {
        "bos_token_id": 1, "eos_token_id": 32000, "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
    },
    "smollm3": {
        "bos_token_id": 128000, "eos_token_id": 128001, "max_position_embeddings": 32768,
        "num_key_value_heads": 4, "rope_theta": 2e6, "tie_word_embeddings": True,
    },
}  # fmt: skip
_BIASED = ("llama", "qwen3", "smollm3")  # model types that have a key attention_bias
_SLIDING, _FULL = "sliding_attention", "full_attention"


def read_hf_config(folder: str) -> ModelConfig:
    """See read_model_config."""
    keys = read_json(os.path.join(folder, "config.json"))
    model_type = _model_type(keys)
    keys.values = _DEFAULTS[model_type] | keys.values
    _refuse_what_is_missing(keys)
    num_heads, num_layers = keys.size("num_attention_heads"), keys.size("num_hidden_layers")
    hidden_size = keys.size("hidden_size")
    max_positions = keys.size("max_position_embeddings", 2048)
    rope_theta, scaling = _rope(keys, model_type, max_positions)
    has_bias = model_type in _BIASED and keys.take("attention_bias", bool, False)
    without_rope = _layers_without_rope(keys, num_layers) if model_type == "smollm3" else ()
    return ModelConfig(
        path=folder,
        architecture=model_type,
        vocab_size=keys.size("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=keys.size("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=keys.size("num_key_value_heads", num_heads),
        head_dim=keys.size("head_dim", max(1, hidden_size // num_heads)),
        max_position_embeddings=scaling.longest(max_positions) if scaling else max_positions,
        rms_norm_eps=keys.positive("rms_norm_eps", 1e-6),
        rope_theta=rope_theta,
        tie_word_embeddings=keys.take("tie_word_embeddings", bool, False),
        dtype=_stored_dtype(keys),
        eos_token_ids=_eos_token_ids(keys, folder),
        bos_token_id=keys.take("bos_token_id", int, None),
        qkv_bias=has_bias or model_type == "qwen2",
        o_bias=has_bias,
        mlp_bias=model_type in ("llama", "smollm3") and keys.take("mlp_bias", bool, False),
        qk_norm=model_type == "qwen3",
        rope_scaling=scaling,
        windows=_windows(keys, model_type, num_layers, without_rope),
        layers_without_rope=without_rope,
        fused_weights=model_type == "phi3",
    )


def _model_type(keys: Keys) -> str:
    model_type = keys.take("model_type", str)
    if model_type not in _CLASSES:
        missing = what_is_missing(model_type, MODEL_TYPES)
        keys.fail("model_type", f"{model_type!r} is not supported: {missing}")
    wanted = _CLASSES[model_type]
    keys.refuse("architectures", unless=([wanted], []), lacking=f"only {wanted!r} is")
    return model_type


def _refuse_what_is_missing(keys: Keys) -> None:
    keys.refuse("hidden_act", unless=("silu", "swish"), lacking="the activation must be 'silu'")
    keys.refuse("partial_rotary_factor", unless=(1,), lacking="RoPE turns whole heads")
    keys.refuse("quantization_config", unless=(), lacking="weights must not be quantized")


def _eos_token_ids(keys: Keys, folder: str) -> tuple[int, ...]:
    """From both files, each id once."""
    ids = keys.token_ids("eos_token_id")
    generation_file = os.path.join(folder, "generation_config.json")
    if os.path.exists(generation_file):
        ids += read_json(generation_file).token_ids("eos_token_id")
    return tuple(dict.fromkeys(ids))


def _stored_dtype(keys: Keys) -> str:
    key = "dtype" if "dtype" in keys.values else "torch_dtype"
    keys.refuse(key, unless=_DTYPES, lacking=f"weights must be one of {', '.join(_DTYPES)}")
    return keys.take(key, str, "float32")


def _layers_without_rope(keys: Keys, num_layers: int) -> tuple[int, ...]:
    """SmolLM3: every fourth layer, or those where `no_rope_layers` has a 0."""
    interval = keys.size("no_rope_layer_interval", 4)
    default = [int((layer + 1) % interval != 0) for layer in range(num_layers)]
    turned = keys.take("no_rope_layers", list, default)
    if len(turned) < num_layers or not all(flag in (0, 1) for flag in turned):
        keys.fail("no_rope_layers", f"must hold a 0 or 1 for each of {num_layers} layers")
    return tuple(layer for layer in range(num_layers) if not turned[layer])


def _windows(
    keys: Keys, model_type: str, num_layers: int, without_rope: tuple[int, ...]
) -> tuple[int | None, ...]:
    """By layer, how many keys a token sees, itself among them."""
    window = keys.size("sliding_window", None)
    if model_type == "llama" and keys.take("use_sliding_window", bool, True):
        keys.refuse("sliding_window", unless=(), lacking="a Llama sees everything")
    if model_type in ("mistral", "phi3"):
        keys.refuse("use_sliding_window", unless=(True,), lacking="set sliding_window to null")
        default = [_SLIDING if window else _FULL] * num_layers
        keys.refuse("layer_types", unless=(default,), lacking="all layers are alike")
        return (window,) * num_layers
    if not keys.take("use_sliding_window", bool, False):
        window = None
    if model_type == "smollm3":
        slides = [layer in without_rope for layer in range(num_layers)]
    else:
        first = keys.take("max_window_layers", int, 0)
        slides = [layer >= first for layer in range(num_layers)]
    default = [_SLIDING if window and flag else _FULL for flag in slides]
    kinds = keys.take("layer_types", list, default)
    if len(kinds) != num_layers or not all(kind in (_SLIDING, _FULL) for kind in kinds):
        keys.fail("layer_types", f"must name {_SLIDING} or {_FULL} for each of {num_layers} layers")
    if window is None and _SLIDING in kinds:
        keys.fail("layer_types", f"{_SLIDING} needs a sliding_window and use_sliding_window")
    return tuple(window if kind == _SLIDING else None for kind in kinds)


_ROPE_KEYS = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": (
        *("factor", "attention_factor", "beta_fast", "beta_slow", "truncate"),
        *("mscale", "mscale_all_dim"),
    ),
}
# `finetuned` says how the weights came about, and the original length may stand anywhere.
_ANY_ROPE = ("rope_type", "type", "rope_theta", "partial_rotary_factor", "finetuned")
_ORIGINAL = "original_max_position_embeddings"


def _rope(keys: Keys, model_type: str, max_positions: int) -> tuple[float, RopeScaling | None]:
    """theta and scaling, from `rope_parameters` (transformers 5), or `rope_theta` beside
    `rope_scaling` (before); where both are there, `rope_scaling` stands in for `rope_parameters`,
    as in transformers."""
    theta = keys.positive("rope_theta", 10000.0)
    place = next((k for k in ("rope_scaling", "rope_parameters") if keys.take(k, dict, None)), None)
    if place is None:
        return theta, None
    rope = Keys(f"{keys.file}: {place}", keys.values[place])
    name = "rope_type" if "rope_type" in rope.values else "type"
    kinds = ("default",) if model_type == "phi3" else tuple(_ROPE_KEYS)
    rope.refuse(name, unless=kinds, lacking=f"RoPE may be {', '.join(kinds)}")
    rope.refuse("partial_rotary_factor", unless=(1,), lacking="RoPE turns whole heads")
    kind = rope.take(name, str, "default")
    for key in rope.values.keys() - {*_ROPE_KEYS[kind], *_ANY_ROPE, _ORIGINAL}:
        rope.refuse(key, unless=(), lacking=f"RoPE of type {kind!r} has no such key")
    original = keys.size(_ORIGINAL, None) or rope.size(_ORIGINAL, max_positions)
    theta = rope.positive("rope_theta", theta)
    return theta, _scaling(rope, kind, original, max_positions)


def _scaling(rope: Keys, kind: str, original: int, max_positions: int) -> RopeScaling | None:
    if kind == "default":
        return None
    if kind in ("linear", "dynamic"):
        return RopeScaling(kind, _factor(rope), max_positions)
    if kind == "llama3":
        low, high = rope.positive("low_freq_factor"), rope.positive("high_freq_factor")
        if high <= low:
            rope.fail("high_freq_factor", f"must be above low_freq_factor, {low}, got {high}")
        return RopeScaling(
            kind, _factor(rope), original, low_freq_factor=low, high_freq_factor=high
        )
    ratio = max_positions / original
    factor = _factor(rope, *([ratio] if ratio > 1 else []))
    return RopeScaling(
        kind,
        factor,
        original,
        attention_factor=rope.positive("attention_factor", _yarn_attention_factor(rope, factor)),
        beta_fast=rope.positive("beta_fast", 32.0),
        beta_slow=rope.positive("beta_slow", 1.0),
        truncate=rope.take("truncate", bool, True),
    )


def _factor(rope: Keys, *default: float) -> float:
    factor = rope.positive("factor", *default)
    if factor < 1:
        rope.fail("factor", f"must be at least 1, got {factor}")
    return factor


def _yarn_attention_factor(rope: Keys, factor: float) -> float:
    """What YaRN multiplies cosines and sines with (Peng et al., 2023, section 3.4); DeepSeek's
    two keys, where both are there, give a quotient instead."""

    def mscale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1

    above, below = (rope.take(k, (int, float), 0) for k in ("mscale", "mscale_all_dim"))
    return mscale(above) / mscale(below) if above and below else mscale(1)
