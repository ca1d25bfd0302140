"""The decoder: token ids, positions and a KV cache in, one vector a token out, scores on demand.

One file for every model; what sets one apart from another is read from `ModelConfig`. Parameters
bear Hugging Face's names and are empty until `models/loader.py` fills them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..checkpoint.model_config import ModelConfig
from ..kernels import AttentionMetadata, Ops
from ..layers.activation import GatedMLP
from ..layers.attention import Attention
from ..layers.embedding import Embedding
from ..layers.linear import Linear
from ..layers.norm import RMSNorm
from ..layers.rotary import RotaryTable


class DecoderLayer(nn.Module):
    """Attention, then the feed-forward part, each added to what came in."""

    def __init__(self, config: ModelConfig, layer: int, ops: Ops, **make) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, ops, **make)
        self.self_attn = Attention(config, layer, ops, **make)
        self.post_attention_layernorm = RMSNorm(
            config.hidden_size, config.rms_norm_eps, ops, **make
        )
        self.mlp = GatedMLP(
            config.hidden_size, config.intermediate_size, ops, bias=config.mlp_bias, **make
        )

    def forward(
        self,
        hidden: Tensor,  # [tokens, hidden]
        cos: Tensor,
        sin: Tensor,
        metadata: AttentionMetadata,
        kv_cache: Tensor,
    ) -> Tensor:  # [tokens, hidden]
        normed = self.input_layernorm(hidden)
        hidden = hidden + self.self_attn(normed, cos, sin, metadata, kv_cache)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class Decoder(nn.Module):
    """Everything below the head. (A module of its own because checkpoints name it: "model.")"""

    def __init__(self, config: ModelConfig, ops: Ops, **make) -> None:
        super().__init__()
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size, **make)
        self.layers = nn.ModuleList(
            DecoderLayer(config, layer, ops, **make) for layer in range(config.num_layers)
        )
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, ops, **make)
        self.rotary = RotaryTable(config, **make)
        self.windows = config.windows
        self.ops = ops

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        metadata: AttentionMetadata,
        kv_cache: Sequence[Tensor],
    ) -> Tensor:
        hidden = self.embed_tokens(token_ids)
        cos, sin = self.rotary.look_up(positions)
        views = {
            window: metadata if window is None else self.ops.within_window(metadata, window)
            for window in set(self.windows)
        }
        for layer, window, layer_cache in zip(self.layers, self.windows, kv_cache, strict=True):
            hidden = layer(hidden, cos, sin, views[window], layer_cache)
        return self.norm(hidden)


class Transformer(nn.Module):
    """A decoder and its head. Whoever calls it holds the KV cache and runs it in inference mode."""

    # How the loader fills a fused product: the rows of these parts, in this order.
    stacked: ClassVar[dict[str, tuple[str, ...]]] = {
        "qkv_proj": ("q_proj", "k_proj", "v_proj"),
        "gate_up_proj": ("gate_proj", "up_proj"),
    }

    def __init__(
        self,
        config: ModelConfig,
        ops: Ops,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        make = {"dtype": dtype, "device": device}
        self.model = Decoder(config, ops, **make)
        self.ops = ops
        if config.tie_word_embeddings:
            self.lm_head = None
        else:
            self.lm_head = Linear(config.hidden_size, config.vocab_size, ops, **make)
        self.tied_head: Any = None  # the embedding, as Ops.pack_linear made it

    def pack(self, room: bool = True) -> None:
        """The weights are loaded: lay every product's out as the backend wants it. room: whether
        memory holds them twice."""
        for module in self.modules():
            if isinstance(module, Linear):
                module.pack(room)
        if self.lm_head is None:
            self.tied_head = self.ops.pack_linear(self.model.embed_tokens.weight, room)

    def forward(
        self,
        token_ids: Tensor,  # [tokens] int64
        positions: Tensor,  # [tokens] int64
        metadata: AttentionMetadata,  # as Ops.prepare returned it
        kv_cache: Sequence[Tensor],  # by layer; this step's keys and values are written into it
    ) -> Tensor:  # [tokens, hidden]
        return self.model(token_ids, positions, metadata, kv_cache)

    def compute_logits(self, hidden: Tensor) -> Tensor:  # [n, hidden] -> [n, vocab]
        """The scores of every token id; hidden: only the tokens that need them."""
        if self.lm_head is not None:
            return self.lm_head(hidden)
        weight = self.model.embed_tokens.weight if self.tied_head is None else self.tied_head
        return self.ops.linear(hidden, weight)
