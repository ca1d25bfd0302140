"""A prefix cache as a tree: each node a run of blocks that so far nothing has parted.

What hits and what goes is as with the hash table. The tree adds order: one walk along the
prompt, and whole subtrees that can be seen. After SGLang's `radix_cache.py`, by blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count, pairwise


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

    def __init__(self, block_size: int, eviction: str = "lru", record_events: bool = False) -> None:
        if eviction not in EVICTION:
            raise ValueError(f"eviction {eviction!r} is none of {', '.join(EVICTION)}")
        self.block_size = block_size
        self.record_events = record_events
        self.root = Node(None, 0)
        self._rank = EVICTION[eviction]
        self._blocks: dict[int, CachedBlock] = {}
        self._num_idle = 0
        self._clock = count()
        # (rank, block id), a block at most once. Since then its rank may have risen, or the block
        # may be read again or be no end any more: seen when its turn comes.
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
        num_placed = self._num_known(canonical, tokens)
        node = self._blocks[canonical[num_placed - 1]].node if num_placed else self.root
        while num_placed < len(canonical):
            index = num_placed - node.first
            if index < len(node.block_ids):
                if self._block(tokens, num_placed) == self._block(node.tokens, index):
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
        assert 0 < num_blocks < len(node.block_ids)
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

    def keep(self, block_id: int) -> bool:
        self._banned.discard(block_id)
        block = self._blocks.get(block_id)
        if block is None:
            return False
        block.idle_since = next(self._clock)
        self._num_idle += 1
        self._offer(block_id)
        return True

    def reuse(self, block_id: int) -> None:
        block = self._blocks[block_id]
        assert block.idle_since is not None, f"block {block_id} is read already"
        block.idle_since = None
        block.num_uses += 1
        self._num_idle -= 1

    def num_evictable(self) -> int:
        return self._num_idle  # whatever follows an idle block is idle

    def evict(self, n: int) -> list[int]:
        """Forget n idle blocks, one end of the tree after the other, and return them in this
        order: of the ends, always the one of the lowest rank; never a block with a reader.

        Raises ValueError, and changes nothing, when fewer than n are idle.
        """
        if n > self._num_idle:
            raise ValueError(f"{n} blocks to evict, {self._num_idle} idle")
        block_ids: list[int] = []
        while len(block_ids) < n:
            rank, block_id = heappop(self._queue)
            block = self._blocks[block_id]
            block.is_queued = False
            if self._is_idle_end(block_id) and self._rank(block) == rank:
                self._remove(block_id)
                block_ids.append(block_id)
            else:
                self._offer(block_id)
        return block_ids

    def clear(self) -> list[int]:
        idle = [b for b, block in self._blocks.items() if block.idle_since is not None]
        self._banned |= self._blocks.keys() - set(idle)
        self.root = Node(None, 0)
        self._blocks.clear()
        self._queue.clear()
        self._num_idle = 0
        if self.record_events:
            self._events.append(("cleared",))
        return idle

    def take_events(self) -> tuple[tuple, ...]:
        events, self._events = tuple(self._events), []
        return events

    def _block(self, tokens: Sequence[int], index: int) -> tuple[int, ...]:
        return tuple(tokens[index * self.block_size : (index + 1) * self.block_size])

    def _child_key(self, tokens: Sequence[int], index: int, extra_key: tuple) -> tuple:
        """Under what a node is filed whose first block is the index-th of these tokens."""
        return extra_key, self._block(tokens, index)

    def _num_known(self, block_ids: list[int], tokens: Sequence[int]) -> int:
        """How many of block_ids there are up to the last one that is cached."""
        num = len(block_ids)
        while num and block_ids[num - 1] not in self._blocks:
            num -= 1
        if num:
            node = self._blocks[block_ids[num - 1]].node
            same = self._block(node.tokens, num - 1 - node.first) == self._block(tokens, num - 1)
            assert same, f"block {block_ids[num - 1]} is cached with other tokens"
        return num

    def _num_equal_blocks(self, node: Node, tokens: list[int]) -> int:
        """How many of a node's blocks the tokens have in its place. The first is known to be."""
        start = node.first * self.block_size
        if tokens[start : start + len(node.tokens)] == node.tokens:
            return len(node.block_ids)
        num_equal = 1
        while self._block(tokens, node.first + num_equal) == self._block(node.tokens, num_equal):
            num_equal += 1
        return num_equal

    def _append(
        self, node: Node, tokens: Sequence[int], extra_key: tuple, block_ids: list[int]
    ) -> None:
        """Cache new blocks after a node's last: in it if it is a leaf, else in a new child."""
        first = node.first + len(node.block_ids)
        new = list(tokens[first * self.block_size : (first + len(block_ids)) * self.block_size])
        assert len(new) == len(block_ids) * self.block_size, "only full blocks are cached"
        parent_id = node.block_ids[-1] if node.block_ids else None
        if node is self.root or node.children:
            child = Node(node, first, extra_key)
            node.children[self._child_key(new, 0, extra_key)] = child
            node = child
        node.tokens += new
        node.block_ids += block_ids
        for index, block_id in enumerate(block_ids):
            assert block_id not in self._blocks, f"block {block_id} is cached already"
            self._blocks[block_id] = CachedBlock(node, next(self._clock))
            if self.record_events:
                block = self._block(new, index)
                self._events.append(("stored", block_id, parent_id, block, extra_key))
                parent_id = block_id

    def _is_idle_end(self, block_id: int) -> bool:
        block = self._blocks[block_id]
        is_end = not block.node.children and block.node.block_ids[-1] == block_id
        return is_end and block.idle_since is not None

    def _offer(self, block_id: int) -> None:
        """Queue a block if it could go next and stands in the queue not yet."""
        block = self._blocks[block_id]
        if self._is_idle_end(block_id) and not block.is_queued:
            heappush(self._queue, (self._rank(block), block_id))
            block.is_queued = True

    def _remove(self, block_id: int) -> None:
        """Take the last block off a leaf; the block before it may now be an end."""
        node = self._blocks.pop(block_id).node
        self._num_idle -= 1
        if len(node.block_ids) == 1:
            del node.parent.children[self._child_key(node.tokens, 0, node.extra_key)]
            node = node.parent
        else:
            del node.tokens[-self.block_size :]
            node.block_ids.pop()
        if node.block_ids:
            self._offer(node.block_ids[-1])
        if self.record_events:
            self._events.append(("removed", block_id))

    def _nodes(self) -> Iterator[Node]:
        """All nodes but the root."""
        waiting = list(self.root.children.values())
        while waiting:
            node = waiting.pop()
            yield node
            waiting += node.children.values()

    def check(self) -> None:
        """Each block is in one node, each idle end queued, nothing read follows an idle block."""
        block_ids = [b for node in self._nodes() for b in node.block_ids]
        assert len(block_ids) == len(self._blocks) and set(block_ids) == self._blocks.keys()
        assert not self._banned & self._blocks.keys()
        for node in self._nodes():
            self._check_node(node)
        blocks = self._blocks.items()
        assert self._num_idle == sum(block.idle_since is not None for _, block in blocks)
        queued = sorted(block_id for _, block_id in self._queue)
        assert queued == sorted(block_id for block_id, block in blocks if block.is_queued)
        for rank, block_id in self._queue:
            block = self._blocks[block_id]
            assert block.idle_since is None or rank <= self._rank(block)

    def _check_node(self, node: Node) -> None:
        parent = node.parent
        assert len(node.tokens) == len(node.block_ids) * self.block_size > 0
        assert node.first == parent.first + len(parent.block_ids)
        assert parent.children[self._child_key(node.tokens, 0, node.extra_key)] is node
        assert parent is self.root or parent.extra_key == node.extra_key
        chain = [self._blocks[b] for b in parent.block_ids[-1:] + node.block_ids]
        assert all(block.node is node for block in chain[-len(node.block_ids) :])
        assert chain[-1].is_queued or not self._is_idle_end(node.block_ids[-1])
        for before, after in pairwise(chain):
            if before.idle_since is not None:
                assert after.idle_since is not None, "what follows an idle block is read"
                assert after.idle_since < before.idle_since, "a parent is older than its child"
