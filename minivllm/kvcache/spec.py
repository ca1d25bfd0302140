"""What one KV group keeps per token, and so how many blocks a memory holds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KVCacheSpec:
    """Layers that keep a key and a value row per token, in blocks of the same size."""

    block_size: int  # tokens in a block
    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype_bytes: int  # bytes of one number

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token takes in all layers: K and V (2) x layers x KV heads x head size
        x bytes of a number. Llama 3 8B in bfloat16: 131,072."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.dtype_bytes

    @property
    def bytes_per_block(self) -> int:
        return self.bytes_per_token * self.block_size

    def num_blocks(self, memory_bytes: int) -> int:
        """How many whole blocks fit into memory_bytes, the null block among them."""
        return memory_bytes // self.bytes_per_block
