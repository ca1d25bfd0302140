"""The KV memory of all layers, moved about by whole blocks. Never looks inside a block."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from ..kernels import Ops
from ..kvcache.spec import KVCacheSpec

Pairs = Iterable[tuple[int, int]]  # of block ids, (from, to)


class KVTensors:
    """One tensor [layers, *Ops.kv_cache_shape(...)], per layer a view of it, and as many blocks
    in host memory as were asked for.

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
        num_host_blocks: int = 0,
        debug: bool = False,
    ) -> None:
        block_shape = ops.kv_cache_shape(
            num_blocks, spec.block_size, spec.num_kv_heads, spec.head_dim
        )
        assert block_shape[0] == num_blocks
        # Empty, not zeros: the operating system hands out pages when they are first written, and
        # whatever stands in a slot that nobody wrote is masked when it is read.
        self.memory = torch.empty((spec.num_layers, *block_shape), dtype=dtype, device=device)
        ops.place([self.memory])
        assert self.memory.nbytes == num_blocks * spec.bytes_per_block
        # Blocks first: all layers of a block lie together, so one transfer moves it. Pinned memory
        # lets a CUDA device make the transfer while the host goes on.
        self.host = torch.empty(
            (num_host_blocks, spec.num_layers, *block_shape[1:]),
            dtype=dtype,
            pin_memory=self.memory.is_cuda and num_host_blocks > 0,
        )
        if debug:
            self.memory.fill_(torch.nan)
            self.host.fill_(torch.nan)
        self.layers: tuple[Tensor, ...] = self.memory.unbind(0)

    def swap_out(self, pairs: Pairs) -> None:
        """Copy blocks to host blocks."""
        for block_id, host_id in pairs:
            self.host[host_id].copy_(self.memory[:, block_id], non_blocking=True)

    def swap_in(self, pairs: Pairs) -> None:
        """Copy host blocks to blocks. On a CUDA device all transfers go through one stream, so
        what was swapped out before has arrived."""
        for host_id, block_id in pairs:
            self.memory[:, block_id].copy_(self.host[host_id], non_blocking=True)

    def copy(self, pairs: Pairs) -> None:
        """Copy blocks, one pair after the other: a later pair may read what an earlier wrote."""
        for source, target in pairs:
            self.memory[:, target] = self.memory[:, source]

    def poison(self, block_ids: Sequence[int]) -> None:
        """Fill given-up blocks with a number so large that no answer survives reading it."""
        if block_ids:
            huge = 3e4 if self.memory.dtype == torch.float16 else 1e30
            self.memory[:, list(block_ids)] = huge
