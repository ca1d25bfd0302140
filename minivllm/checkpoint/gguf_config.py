"""A checkpoint's shape as a GGUF file tells it: its metadata, and which tensors it has."""

from __future__ import annotations

import math
import struct

from .gguf import GGUFFile
from .keys import Keys
from .model_config import ModelConfig, RopeScaling
from .unsupported import what_is_missing

# Mistral's files say "llama" too, and Mixtral's, which have an expert_count.
ARCHITECTURES = ("llama", "qwen2", "qwen3", "phi3", "smollm3")
_DTYPES = {"F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16"}
_DIVISORS = "rope_freqs.weight"


def read_gguf_config(path: str) -> ModelConfig:
    """See read_model_config."""
    with GGUFFile(path) as file:
        return _from_metadata(file)


def _from_metadata(file: GGUFFile) -> ModelConfig:
    keys = Keys(file.path, file.metadata)
    arch = keys.take("general.architecture", str)
    if arch not in ARCHITECTURES:
        missing = what_is_missing(arch, ARCHITECTURES)
        keys.fail("general.architecture", f"{arch!r} is not supported: {missing}")
    num_heads = keys.size(f"{arch}.attention.head_count")
    num_layers = keys.size(f"{arch}.block_count")
    hidden_size = keys.size(f"{arch}.embedding_length")
    head_dim = keys.size(f"{arch}.attention.key_length", max(1, hidden_size // num_heads))
    _refuse_what_is_missing(keys, arch, head_dim)
    max_positions = keys.size(f"{arch}.context_length")
    scaling = _rope_scaling(keys, arch, max_positions)
    if _DIVISORS in file.tensors:
        if scaling is not None:
            keys.fail(_DIVISORS, f"is not supported beside RoPE scaling of type {scaling.kind!r}")
        scaling = _divisors(file, head_dim // 2)
    tokens = keys.take("tokenizer.ggml.tokens", list, None)
    eos = keys.token_ids("tokenizer.ggml.eos_token_id")
    return ModelConfig(
        path=file.path,
        architecture=arch,
        vocab_size=len(tokens) if tokens else keys.size(f"{arch}.vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=keys.size(f"{arch}.feed_forward_length"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=keys.size(f"{arch}.attention.head_count_kv", num_heads),
        head_dim=head_dim,
        max_position_embeddings=scaling.longest(max_positions) if scaling else max_positions,
        rms_norm_eps=keys.positive(f"{arch}.attention.layer_norm_rms_epsilon"),
        rope_theta=keys.positive(f"{arch}.rope.freq_base", 10000.0),
        tie_word_embeddings="output.weight" not in file.tensors,
        dtype=_stored_dtype(file),
        eos_token_ids=tuple(dict.fromkeys(eos + keys.token_ids("tokenizer.ggml.eot_token_id"))),
        bos_token_id=keys.take("tokenizer.ggml.bos_token_id", int, None),
        qkv_bias="blk.0.attn_q.bias" in file.tensors,
        o_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_gate.bias" in file.tensors,
        qk_norm=arch == "qwen3",
        rope_scaling=scaling,
        windows=(_window(keys, arch),) * num_layers,
        # No key says so: llama.cpp has the 4 in its code (src/models/smollm3.cpp).
        layers_without_rope=tuple(range(3, num_layers, 4)) if arch == "smollm3" else (),
        fused_weights=arch == "phi3",
    )


def _refuse_what_is_missing(keys: Keys, arch: str, head_dim: int) -> None:
    for key in (f"{arch}.attention.value_length", f"{arch}.rope.dimension_count"):
        keys.refuse(key, unless=(head_dim,), lacking=f"it must be the head size, {head_dim}")
    keys.refuse(f"{arch}.expert_count", unless=(0,), lacking="there are no experts yet")
    keys.refuse(f"{arch}.attention.causal", unless=(True,), lacking="attention is causal")


def _window(keys: Keys, arch: str) -> int | None:
    """How many keys a token sees, in every layer; 0 in the file means all."""
    key = f"{arch}.attention.sliding_window"
    if arch not in ("llama", "phi3"):
        keys.refuse(key, unless=(0,), lacking="it does not say which layers have the window")
    pattern = f"{arch}.attention.sliding_window_pattern"
    keys.refuse(pattern, unless=(), lacking="all layers of a file have the same window")
    window = keys.take(key, int, 0)
    if window < 0:
        keys.fail(key, f"must be at least 0, got {window}")
    return window or None


def _rope_scaling(keys: Keys, arch: str, max_positions: int) -> RopeScaling | None:
    """As llama.cpp reads it: a factor without a type is linear, and so is the old name of the
    factor; 0 and 1 mean none."""
    old = keys.take(f"{arch}.rope.scale_linear", (int, float), 0)
    factor = float(keys.take(f"{arch}.rope.scaling.factor", (int, float), old))
    name = f"{arch}.rope.scaling.type"
    keys.refuse(name, unless=("none", "linear", "yarn"), lacking="RoPE may be none, linear, yarn")
    kind = keys.take(name, str, "linear")
    if kind == "none" or factor in (0, 1):
        return None
    if not 1 < factor < math.inf:
        keys.fail(f"{arch}.rope.scaling.factor", f"must be at least 1, got {factor}")
    if kind == "linear":
        return RopeScaling(kind, factor, max_positions)
    for extra, neutral in (("log_multiplier", 0), ("ext_factor", 1), ("attn_factor", 1)):
        key = f"{arch}.rope.scaling.yarn_{extra}"
        keys.refuse(key, unless=(neutral,), lacking=f"it must be {neutral}")
    own = keys.positive(f"{arch}.rope.scaling.attn_factor", 1.0)
    return RopeScaling(
        kind,
        factor,
        keys.size(f"{arch}.rope.scaling.original_context_length", max_positions),
        attention_factor=own * (0.1 * math.log(factor) + 1),
        beta_fast=keys.positive(f"{arch}.rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=keys.positive(f"{arch}.rope.scaling.yarn_beta_slow", 1.0),
    )


def _divisors(file: GGUFFile, num_pairs: int) -> RopeScaling:
    """Llama 3's scaling comes as a tensor: what each pair's frequency is divided by."""
    info = file.tensors[_DIVISORS]
    if (info.type, info.shape) != ("F32", (num_pairs,)):
        raise ValueError(
            f"{file.path}: tensor {_DIVISORS} must hold {num_pairs} numbers in F32, "
            f"not {list(info.shape)} in {info.type}"
        )
    divisors = struct.unpack(f"<{num_pairs}f", file.data(_DIVISORS))
    if not all(0 < divisor < math.inf for divisor in divisors):
        raise ValueError(f"{file.path}: tensor {_DIVISORS} must hold finite numbers above 0")
    return RopeScaling("divisors", divisors=divisors)


def _stored_dtype(file: GGUFFile) -> str:
    """The type of the matrices (norms are float32 in any file); "quantized" if one of them is."""
    kinds = {info.type for info in file.tensors.values() if len(info.shape) > 1}
    if not kinds <= _DTYPES.keys():
        return "quantized"
    return _DTYPES[kinds.pop()] if len(kinds) == 1 else "float32"
