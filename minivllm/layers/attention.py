"""The attention half of a decoder layer: tokens look back at what their own row has said."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..kernels import AttentionMetadata, Ops
from .linear import Linear


class Attention(nn.Module):
    """Causal self-attention over the paged KV cache, query heads in groups on fewer KV heads
    (Ainslie et al., 2023)."""

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        ops: Ops,
        *,
        bias: bool,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> None:
        super().__init__()
        assert num_heads % num_kv_heads == 0
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.ops = ops
        make = {"bias": bias, "dtype": dtype, "device": device}
        self.qkv_proj = Linear(hidden_size, (num_heads + 2 * num_kv_heads) * head_dim, ops, **make)
        self.o_proj = Linear(num_heads * head_dim, hidden_size, ops, **make)

    def forward(
        self,
        hidden: Tensor,  # [tokens, hidden]
        cos: Tensor,  # [tokens, 1, head_dim]
        sin: Tensor,  # [tokens, 1, head_dim]
        metadata: AttentionMetadata,
        kv_cache: Tensor,  # this layer's, in the backend's layout
    ) -> Tensor:  # [tokens, hidden]
        heads = self.qkv_proj(hidden).unflatten(1, (-1, self.head_dim))
        qk, v = heads.split((self.num_heads + self.num_kv_heads, self.num_kv_heads), dim=1)
        q, k = self.ops.rope(qk, cos, sin).split((self.num_heads, self.num_kv_heads), dim=1)
        self.ops.kv_write(k, v, kv_cache, metadata)
        return self.o_proj(self.ops.attention(q, kv_cache, metadata).flatten(1))
