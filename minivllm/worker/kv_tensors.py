"""The KV memory of all layers, moved about by whole blocks. Never looks inside a block."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from ..kernels import Ops
from ..kvcache.spec import KVCacheSpec


class KVTensors:
    """One tensor [layers, *Ops.kv_cache_shape(...)], and per layer a view of it.

    debug: what nobody has written is NaN, so that a read of it is loud.
    """

    def __init__(
        self,
        spec: KVCacheSpec,
        num_blocks: int,
        ops: Ops,
        *,
        dtype: torch.dtype,
        device: torch.device | str,
        debug: bool = False,
    ) -> None:
        block_shape = ops.kv_cache_shape(
            num_blocks, spec.block_size, spec.num_kv_heads, spec.head_dim
        )
        assert block_shape[0] == num_blocks
        self.memory = torch.zeros((spec.num_layers, *block_shape), dtype=dtype, device=device)
        assert self.memory.nbytes == num_blocks * spec.bytes_per_block
        if debug:
            self.memory.fill_(torch.nan)
        self.layers: tuple[Tensor, ...] = self.memory.unbind(0)

    def copy(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Copy blocks, (source, target), one pair after the other."""
        for source, target in pairs:
            self.memory[:, target] = self.memory[:, source]

    def poison(self, block_ids: Sequence[int]) -> None:
        """Fill given-up blocks with a number so large that no answer survives reading it."""
        if block_ids:
            huge = 3e4 if self.memory.dtype == torch.float16 else 1e30
            self.memory[:, list(block_ids)] = huge
