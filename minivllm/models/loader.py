"""A checkpoint's tensors go into a built model's parameters: names, row slices, shards.

Never a second copy of the model: one piece of a tensor at a time is read, converted and put in
place. Every row of every parameter is filled exactly once, or nothing runs.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn

from ..checkpoint.gguf import GGUFFile
from ..checkpoint.mapped_file import MappedFile, TensorInfo
from ..checkpoint.model_config import ModelConfig
from ..checkpoint.safetensors import SafetensorsFile
from ..quantization.gguf_blocks import byte_tensor, dequantize

# What turns a tensor's bytes into numbers: (bytes, type, shape) -> Tensor.
Read = Callable[[memoryview, str, tuple[int, ...]], Tensor]

_PIECE = 1 << 22  # numbers that are converted at once
# Endings of tensors that are not parameters: the model computes them, or `gguf_config` read them.
_HARMLESS = ("rotary_emb.inv_freq", "rope_freqs.weight")
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
_GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",  # where these are stored as one
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",  # where these are stored as one
    "mlp.down_proj": "ffn_down",
}


@torch.no_grad()
def load_weights(
    model: nn.Module, model_config: ModelConfig, dtype: torch.dtype, device: torch.device | str
) -> None:
    """Fill the parameters of `model` (of `dtype`, on `device`) from model_config.path.

    Parameters bear Hugging Face's names; `model.stacked` names those that stack several of them
    by rows. Raises ValueError naming the file and the tensor that is missing, left over, there
    twice, or of a wrong shape or type. Warns when a tied model's file has a head of its own.
    """
    like = torch.empty(0, dtype=dtype, device=device)
    for name, parameter in model.named_parameters():
        assert (parameter.dtype, parameter.device) == (like.dtype, like.device), name
    slots = _parameter_slots(model, model_config)
    if os.path.isfile(model_config.path):
        _load_gguf(slots, model_config)
    else:
        _load_folder(slots, model_config)


def _load_folder(slots: dict[str, Tensor], model_config: ModelConfig) -> None:
    files = _open_folder(model_config.path)
    head = files.pop("lm_head.weight", None) if model_config.tie_word_embeddings else None
    _check_names(slots, files, model_config.path)
    for name, file in files.items():
        if name in slots:
            _fill(slots[name], file, name, _read_floats)
    if head is not None:
        _check_tied_head(head, slots["model.embed_tokens.weight"])


def _load_gguf(slots: dict[str, Tensor], model_config: ModelConfig) -> None:
    slots = {_gguf_name(name): slot for name, slot in slots.items()}
    interleaved = _interleaved_heads(model_config)
    with GGUFFile(model_config.path) as file:
        _check_names(slots, file.tensors, file.path)
        for name in file.tensors:
            if name in slots:
                _fill(slots[name], file, name, dequantize, interleaved.get(name))


def _parameter_slots(model: nn.Module, model_config: ModelConfig) -> dict[str, Tensor]:
    """Hugging Face's name -> the parameter, or the rows of a stacked one, that it fills."""
    num_rows = {
        "q_proj": model_config.num_heads * model_config.head_dim,
        "k_proj": model_config.num_kv_heads * model_config.head_dim,
        "v_proj": model_config.num_kv_heads * model_config.head_dim,
        "gate_proj": model_config.intermediate_size,
        "up_proj": model_config.intermediate_size,
    }
    slots = {}
    for name, parameter in model.named_parameters():
        *_, module, kind = name.split(".")
        parts = model.stacked.get(module)
        if parts is None or model_config.fused_weights:
            slots[name] = parameter
            continue
        prefix = name.removesuffix(f"{module}.{kind}")
        slices = parameter.split([num_rows[part] for part in parts])
        slots |= {f"{prefix}{part}.{kind}": rows for part, rows in zip(parts, slices, strict=True)}
    return slots


def _check_names(slots: Iterable[str], stored: Iterable[str], path: str) -> None:
    """Every slot has its tensor, and no tensor is left over."""
    if missing := set(slots).difference(stored):
        raise ValueError(f"{path}: the checkpoint lacks {_listed(missing)}")
    if spare := {n for n in set(stored).difference(slots) if not n.endswith(_HARMLESS)}:
        raise ValueError(f"{path}: the model has no place for {_listed(spare)}")


def _listed(names: Iterable[str], most: int = 5) -> str:
    names = sorted(names)
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ("tensors " if len(names) > 1 else "tensor ") + ", ".join(names[:most]) + rest


def _fill(
    slot: Tensor, file: MappedFile, name: str, read: Read, interleaved_heads: int | None = None
) -> None:
    info = file.tensors[name]
    if info.shape != tuple(slot.shape):
        raise ValueError(
            f"{file.path}: tensor {name} has shape {list(info.shape)}, "
            f"but the model's is {list(slot.shape)}"
        )
    if interleaved_heads:
        slot = _in_pairs(slot, interleaved_heads)
    for piece, values in _pieces(slot, file, info, read):
        piece.copy_(values)


