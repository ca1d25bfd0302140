"""A checkpoint's shape: what a model needs to know before its weights are read.

Read from a Hugging Face `config.json` or from a GGUF file's metadata; says nothing of how the
model is run.
"""

from __future__ import annotations

from dataclasses import dataclass


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
    dtype: str  # the dtype it was stored in: "float32" | "bfloat16" | "float16" | "float64" | "quantized"
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None = None
    attention_bias: bool = False  # biases on q, k, v and o
    mlp_bias: bool = False
