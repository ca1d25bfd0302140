"""Random little models, built and saved by transformers: models that no trained weight flatters."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers

_SAVED: dict[str, Path] = {}  # sizes -> folder, so that a session builds each model once

# The two shapes the suite leans on: query heads that KV heads divide, and one KV head for all.
GROUPED = {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 10, "hidden_size": 24}
MULTI_QUERY = {"num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 6, "hidden_size": 20}
SPECIAL = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}  # ids that 331 can hold


def random_model(
    directory: str | Path, model_type: str, *, seed: int = 0, dtype: str = "float32", **sizes
) -> str:
    """The folder of a saved random model (config.json and model.safetensors).

    `sizes` are the names of transformers' configuration and win over the defaults below. Every
    parameter is random, norms and biases too, and wide enough that the scores differ clearly.
    """
    sizes = {
        "vocab_size": 331,
        "num_hidden_layers": 2,
        "intermediate_size": 40,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
        **GROUPED,
        **({} if model_type == "llama" else SPECIAL),
        **sizes,
    }
    key = repr((model_type, seed, dtype, *sorted(sizes.items())))
    folder = _SAVED.get(key)
    if folder is None or not folder.exists():
        digest = hashlib.sha256(key.encode()).hexdigest()[:16]
        folder = Path(directory) / f"{model_type}-{digest}"
        build(model_type, seed, sizes).to(getattr(torch, dtype)).save_pretrained(folder)
        _SAVED[key] = folder
    return str(folder)


def random_llama(directory: str | Path, *, seed: int = 0, dtype: str = "float32", **sizes) -> str:
    return random_model(directory, "llama", seed=seed, dtype=dtype, **sizes)


def build(model_type: str, seed: int, sizes: dict) -> transformers.PreTrainedModel:
    """The model itself, in float32; the host program's random state is left as it was."""
    config = transformers.AutoConfig.for_model(model_type, **sizes)
    with torch.random.fork_rng():
        model = transformers.AutoModelForCausalLM.from_config(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if name.endswith("norm.weight"):
                parameter.copy_(1 + 0.2 * noise)
            elif name.endswith("bias"):
                parameter.copy_(0.2 * noise)
            elif name.endswith("embed_tokens.weight"):
                parameter.copy_(0.5 * noise)
            else:
                parameter.copy_(1.2 * noise * parameter.shape[1] ** -0.5)
    return model


def oracle(folder: str, dtype: torch.dtype = torch.float32) -> transformers.PreTrainedModel:
    """transformers' own model of a saved folder."""
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()


def as_gguf(folder: str, path: str | Path, kind: str = "F32", leave_out=()) -> str:
    """The checkpoint as llama.cpp's converter writes it: matrices of `kind`, vectors in F32, the
    rows of Q and K in pairs where llama.cpp turns neighbours. Names come from `gguf`."""
    model = oracle(folder)
    config, state = model.config, model.state_dict()
    name = "llama" if config.model_type == "mistral" else config.model_type
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[name.upper()], config.num_hidden_layers)
    writer = gguf.GGUFWriter(path, name)
    _write_sizes(writer, config, state)
    _write_rope(writer, config)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for old, value in state.items():
        new = names.get_name(old, try_suffixes=(".weight", ".bias"))
        if new in leave_out or (old == "lm_head.weight" and config.tie_word_embeddings):
            continue
        module, shape = old.split(".")[-2], value.shape
        if module in heads and name in ("llama", "smollm3"):
            value = value.reshape(heads[module], 2, shape[0] // heads[module] // 2, *shape[1:])
            value = value.swapaxes(1, 2).reshape(shape)
        stored = gguf.GGMLQuantizationType[kind if value.dim() > 1 else "F32"]
        data = gguf.quants.quantize(value.numpy(), stored)
        writer.add_tensor(new, data, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)


def head_size(config: transformers.PretrainedConfig) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def _write_sizes(writer: gguf.GGUFWriter, config, state: dict) -> None:
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_key_length(head_size(config))
    writer.add_value_length(head_size(config))
    writer.add_vocab_size(config.vocab_size)
    if config.model_type in ("mistral", "phi3"):
        writer.add_sliding_window(config.sliding_window or 0)


def _write_rope(writer: gguf.GGUFWriter, config) -> None:
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if rope["rope_type"] == "llama3":
        divisors = [
            llama3_divisor(pair, head_size(config), rope) for pair in range(head_size(config) // 2)
        ]
        writer.add_tensor("rope_freqs.weight", np.array(divisors, dtype=np.float32))


def llama3_divisor(pair: int, head_dim: int, rope: dict) -> float:
    """What Llama 3.1 divides a pair's frequency by, told by wavelength."""
    wavelength = 2 * math.pi * rope["rope_theta"] ** (2 * pair / head_dim)
    length = rope["original_max_position_embeddings"]
    if wavelength < length / rope["high_freq_factor"]:
        return 1.0
    if wavelength > length / rope["low_freq_factor"]:
        return rope["factor"]
    smooth = (length / wavelength - rope["low_freq_factor"]) / (
        rope["high_freq_factor"] - rope["low_freq_factor"]
    )
    return 1 / ((1 - smooth) / rope["factor"] + smooth)
