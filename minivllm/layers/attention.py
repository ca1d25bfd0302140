"""The attention half of a decoder layer: tokens look back at what their own row has said."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..checkpoint.model_config import ModelConfig
from ..kernels import AttentionMetadata, Ops
from .linear import Linear
from .norm import RMSNorm


class Attention(nn.Module):
    """Causal self-attention over the paged KV cache, query heads in groups on fewer KV heads
    (Ainslie et al., 2023)."""

    def __init__(
        self,
        config: ModelConfig,
        layer: int,
        ops: Ops,
        *,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> None:
        super().__init__()
        make = {"dtype": dtype, "device": device}
        self.num_heads = config.num_heads
        self.num_kv_heads = config.num_kv_heads
        self.head_dim = config.head_dim
        self.uses_rope = layer not in config.layers_without_rope
        self.ops = ops
        num_out = (self.num_heads + 2 * self.num_kv_heads) * self.head_dim
        self.qkv_proj = Linear(config.hidden_size, num_out, ops, bias=config.qkv_bias, **make)
        num_in = self.num_heads * self.head_dim
        self.o_proj = Linear(num_in, config.hidden_size, ops, bias=config.o_bias, **make)
        self.q_norm = self.k_norm = None
        if config.qk_norm:
            self.q_norm = RMSNorm(self.head_dim, config.rms_norm_eps, ops, **make)
            self.k_norm = RMSNorm(self.head_dim, config.rms_norm_eps, ops, **make)

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
        if self.q_norm is not None:
            q, k = qk.split((self.num_heads, self.num_kv_heads), dim=1)
            qk = torch.cat((self.q_norm(q), self.k_norm(k)), dim=1)
        if self.uses_rope:
            qk = self.ops.rope(qk, cos, sin)
        q, k = qk.split((self.num_heads, self.num_kv_heads), dim=1)
        self.ops.kv_write(k, v, kv_cache, metadata)
        return self.o_proj(self.ops.attention(q, kv_cache, metadata).flatten(1))
