"""Paged KV memory in plain Python lists: keys and values by slot, moved about by whole blocks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..kvcache.spec import KVCacheSpec
from .plain_weights import Vector

Pairs = Iterable[tuple[int, int]]  # of block ids, (from, to)

_POISON = 1e30  # no answer survives reading it


@dataclass(frozen=True, slots=True)
class LayerKV:
    """One layer's memory. Slot block_id x block_size + offset holds one token's vector; vectors
    are replaced and never changed, so a copy of a block may hold the same ones."""

    keys: list[list[Vector]]  # [kv_heads][slots][head_dim]
    values: list[list[Vector]]

    def read_keys(self, head: int, slots: Sequence[int]) -> list[Vector]:
        """The keys of one head, in the order of the slots."""
        own = self.keys[head]
        return [own[slot] for slot in slots]

    def read_values(self, head: int, slots: Sequence[int]) -> list[Vector]:
        own = self.values[head]
        return [own[slot] for slot in slots]


class PlainKV:
    """Blocks of all layers, and as many blocks to swap to as were asked for. What nobody has
    written is NaN, so that a read of it is loud."""

    def __init__(self, spec: KVCacheSpec, num_blocks: int, num_host_blocks: int = 0) -> None:
        self.block_size = spec.block_size
        self.head_dim = spec.head_dim
        self.layers = make_layers(spec, num_blocks)
        self.host = make_layers(spec, num_host_blocks)

    def swap_out(self, pairs: Pairs) -> None:
        """Copy blocks to host blocks."""
        self._move(self.layers, self.host, pairs)

    def swap_in(self, pairs: Pairs) -> None:
        """Copy host blocks to blocks."""
        self._move(self.host, self.layers, pairs)

    def copy(self, pairs: Pairs) -> None:
        """Copy blocks, one pair after the other: a later pair may read what an earlier wrote."""
        self._move(self.layers, self.layers, pairs)

    def poison(self, block_ids: Iterable[int]) -> None:
        """Fill given-up blocks with a huge number."""
        vectors = [[_POISON] * self.head_dim] * self.block_size
        for block_id in block_ids:
            for row in rows_of(self.layers):
                row[self._slots(block_id)] = vectors

    def _move(self, source: Sequence[LayerKV], target: Sequence[LayerKV], pairs: Pairs) -> None:
        for source_id, target_id in pairs:
            for old, new in zip(rows_of(source), rows_of(target), strict=True):
                new[self._slots(target_id)] = old[self._slots(source_id)]

    def _slots(self, block_id: int) -> slice:
        return slice(block_id * self.block_size, (block_id + 1) * self.block_size)


def make_layers(spec: KVCacheSpec, num_blocks: int) -> list[LayerKV]:
    """Memory that nobody has written, by layer."""
    unwritten = [math.nan] * spec.head_dim
    num_slots = num_blocks * spec.block_size

    def side() -> list[list[Vector]]:
        return [[unwritten] * num_slots for _ in range(spec.num_kv_heads)]

    return [LayerKV(side(), side()) for _ in range(spec.num_layers)]


def rows_of(layers: Sequence[LayerKV]) -> list[list[Vector]]:
    """The slots of each layer, side and head, one list each."""
    return [row for layer in layers for row in (*layer.keys, *layer.values)]
