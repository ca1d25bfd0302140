"""A checkpoint's shape: what a model needs to know before its weights are read.

Read from a Hugging Face `config.json` or from a GGUF file's metadata; says nothing of how the
model is run. What a checkpoint asks for and this engine lacks is refused by name.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from typing import Any, NoReturn

from .gguf import GGUFFile

_DTYPES = ("float64", "float32", "bfloat16", "float16")
_GGUF_DTYPES = {"F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16"}
# transformers' defaults for Llama where config.json has no such key; a null there means none.
_HF_TOKEN_IDS = {"bos_token_id": 1, "eos_token_id": 2}
_REQUIRED = object()  # as a default: the key must be there


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder of the Llama family. Sizes count numbers, not bytes."""

    path: str  # the folder, or the .gguf file
    architecture: str  # "llama"
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int  # query heads
    num_kv_heads: int
    head_dim: int  # need not be hidden_size / num_heads
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    tie_word_embeddings: bool  # the head is the embedding
    dtype: str  # what it was stored in: a name of torch's, or "quantized"
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None = None
    attention_bias: bool = False  # biases on q, k, v and o
    mlp_bias: bool = False

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"{self.path}: {self.num_heads} query heads cannot share {self.num_kv_heads} "
                f"KV heads evenly"
            )
        if self.head_dim % 2:
            raise ValueError(f"{self.path}: head_dim {self.head_dim} is odd, RoPE turns pairs")


def read_model_config(path: str | os.PathLike[str]) -> ModelConfig:
    """The shape of the checkpoint at `path`, a Hugging Face folder or a .gguf file.

    Keys that are missing get transformers' defaults for Llama; the sizes must be there. Raises
    ValueError naming the file and the key: missing, of a wrong type, or asking for a model that
    is not supported (another architecture, RoPE scaling, a sliding window, experts, ...).
    """
    path = os.fspath(path)
    if os.path.isfile(path):
        with GGUFFile(path) as file:
            return _from_gguf(file)
    return _from_folder(path)


class _Keys:
    """The keys of one file, each checked as it is taken. A null counts as missing."""

    def __init__(self, file: str, values: dict[str, Any]) -> None:
        self.file = file
        self.values = values

    def fail(self, key: str, problem: str) -> NoReturn:
        raise ValueError(f"{self.file}: {key}: {problem}")

    def refuse(self, key: str, *, unless: tuple, lacking: str) -> None:
        """Only the values in `unless` ask for nothing beyond what is supported."""
        value = self.values.get(key)
        if value is not None and value not in unless:
            self.fail(key, f"{value!r} is not supported: {lacking}")

    def take(self, key: str, kinds: type | tuple[type, ...], default: Any = _REQUIRED) -> Any:
        value = self.values.get(key)
        if value is None:
            if default is _REQUIRED:
                self.fail(key, "this key is missing")
            return default
        is_number_for_flag = isinstance(value, bool) and kinds is not bool
        if not isinstance(value, kinds) or is_number_for_flag:
            self.fail(key, f"has a value of the wrong type, {value!r}")
        return value

    def size(self, key: str, default: Any = _REQUIRED) -> int:
        value = self.take(key, int, default)
        if value is not None and value < 1:
            self.fail(key, f"must be at least 1, got {value}")
        return value

    def positive(self, key: str, default: Any = _REQUIRED) -> float:
        value = self.take(key, (int, float), default)
        if not 0 < value <= sys.float_info.max:
            self.fail(key, f"must be above 0 and finite, got {value}")
        return float(value)

    def token_ids(self, key: str) -> tuple[int, ...]:
        """One id or a list of ids."""
        value = self.take(key, (int, list), [])
        ids = tuple(value) if isinstance(value, list) else (value,)
        if not all(type(i) is int and i >= 0 for i in ids):
            self.fail(key, f"must be a token id or a list of them, got {value!r}")
        return ids


