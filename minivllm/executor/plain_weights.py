"""A checkpoint's weights as lists of Python floats. Reads; computes nothing."""

from __future__ import annotations

import os
import struct

from ..checkpoint.model_config import ModelConfig
from ..checkpoint.safetensors import SafetensorsFile

Vector = list[float]
Matrix = list[Vector]

_HARMLESS = "rotary_emb.inv_freq"  # the end of names of tensors that the model computes itself


def read_weights(config: ModelConfig) -> dict[str, Vector | Matrix]:
    """Every parameter of the model, by Hugging Face's name, from config.path's model.safetensors.

    Raises ValueError naming the file, and the tensor that is missing, left over, or of a wrong
    shape or type.
    """
    path = os.path.join(config.path, "model.safetensors")
    if not os.path.isfile(path):
        raise ValueError(
            f"{config.path} is no folder with a model.safetensors, and PlainExecutor reads no other"
        )
    shapes = parameter_shapes(config)
    with SafetensorsFile(path) as file:
        names = {name for name in file.tensors if not name.endswith(_HARMLESS)}
        if missing := shapes.keys() - names:
            raise ValueError(f"{path}: the checkpoint lacks {', '.join(sorted(missing))}")
        if spare := names - shapes.keys():
            raise ValueError(f"{path}: the model has no place for {', '.join(sorted(spare))}")
        return {name: read_tensor(file, name, shape) for name, shape in shapes.items()}


def parameter_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name -> shape of each parameter; a matrix is [out, in]."""
    hidden, inner = config.hidden_size, config.intermediate_size
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    linear = {
        "self_attn.q_proj": ((query, hidden), config.qkv_bias),
        "self_attn.k_proj": ((key, hidden), config.qkv_bias),
        "self_attn.v_proj": ((key, hidden), config.qkv_bias),
        "self_attn.o_proj": ((hidden, query), config.o_bias),
        "mlp.gate_proj": ((inner, hidden), config.mlp_bias),
        "mlp.up_proj": ((inner, hidden), config.mlp_bias),
        "mlp.down_proj": ((hidden, inner), config.mlp_bias),
    }
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    for index in range(config.num_layers):
        layer = f"model.layers.{index}"
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{layer}.{name}.weight"] = (hidden,)
        for name, (shape, has_bias) in linear.items():
            shapes[f"{layer}.{name}.weight"] = shape
            if has_bias:
                shapes[f"{layer}.{name}.bias"] = shape[:1]
    return shapes


def read_tensor(file: SafetensorsFile, name: str, shape: tuple[int, ...]) -> Vector | Matrix:
    """One tensor of one or two dimensions."""
    info = file.tensors[name]
    if info.shape != shape:
        raise ValueError(
            f"{file.path}: tensor {name} has shape {list(info.shape)}, "
            f"but the model's is {list(shape)}"
        )
    try:
        numbers = decode_floats(file.data(name), info.type)
    except ValueError as error:
        raise ValueError(f"{file.path}: tensor {name}: {error}") from error
    if len(shape) == 1:
        return numbers
    width = shape[1]
    return [numbers[start : start + width] for start in range(0, len(numbers), width)]


def decode_floats(raw: memoryview | bytes, kind: str) -> Vector:
    """Little-endian numbers of a safetensors type as floats, each exactly. Raises ValueError for
    a type that is no float of 16, 32 or 64 bits."""
    if kind == "BF16":  # the upper half of a float32
        wide = bytearray(2 * len(raw))
        wide[2::4], wide[3::4] = raw[0::2], raw[1::2]
        raw, kind = wide, "F32"
    codes = {"F64": "d", "F32": "f", "F16": "e"}
    if kind not in codes:
        raise ValueError(f"type {kind} is not supported (supported: BF16, {', '.join(codes)})")
    count = len(raw) // struct.calcsize(f"<{codes[kind]}")
    return list(struct.unpack(f"<{count}{codes[kind]}", raw))
