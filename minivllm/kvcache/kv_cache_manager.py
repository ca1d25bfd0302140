"""Where each request's KV lives: its block table, grown from the pool, shared through the cache.

Says whether there is room, never who should have it. One KV group today: block ids are its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..request import Request
from .block_pool import BlockPool
from .block_table import BlockTable, blocks_needed
from .host_blocks import HostBlocks
from .moves import Moves
from .prefix_cache import NoCache, PrefixCache


class KVCacheManager:
    """Block tables by request id, and the moves of whole blocks that the next plan must order."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        prefix_cache: PrefixCache | None = None,
        num_host_blocks: int = 0,
    ) -> None:
        self.block_size = block_size
        self.cache = prefix_cache or NoCache()
        self.pool = BlockPool(num_blocks, self.cache)
        self.host = HostBlocks(num_host_blocks)
        self.tables: dict[str, BlockTable] = {}
        self.moves = Moves()
        self.evicted: list[int] = []  # since somebody last took this list

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
        """Grow the table so that it also holds the next num_new_tokens tokens, those after the
        ones that are planned already (computed, or on their way).

        Returns the new block ids, often none; or None, and nothing is changed, when there are
        not enough blocks.
        """
        table = self.tables[request.request_id]
        num_tokens = request.num_planned_tokens + num_new_tokens
        num_new_blocks = blocks_needed(len(table.block_ids), num_tokens, self.block_size)
        if num_new_blocks == 0:
            return []
        if num_new_blocks > self.num_free_blocks:
            return None
        block_ids = self._take_blocks(num_new_blocks)
        table.extend(block_ids)
        return block_ids

    def can_fork(self, parent: Request, child: Request) -> bool:
        """Whether the parent owns blocks with all tokens of the child but the last, and has
        offered its full ones to the cache. (One that was just swapped in has not: it may still
        have to take over other blocks, which its children would miss.)"""
        table = self.tables.get(parent.request_id)
        return (
            table is not None
            and parent.num_computed_tokens >= child.num_tokens - 1
            and table.num_published == parent.num_computed_tokens // self.block_size
        )

    def fork(self, parent: Request, child: Request) -> None:
        """Start the child's table with the parent's blocks that hold all tokens of the child but
        the last, which it computes itself. The last of these blocks, perhaps partly filled, is
        shared too, until somebody writes into it.

        `can_fork` must hold, and the tokens must be the same.
        """
        num_tokens = child.num_tokens - 1
        assert self.can_fork(parent, child) and child.num_planned_tokens == 0
        assert parent.token_ids[:num_tokens] == child.token_ids[:num_tokens]
        source = self.tables[parent.request_id]
        table = self.tables[child.request_id] = BlockTable()
        table.extend(source.block_ids[: -(-num_tokens // self.block_size)])
        table.num_published = min(source.num_published, len(table))
        self.pool.share(table.block_ids)
        child.num_computed_tokens = num_tokens

    def copy_if_shared(self, request: Request) -> bool:
        """Make the block that the request writes into next its own: if it has other readers, or
        the prefix cache knows it, the request gets a copy, to be made before anything is written,
        and leaves the original. False, and nothing is changed, when no block is left for it."""
        if not self._writes_into_shared(request):
            return True
        if self.num_free_blocks == 0:
            return False
        table = self.tables[request.request_id]
        index = request.num_planned_tokens // self.block_size
        shared = table.block_ids[index]
        (own,) = self._take_blocks(1)
        table.replace(index, own)
        table.num_published = min(table.num_published, index)
        self.moves.copies.append((shared, own))
        self.pool.release([shared])
        return True

    def fits(self, request: Request, num_tokens: int, num_spare: int = 0) -> bool:
        """Whether the blocks at hand, num_spare of them left over, let the request grow, or come
        back from host memory, to num_tokens tokens."""
        num_free = self.num_free_blocks - num_spare
        if request.request_id not in self.tables:
            return blocks_needed(0, num_tokens, self.block_size) <= num_free
        num_owned = len(self.tables[request.request_id])
        missing = blocks_needed(num_owned, num_tokens, self.block_size)
        return missing + self._writes_into_shared(request) <= num_free

    def is_full(self, request: Request) -> bool:
        """Whether the request's blocks have no slot left, so that its next token needs one."""
        table = self.tables[request.request_id]
        return request.num_planned_tokens == len(table) * self.block_size

    def swap_out(self, request: Request) -> bool:
        """Move the request's computed blocks to host memory and give all its blocks up. False,
        and nothing is changed, when host memory has no room."""
        num_blocks = -(-request.num_computed_tokens // self.block_size)
        host_ids = self.host.store(request.request_id, num_blocks)
        if host_ids is None:
            return False
        # A copy that this very plan ordered is not made yet when blocks are swapped out.
        source_of = {target: source for source, target in self.moves.copies}
        for block_id, host_id in zip(self.tables[request.request_id].block_ids, host_ids):
            self.moves.swap_out.append((source_of.get(block_id, block_id), host_id))
        self.free(request)
        return True

    def is_swapped_out(self, request: Request) -> bool:
        return request.request_id in self.host.tables

    def swap_in(self, request: Request) -> None:
        """Start the request's table with blocks that its KV is brought back to. There must be
        enough: `num_free_blocks` is asked before."""
        host_ids = self.host.take_back(request.request_id)
        block_ids = self._take_blocks(len(host_ids))
        table = self.tables[request.request_id] = BlockTable()
        table.extend(block_ids)
        self.moves.swap_in += zip(host_ids, block_ids, strict=True)

    def publish(self, request: Request) -> None:
        """Offer the blocks that are full of computed tokens to the prefix cache. Where it holds
        the same content already, the request reads that block and gives its duplicate back."""
        table = self.tables[request.request_id]
        num_full = request.num_computed_tokens // self.block_size
        if num_full == table.num_published:
            return
        table.num_published = num_full
        block_ids = table.block_ids[:num_full]
        canonical = self.cache.insert(request.token_ids, request.extra_key, block_ids)
        if canonical == block_ids:
            return
        for index, (own, cached) in enumerate(zip(block_ids, canonical, strict=True)):
            if own != cached:
                self.pool.share([cached])
                table.replace(index, cached)
                self.pool.release([own])

    def free(self, request: Request) -> None:
        """The request gives up all its blocks, the last one first."""
        block_ids = self.tables.pop(request.request_id).block_ids
        self.pool.release(block_ids)
        if self.moves.copies or self.moves.swap_in:
            self.moves.forget([b for b in block_ids if self.pool.ref_cnt[b] == 0])

    def forget(self, request: Request) -> None:
        """A request has ended: nothing of it is kept, wherever it is."""
        if request.request_id in self.tables:
            self.free(request)
        elif self.is_swapped_out(request):
            self.host.take_back(request.request_id)

    def take_moves(self) -> Moves:
        """The moves of blocks since the last call."""
        moves, self.moves = self.moves, Moves()
        return moves

    def take_freed_blocks(self) -> list[int]:
        """Blocks given up since the last call: what they hold may no longer be read."""
        freed, self.pool.given_up = self.pool.given_up, []
        return freed

    def take_evicted_blocks(self) -> list[int]:
        """Blocks that the prefix cache had to forget since the last call."""
        evicted, self.evicted = self.evicted, []
        return evicted

    def _take_blocks(self, n: int) -> list[int]:
        short = n - self.pool.num_free
        if short > 0:
            evicted = self.cache.evict(short)
            self.evicted += evicted
            for block_id in evicted:
                self.pool.give_back(block_id)
        return self.pool.allocate(n)

    def _writes_into_shared(self, request: Request) -> bool:
        """Whether the block that the next token goes into is read by others, or known to the
        prefix cache."""
        table = self.tables[request.request_id]
        index = request.num_planned_tokens // self.block_size
        if index >= len(table.block_ids):
            return False
        return index < table.num_published or self.pool.ref_cnt[table.block_ids[index]] > 1

    def check(self) -> None:
        """Every reader that the pool counts is a table, and the other way round."""
        self.pool.check()
        self.cache.check()
        self.host.check()
        assert not self.tables.keys() & self.host.tables.keys()
        readers = [0] * self.pool.num_blocks
        for table in self.tables.values():
            table.check()
            for block_id in table.block_ids:
                readers[block_id] += 1
        assert readers == self.pool.ref_cnt, "readers and reference counts differ"