def _from_folder(folder: str) -> ModelConfig:
    keys = _read_json(os.path.join(folder, "config.json"))
    keys.values = _HF_TOKEN_IDS | keys.values
    _refuse_other_models(keys)
    num_heads = keys.size("num_attention_heads")
    hidden_size = keys.size("hidden_size")
    eos_token_ids = keys.token_ids("eos_token_id")
    generation_file = os.path.join(folder, "generation_config.json")
    if os.path.exists(generation_file):
        eos_token_ids += _read_json(generation_file).token_ids("eos_token_id")
    return ModelConfig(
        path=folder,
        architecture="llama",
        vocab_size=keys.size("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=keys.size("intermediate_size"),
        num_layers=keys.size("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=keys.size("num_key_value_heads", num_heads),
        head_dim=keys.size("head_dim", max(1, hidden_size // num_heads)),
        max_position_embeddings=keys.size("max_position_embeddings", 2048),
        rms_norm_eps=keys.positive("rms_norm_eps", 1e-6),
        rope_theta=_rope_theta(keys),
        tie_word_embeddings=keys.take("tie_word_embeddings", bool, False),
        dtype=_stored_dtype(keys),
        eos_token_ids=tuple(dict.fromkeys(eos_token_ids)),
        bos_token_id=keys.take("bos_token_id", int, None),
        attention_bias=keys.take("attention_bias", bool, False),
        mlp_bias=keys.take("mlp_bias", bool, False),
    )


def _read_json(file: str) -> _Keys:
    try:
        with open(file, encoding="utf-8") as stream:
            values = json.load(stream)
    except FileNotFoundError:
        raise ValueError(f"{file}: there is no such file; is this a model's folder?") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file}: this is no valid JSON: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{file}: this is no JSON object")
    return _Keys(file, values)


def _refuse_other_models(keys: _Keys) -> None:
    keys.take("model_type", str)
    keys.refuse("model_type", unless=("llama",), lacking="only 'llama' is")
    keys.refuse(
        "architectures", unless=(["LlamaForCausalLM"], []), lacking="only 'LlamaForCausalLM' is"
    )
    keys.refuse("hidden_act", unless=("silu", "swish"), lacking="the activation must be 'silu'")
    if keys.values.get("use_sliding_window") is not False:
        keys.refuse("sliding_window", unless=(), lacking="there is no sliding window attention")
    keys.refuse("partial_rotary_factor", unless=(1,), lacking="RoPE turns whole heads")
    keys.refuse("quantization_config", unless=(), lacking="weights must not be quantized")


def _rope_theta(keys: _Keys) -> float:
    """From `rope_parameters` (transformers 5), or `rope_theta` beside `rope_scaling` (before);
    where both are there, `rope_scaling` stands in for `rope_parameters`, as in transformers."""
    outer = keys.positive("rope_theta", 10000.0)
    for key in ("rope_scaling", "rope_parameters"):
        if keys.take(key, dict, None):
            rope = _Keys(f"{keys.file}: {key}", keys.values[key])
            kind = "rope_type" if "rope_type" in rope.values else "type"
            rope.refuse(kind, unless=("default",), lacking="there is no RoPE scaling")
            rope.refuse("partial_rotary_factor", unless=(1,), lacking="RoPE turns whole heads")
            return rope.positive("rope_theta", outer)
    return outer


def _stored_dtype(keys: _Keys) -> str:
    key = "dtype" if "dtype" in keys.values else "torch_dtype"
    keys.refuse(key, unless=_DTYPES, lacking=f"weights must be one of {', '.join(_DTYPES)}")
    return keys.take(key, str, "float32")


def _from_gguf(file: GGUFFile) -> ModelConfig:
    keys = _Keys(file.path, file.metadata)
    keys.take("general.architecture", str)
    keys.refuse("general.architecture", unless=("llama",), lacking="only 'llama' is")
    _refuse_gguf_extras(keys, file)
    num_heads = keys.size("llama.attention.head_count")
    hidden_size = keys.size("llama.embedding_length")
    head_dim = keys.size("llama.attention.key_length", max(1, hidden_size // num_heads))
    for key in ("llama.attention.value_length", "llama.rope.dimension_count"):
        keys.refuse(key, unless=(head_dim,), lacking=f"it must be the head size, {head_dim}")
    tokens = keys.take("tokenizer.ggml.tokens", list, None)
    eos = keys.token_ids("tokenizer.ggml.eos_token_id")
    return ModelConfig(
        path=file.path,
        architecture="llama",
        vocab_size=len(tokens) if tokens else keys.size("llama.vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=keys.size("llama.feed_forward_length"),
        num_layers=keys.size("llama.block_count"),
        num_heads=num_heads,
        num_kv_heads=keys.size("llama.attention.head_count_kv", num_heads),
        head_dim=head_dim,
        max_position_embeddings=keys.size("llama.context_length"),
        rms_norm_eps=keys.positive("llama.attention.layer_norm_rms_epsilon"),
        rope_theta=keys.positive("llama.rope.freq_base", 10000.0),
        tie_word_embeddings="output.weight" not in file.tensors,
        dtype=_gguf_dtype(file),
        eos_token_ids=tuple(dict.fromkeys(eos + keys.token_ids("tokenizer.ggml.eot_token_id"))),
        bos_token_id=keys.take("tokenizer.ggml.bos_token_id", int, None),
        attention_bias="blk.0.attn_q.bias" in file.tensors,
        mlp_bias="blk.0.ffn_gate.bias" in file.tensors,
    )


def _refuse_gguf_extras(keys: _Keys, file: GGUFFile) -> None:
    no_scaling = "there is no RoPE scaling"
    keys.refuse("llama.rope.scaling.type", unless=("none",), lacking=no_scaling)
    keys.refuse("llama.rope.scaling.factor", unless=(0, 1), lacking=no_scaling)
    keys.refuse("llama.rope.scale_linear", unless=(0, 1), lacking=no_scaling)
    if "rope_freqs.weight" in file.tensors:
        raise ValueError(f"{file.path}: tensor 'rope_freqs.weight' is not supported: {no_scaling}")
    keys.refuse("llama.expert_count", unless=(0,), lacking="there are no experts")
    keys.refuse("llama.attention.sliding_window", unless=(0,), lacking="attention sees everything")
    keys.refuse("llama.attention.causal", unless=(True,), lacking="attention is causal")


def _gguf_dtype(file: GGUFFile) -> str:
    """The type of the matrices (norms are float32 in any file); "quantized" if one of them is."""
    kinds = {info.type for info in file.tensors.values() if len(info.shape) > 1}
    if not kinds <= _GGUF_DTYPES.keys():
        return "quantized"
    return _GGUF_DTYPES[kinds.pop()] if len(kinds) == 1 else "float32"
