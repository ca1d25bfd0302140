"""A fixed pool of KV blocks. Who reads each block, never what is inside.

A block is free, or has readers (`ref_cnt`), or is idle: nobody reads it, but the prefix cache
keeps its content. Block 0 is the null block and never handed out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from .prefix_cache import NoCache, PrefixCache


class BlockPool:
    """Blocks 1 to num_blocks - 1, handed out from the left of a queue of free ids."""

    def __init__(self, num_blocks: int, cache: PrefixCache | None = None) -> None:
        self.num_blocks = num_blocks
        self.cache = cache or NoCache()
        self.ref_cnt = [0] * num_blocks
        self.free_ids = deque(range(1, num_blocks))
        self.given_up: list[int] = []  # freed since somebody last took this list, for poisoning

    @property
    def num_free(self) -> int:
        return len(self.free_ids)

    def allocate(self, n: int) -> list[int]:
        """n free blocks from the left of the queue, in its order, one reader each.

        Raises ValueError, and changes nothing, when fewer than n are free.
        """
        if n > len(self.free_ids):
            raise ValueError(f"{n} blocks wanted, {len(self.free_ids)} free")
        block_ids = [self.free_ids.popleft() for _ in range(n)]
        for block_id in block_ids:
            self.ref_cnt[block_id] = 1
        return block_ids

    def share(self, block_ids: Sequence[int]) -> None:
        """One more reader for each block; an idle one is in use again."""
        for block_id in block_ids:
            if self.ref_cnt[block_id] == 0:
                self.cache.reuse(block_id)
            self.ref_cnt[block_id] += 1

    def release(self, block_ids: Sequence[int]) -> None:
        """One reader leaves each block, the last block first, so that no block is idle or free
        for longer than one that follows it. A block without readers goes back to the right of
        the queue, unless the prefix cache keeps it. Asserts that each block has a reader."""
        for block_id in reversed(block_ids):
            assert self.ref_cnt[block_id] > 0, f"block {block_id} is released without a reader"
            self.ref_cnt[block_id] -= 1
            if self.ref_cnt[block_id] == 0 and not self.cache.keep(block_id):
                self.give_back(block_id)

    def give_back(self, block_id: int) -> None:
        """Put a block that nobody reads and the cache forgot at the right of the queue."""
        assert self.ref_cnt[block_id] == 0, f"block {block_id} still has readers"
        self.free_ids.append(block_id)
        self.given_up.append(block_id)

    def check(self) -> None:
        free = set(self.free_ids)
        assert len(free) == len(self.free_ids), "a block is free twice"
        assert 0 not in free and self.ref_cnt[0] == 0, "the null block was handed out"
        assert all(self.ref_cnt[b] == 0 for b in free), "a free block has readers"
        num_read = sum(count > 0 for count in self.ref_cnt)
        num_idle = self.num_blocks - 1 - num_read - len(free)
        assert num_idle >= self.cache.num_evictable(), "the cache would evict a block in use"
        if isinstance(self.cache, NoCache):
            assert num_idle == 0, f"{num_idle} blocks are nobody's"
