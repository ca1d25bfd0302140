"""What a prefix cache is: an index from tokens to the blocks that already hold their KV.

It knows contents, never readers: `BlockPool` counts those. Block granular; every call names whole
blocks. `NoCache` remembers nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class PrefixCache(Protocol):
    """The contract. A block here is either read by somebody or idle; only idle blocks without a
    cached child may be evicted, the longest idle first.

    Whoever reads a block reads all blocks before it, takes them up head first and leaves them
    tail first. So what follows an idle block is idle too, and for at least as long.
    """

    def match_prefix(self, tokens: Sequence[int], extra_key: tuple) -> list[int]:
        """Block ids of the longest chain of full cached blocks at the start of `tokens`.
        Changes nothing, not even recency: policies may ask as often as they like."""

    def insert(
        self, tokens: Sequence[int], extra_key: tuple, block_ids: Sequence[int]
    ) -> list[int]:
        """Publish full blocks, `block_ids[i]` holding the KV of the i-th block of tokens; tokens
        past the last block are not looked at. Returns the canonical block of each: yours if new,
        the cached one if the content was there."""

    def keep(self, block_id: int) -> bool:
        """The last reader left. True: the content stays cached and the block idle. False: it is
        not cached, or not any more, and the block is nobody's."""

    def reuse(self, block_id: int) -> None:
        """An idle block has a reader again."""

    def num_evictable(self) -> int:
        """How many blocks `evict` could return now."""

    def evict(self, n: int) -> list[int]:
        """Forget n idle blocks, oldest first, child before parent, and return them in this
        order. ValueError, and nothing changed, if fewer can go."""

    def clear(self) -> list[int]:
        """Forget all content; returns the idle blocks, which are now nobody's. Blocks with
        readers stay with them and never come back into the cache while these read them."""

    def take_events(self) -> tuple[tuple, ...]:
        """What happened since the last call, for a cache made with `record_events=True`:
        ("stored", block id, parent's block id or None, tokens, extra_key), ("removed", block id)
        and ("cleared",)."""

    def check(self) -> None: ...


class NoCache:
    """Every prompt is new. Made like the others; its arguments change nothing."""

    def __init__(self, block_size: int = 1, record_events: bool = False) -> None:
        pass

    def match_prefix(self, tokens: Sequence[int], extra_key: tuple) -> list[int]:
        return []

    def insert(
        self, tokens: Sequence[int], extra_key: tuple, block_ids: Sequence[int]
    ) -> list[int]:
        return list(block_ids)

    def keep(self, block_id: int) -> bool:
        return False

    def reuse(self, block_id: int) -> None:
        raise AssertionError("nothing is ever idle here")

    def num_evictable(self) -> int:
        return 0

    def evict(self, n: int) -> list[int]:
        if n > 0:
            raise ValueError(f"{n} blocks to evict, none cached")
        return []

    def clear(self) -> list[int]:
        return []

    def take_events(self) -> tuple[tuple, ...]:
        return ()

    def check(self) -> None:
        pass
