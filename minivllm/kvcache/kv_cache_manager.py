"""Where each request's KV lives: its block table, grown from the pool, shared through the cache.

Says whether there is room, never who should have it. One KV group today: block ids are its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..request import Request
from .block_pool import BlockPool
from .block_table import BlockTable, blocks_needed
from .prefix_cache import NoCache, PrefixCache


class KVCacheManager:
    """Block tables by request id."""

    def __init__(
        self, num_blocks: int, block_size: int, prefix_cache: PrefixCache | None = None
    ) -> None:
        self.block_size = block_size
        self.cache = prefix_cache or NoCache()
        self.pool = BlockPool(num_blocks, self.cache)
        self.tables: dict[str, BlockTable] = {}

    @property
    def max_tokens(self) -> int:
        """Tokens that fit when one request has the whole pool."""
        return (self.pool.num_blocks - 1) * self.block_size

    @property
    def num_free_blocks(self) -> int:
        """Blocks that can be handed out now, those the cache would give up among them."""
        return self.pool.num_free + self.cache.num_evictable()

    def get_computed_blocks(self, request: Request) -> list[int]:
        """Cached blocks that hold the start of the request's tokens, never its last token: at
        least one token is left to compute, since only computing gives the next one's scores."""
        if not request.reads_prefix_cache:
            return []
        return self.cache.match_prefix(request.token_ids[:-1], request.extra_key)

    def attach(self, request: Request, block_ids: Sequence[int]) -> None:
        """Start the request's table with cached blocks; their tokens count as computed."""
        assert request.request_id not in self.tables and request.num_planned_tokens == 0
        self.pool.share(block_ids)
        table = self.tables[request.request_id] = BlockTable()
        table.extend(block_ids)
        table.num_published = len(block_ids)
        request.num_computed_tokens = len(block_ids) * self.block_size

    def allocate_slots(self, request: Request, num_new_tokens: int) -> list[int] | None:
        """Grow the table so that it also holds the next num_new_tokens tokens.

        Returns the new block ids, often none; or None, and nothing is changed, when there are
        not enough blocks.
        """
        table = self.tables[request.request_id]
        num_tokens = request.num_planned_tokens + num_new_tokens
        num_new_blocks = blocks_needed(len(table), num_tokens, self.block_size)
        if num_new_blocks > self.num_free_blocks:
            return None
        block_ids = self._take_blocks(num_new_blocks)
        table.extend(block_ids)
        return block_ids

    def fits_whole(self, request: Request) -> bool:
        """Whether the blocks at hand hold all the tokens that the request has now."""
        table = self.tables[request.request_id]
        missing = blocks_needed(len(table), request.num_tokens, self.block_size)
        return missing <= self.num_free_blocks

    def publish(self, request: Request) -> None:
        """Offer the blocks that are full of computed tokens to the prefix cache. Where it holds
        the same content already, the request reads that block and gives its duplicate back."""
        table = self.tables[request.request_id]
        num_full = request.num_computed_tokens // self.block_size
        if num_full == table.num_published:
            return
        table.num_published = num_full
        block_ids = table.block_ids[:num_full]
        tokens = request.token_ids[: num_full * self.block_size]
        canonical = self.cache.insert(tokens, request.extra_key, block_ids)
        for index, (own, cached) in enumerate(zip(block_ids, canonical, strict=True)):
            if own != cached:
                self.pool.share([cached])
                table.replace(index, cached)
                self.pool.release([own])

    def free(self, request: Request) -> None:
        """The request gives up all its blocks, the last one first."""
        self.pool.release(self.tables.pop(request.request_id).block_ids)

    def take_freed_blocks(self) -> list[int]:
        """Blocks given up since the last call: what they hold may no longer be read."""
        freed, self.pool.given_up = self.pool.given_up, []
        return freed

    def _take_blocks(self, n: int) -> list[int]:
        for block_id in self.cache.evict(max(0, n - self.pool.num_free)):
            self.pool.give_back(block_id)
        return self.pool.allocate(n)

    def check(self) -> None:
        """Every reader that the pool counts is a table, and the other way round."""
        self.pool.check()
        self.cache.check()
        readers = [0] * self.pool.num_blocks
        for table in self.tables.values():
            table.check()
            for block_id in table.block_ids:
                readers[block_id] += 1
        assert readers == self.pool.ref_cnt, "readers and reference counts differ"