def _pieces(
    slot: Tensor, file: MappedFile, info: TensorInfo, read: Read
) -> Iterator[tuple[Tensor, Tensor]]:
    """(piece of the slot, what the file holds for it), over the slot's first dimension."""
    raw, length = file.data(info.name), slot.shape[0]
    step = max(1, _PIECE * length // slot.numel())
    for start in range(0, length, step):
        piece = slot[start : start + step]
        piece_bytes = raw[len(raw) * start // length : len(raw) * (start + step) // length]
        try:
            values = read(piece_bytes, info.type, tuple(piece.shape))
        except ValueError as error:
            raise ValueError(f"{file.path}: tensor {info.name}: {error}") from error
        yield piece, values


def _check_tied_head(file: MappedFile, embedding: Tensor) -> None:
    """A head that is stored beside the embedding it is tied to is not used; warn if it differs."""
    info = file.tensors["lm_head.weight"]
    same = info.shape == tuple(embedding.shape) and all(
        torch.equal(piece, values.to(piece))
        for piece, values in _pieces(embedding, file, info, _read_floats)
    )
    if not same:
        warnings.warn(
            f"{file.path}: lm_head.weight differs from the embedding, but the configuration ties "
            f"the two (tie_word_embeddings): the embedding is used",
            stacklevel=4,
        )


def _read_floats(raw: memoryview, type: str, shape: tuple[int, ...]) -> Tensor:
    if type not in _DTYPES:
        raise ValueError(f"type {type} is not supported (supported: {', '.join(_DTYPES)})")
    return byte_tensor(raw).view(_DTYPES[type]).view(shape)


def _open_folder(folder: str) -> dict[str, MappedFile]:
    """Tensor name -> the open safetensors file that holds it."""
    shards: dict[str, list[str]] = {"model.safetensors": []}
    if not os.path.isfile(os.path.join(folder, "model.safetensors")):
        shards = _read_index(folder)
    files: dict[str, MappedFile] = {}
    for shard, names in shards.items():
        path = os.path.join(folder, shard)
        if not os.path.isfile(path):
            raise ValueError(f"{path}: the index names this file, but it is not there")
        file = SafetensorsFile(path)
        for name in names:
            if name not in file.tensors:
                raise ValueError(f"{path}: the index promises tensor {name}, but it is not there")
        for name in file.tensors:
            if name in files:
                raise ValueError(f"tensor {name} is in {path} and in {files[name].path}")
            files[name] = file
    return files


def _read_index(folder: str) -> dict[str, list[str]]:
    """File name -> the tensors that the index promises there."""
    path = os.path.join(folder, "model.safetensors.index.json")
    try:
        with open(path, encoding="utf-8") as stream:
            weight_map = json.load(stream)["weight_map"]
        shards: dict[str, list[str]] = {}
        for name, shard in weight_map.items():
            if os.path.basename(shard) != shard:
                raise ValueError(f"{shard!r} is no plain file name")
            shards.setdefault(shard, []).append(name)
    except FileNotFoundError:
        raise ValueError(
            f"{folder}: there is neither model.safetensors nor model.safetensors.index.json"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path}: this is no index of safetensors files: {error!r}") from error
    return shards


def _gguf_name(name: str) -> str:
    """model.layers.7.self_attn.q_proj.weight -> blk.7.attn_q.weight"""
    module, _, kind = name.rpartition(".")
    if module.startswith("model.layers."):
        layer, _, module = module.removeprefix("model.layers.").partition(".")
        return f"blk.{layer}.{_GGUF_NAMES[module]}.{kind}"
    return f"{_GGUF_NAMES[module]}.{kind}"


def _interleaved_heads(model_config: ModelConfig) -> dict[str, int]:
    """The tensors of a GGUF file whose rows are reordered within heads, and how many heads. Which
    architectures have this order is settled in llama.cpp's code (llama_model_rope_type)."""
    if model_config.architecture not in ("llama", "smollm3"):
        return {}
    heads = {"attn_q": model_config.num_heads, "attn_k": model_config.num_kv_heads}
    return {
        f"blk.{layer}.{part}.{kind}": num_heads
        for layer in range(model_config.num_layers)
        for part, num_heads in heads.items()
        for kind in ("weight", "bias")
    }


def _in_pairs(rows: Tensor, num_heads: int) -> Tensor:
    """[heads * head_dim, ...] rows seen in a Llama GGUF's order, [heads, head_dim / 2, 2, ...].

    RoPE turns row i of a head together with row i + head_dim / 2; the file keeps such pairs side
    by side.
    """
    return rows.unflatten(0, (num_heads, 2, -1)).transpose(1, 2)
