"""Random little Llamas, built and saved by transformers: models that no trained weight flatters."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
import transformers

_SAVED: dict[str, Path] = {}  # sizes -> folder, so that a session builds each model once

# The two shapes the suite leans on: query heads that KV heads divide, and one KV head for all.
GROUPED = {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 10, "hidden_size": 24}
MULTI_QUERY = {"num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 6, "hidden_size": 20}


def random_llama(directory: str | Path, *, seed: int = 0, dtype: str = "float32", **sizes) -> str:
    """The folder of a saved random Llama (config.json and model.safetensors).

    `sizes` are LlamaConfig's own names and win over the defaults below. Every parameter is
    random, norms and biases too, and wide enough that the scores differ clearly.
    """
    sizes = {
        "vocab_size": 331,
        "num_hidden_layers": 2,
        "intermediate_size": 40,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
        **GROUPED,
        **sizes,
    }
    key = repr((seed, dtype, *sorted(sizes.items())))
    folder = _SAVED.get(key)
    if folder is None or not folder.exists():
        digest = hashlib.sha256(key.encode()).hexdigest()[:16]
        folder = Path(directory) / f"llama-{digest}"
        build_llama(seed, sizes).to(getattr(torch, dtype)).save_pretrained(folder)
        _SAVED[key] = folder
    return str(folder)


def build_llama(seed: int, sizes: dict) -> transformers.LlamaForCausalLM:
    """The model itself, in float32; the host program's random state is left as it was."""
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).eval()
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


def oracle(folder: str, dtype: torch.dtype = torch.float32) -> transformers.LlamaForCausalLM:
    """transformers' own model of a saved folder."""
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
