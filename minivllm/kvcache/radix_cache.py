"""A prefix cache as a tree: each node a run of blocks that so far nothing has parted.

What hits and what goes is as with the hash table. The tree adds order: one walk along the
prompt, and whole subtrees that can be seen. After SGLang's `radix_cache.py`, by blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush


@dataclass(eq=False, slots=True)
class Node:
    """A run of blocks: `tokens` are theirs, one block after the other."""

    parent: Node | None
    first: int  # how many blocks stand before the run, from the start of the prompt
    extra_key: tuple = ()
    tokens: list[int] = field(default_factory=list)
    block_ids: list[int] = field(default_factory=list)
    children: dict[tuple, Node] = field(default_factory=dict)  # by extra_key and first block


@dataclass(eq=False, slots=True)
class CachedBlock:
    """What is known of a block. Times are counts of a logical clock."""

    node: Node
    stored_at: int
    num_uses: int = 1  # by who stored it, and whenever it was taken up again
    idle_since: int | None = None  # None: somebody reads it
    is_queued: bool = False


# Of the idle ends of the tree, the one with the lowest rank goes first.
EVICTION = {
    "lru": lambda block: block.idle_since,
    "lfu": lambda block: (block.num_uses, block.idle_since),
    "fifo": lambda block: block.stored_at,
}


class RadixCache:
    """The tree, its blocks by id, and a heap of those that could go next."""

    def __init__(
        self, block_size: int, eviction: str = "lru", record_events: bool = False
    ) -> None:
        if eviction not in EVICTION:
            raise ValueError(f"eviction {eviction!r} is none of {', '.join(EVICTION)}")
        self.block_size = block_size
        self.record_events = record_events
        self.root = Node(None, 0)
        self._rank = EVICTION[eviction]
        self._blocks: dict[int, CachedBlock] = {}
        self._num_idle = 0
        self._clock = 0
        # (rank, block id), a block at most once. The rank may have risen since, and the block may
        # be no end any more or be read again: seen when its turn comes.
        self._queue: list[tuple] = []
        self._banned: set[int] = set()  # cleared while somebody read them
        self._events: list[tuple] = []

    def match_prefix(self, tokens: Sequence[int], extra_key: tuple) -> list[int]:
        """Block ids of the longest chain of full cached blocks at the start of `tokens`.

        Walks down from the root, run by run; the walk may end inside a run. Changes nothing:
        splits no node and touches no recency.
        """
        tokens = list(tokens)
        block_ids: list[int] = []
        node = self.root
        while child := node.children.get(self._child_key(tokens, len(block_ids), extra_key)):
            num_equal = self._num_equal_blocks(child, tokens)
            block_ids += child.block_ids[:num_equal]
            if num_equal < len(child.block_ids):
                break
            node = child
        return block_ids

    def insert(
        self, tokens: Sequence[int], extra_key: tuple, block_ids: Sequence[int]
    ) -> list[int]:
        """Publish full blocks: `block_ids[i]` holds the KV of the i-th block of `tokens`.

        Returns the canonical block of each: the one already cached for the same tokens after the
        same blocks, else yours, which is cached from now on and has readers. Starts after the
        last of block_ids that is cached: what stands before it is canonical. Splits the node in
        whose middle the tokens part from it. Returns block_ids, and caches nothing, if the first
        was cleared while it was read: its KV is outdated.
        """
        canonical = list(block_ids)
        if canonical and canonical[0] in self._banned:
            return canonical
        num_placed = len(canonical)
        while num_placed and canonical[num_placed - 1] not in self._blocks:
            num_placed -= 1
        node = self._blocks[canonical[num_placed - 1]].node if num_placed else self.root
        while num_placed < len(canonical):
            index = num_placed - node.first
            if index < len(node.block_ids):
                if self._block(tokens, num_placed) == tuple(self._block(node.tokens, index)):
                    canonical[num_placed] = node.block_ids[index]
                    num_placed += 1
                else:
                    node = self._split(node, index)
            elif child := node.children.get(self._child_key(tokens, num_placed, extra_key)):
                node = child
            else:
                self._append(node, tokens, extra_key, canonical[num_placed:])
                break
        return canonical

    def _split(self, node: Node, num_blocks: int) -> Node:
        """Part a node after its first num_blocks blocks, which go to a new node above it.

        Returns the new node. 0 < num_blocks < len(node.block_ids). The old one keeps the rest of
        its blocks, its children, and its place in all other books.
        """
        cut = num_blocks * self.block_size
        above = Node(node.parent, node.first, node.extra_key, node.tokens[:cut])
        above.block_ids = node.block_ids[:num_blocks]
        node.parent.children[self._child_key(above.tokens, 0, node.extra_key)] = above
        node.parent = above
        node.first += num_blocks
        node.tokens = node.tokens[cut:]
        node.block_ids = node.block_ids[num_blocks:]
        above.children[self._child_key(node.tokens, 0, node.extra_key)] = node
        for block_id in above.block_ids:
            self._blocks[block_id].node = above
        return above
