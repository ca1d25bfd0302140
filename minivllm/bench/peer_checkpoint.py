"""A GGUF file as the checkpoint folder that other engines read: the same weights, dequantized, and
a config.json. No tokenizer: whoever is measured gets token ids."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from .. import kernels
from ..checkpoint.model_config import ModelConfig, read_model_config
from ..models.loader import load_weights
from ..models.transformer import Transformer

_DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}


def write_checkpoint(gguf: str, folder: str | Path, dtype: torch.dtype) -> None:
    """Write config.json and model.safetensors in dtype. Raises ValueError for what is not a plain
    Llama, or a dtype that peers do not take."""
    config = read_model_config(gguf)
    is_plain = config.architecture == "llama" and config.rope_scaling is None
    if not is_plain or dtype not in _DTYPES:
        raise ValueError(
            f"{gguf} cannot be written for another engine ({config.architecture}, "
            f"{str(dtype).removeprefix('torch.')}): give its checkpoint by --peer-model"
        )
    model = Transformer(config, kernels.load("reference"), dtype=dtype)
    load_weights(model, config, dtype, "cpu")
    text = json.dumps(hf_config(config, dtype), indent=1)
    Path(folder, "config.json").write_text(text, encoding="utf-8")
    write_safetensors(Path(folder, "model.safetensors"), dict(own_tensors(model, config)))


def own_tensors(model: Transformer, config: ModelConfig) -> Iterator[tuple[str, Tensor]]:
    """The parameters under Hugging Face's names, each stacked one taken apart."""
    heads = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
    rows = {
        "qkv_proj": [num * config.head_dim for num in heads],
        "gate_up_proj": [config.intermediate_size] * 2,
    }
    for name, parameter in model.named_parameters():
        *_, module, kind = name.split(".")
        if module not in model.stacked:
            yield name, parameter
            continue
        prefix = name.removesuffix(f"{module}.{kind}")
        for part, own in zip(model.stacked[module], parameter.split(rows[module]), strict=True):
            yield f"{prefix}{part}.{kind}", own


def hf_config(config: ModelConfig, dtype: torch.dtype) -> dict[str, object]:
    sizes = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "tie_word_embeddings": config.tie_word_embeddings,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": list(config.eos_token_ids),
    }
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "dtype": str(dtype).removeprefix("torch."),
        **sizes,
    }


def write_safetensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """The format is a length, a JSON header, then the bytes of each tensor."""
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.nbytes
        header[name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(tensor.detach().contiguous().view(torch.uint8).numpy().data)
