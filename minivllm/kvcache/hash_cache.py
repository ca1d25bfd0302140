"""A prefix cache as a hash table: one entry a block, chained to the entry of the block before.

The queue of idle blocks is all that eviction needs. Requests leave their last block first, so a
child always stands before its parent in it.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass


def block_key(parent_key: int | None, tokens: tuple[int, ...], extra_key: tuple) -> int:
    """Where to look for a full block of tokens: a number made of the block's tokens and of all
    that stands before it, through its parent's key (None for a prompt's first block).

    Different blocks may have the same key, so an equal key is never a hit by itself. Differs
    between processes, as Python's hashes of strings do: never leaves this one.
    """
    return hash((parent_key, tokens, extra_key))


def block_digest(
    parent_digest: bytes | None, tokens: Sequence[int], extra_key: tuple, namespace: str
) -> bytes:
    """A full block's name among engines: 32 bytes (SHA-256), the same in every process.

    namespace: whatever else decides what the KV of equal tokens is: model, revision, KV dtype,
    block size and layout. extra_key: strings, numbers and tuples of them.
    """
    content = (namespace, parent_digest, tuple(tokens), extra_key)
    return hashlib.sha256(repr(content).encode()).digest()


@dataclass(eq=False, slots=True)
class Entry:
    """A cached block. Its parent is an entry, not a block id: ids are used again."""

    key: int
    parent: Entry | None
    tokens: tuple[int, ...]
    extra_key: tuple
    block_id: int

    def holds(self, parent: Entry | None, tokens: tuple[int, ...], extra_key: tuple) -> bool:
        is_place = self.parent is parent and self.extra_key == extra_key
        return is_place and self.tokens == tokens


class HashCache:
    """Entries by key and by block id, and the queue of idle blocks."""

    def __init__(self, block_size: int, record_events: bool = False) -> None:
        self.block_size = block_size
        self.record_events = record_events
        self._buckets: dict[int, list[Entry]] = {}  # by key
        self._entries: dict[int, Entry] = {}  # by block id
        # The longest idle at the front. A dict would step over all that ever left its front.
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._banned: set[int] = set()  # cleared while somebody read them
        self._events: list[tuple] = []

    def match_prefix(self, tokens: Sequence[int], extra_key: tuple) -> list[int]:
        """Block ids of the longest chain of full cached blocks at the start of `tokens`.

        Follows the chain block by block and stops at the first that is not cached. A block hits
        only where its tokens, its parent and extra_key are equal, whatever the keys say. Changes
        nothing, not even recency.
        """
        tokens = tuple(tokens)
        block_ids: list[int] = []
        key, entry = None, None
        for end in range(self.block_size, len(tokens) + 1, self.block_size):
            block = tokens[end - self.block_size : end]
            key = block_key(key, block, extra_key)
            entry = self._find(key, entry, block, extra_key)
            if entry is None:
                break
            block_ids.append(entry.block_id)
        return block_ids

    def insert(
        self, tokens: Sequence[int], extra_key: tuple, block_ids: Sequence[int]
    ) -> list[int]:
        """Publish full blocks: `block_ids[i]` holds the KV of the i-th block of `tokens`.

        Returns the canonical block of each: the one already cached for the same tokens after the
        same blocks, else yours, which is cached from now on and has readers. Starts after the
        last of block_ids that is cached: what stands before it is canonical. Returns block_ids,
        and caches nothing, if the first was cleared while it was read: its KV is outdated.
        """
        canonical = list(block_ids)
        if canonical and canonical[0] in self._banned:
            return canonical
        num_known = self._num_known(canonical, tokens)
        entry = self._entries[canonical[num_known - 1]] if num_known else None
        for index in range(num_known, len(canonical)):
            block = self._block(tokens, index)
            key = block_key(entry.key if entry else None, block, extra_key)
            cached = self._find(key, entry, block, extra_key)
            if cached is None:
                cached = Entry(key, entry, block, extra_key, canonical[index])
                self._store(cached)
            canonical[index] = cached.block_id
            entry = cached
        return canonical

    def keep(self, block_id: int) -> bool:
        self._banned.discard(block_id)
        if block_id not in self._entries:
            return False
        self._idle[block_id] = None
        return True

    def reuse(self, block_id: int) -> None:
        del self._idle[block_id]

    def num_evictable(self) -> int:
        return len(self._idle)  # whatever follows an idle block is idle

    def evict(self, n: int) -> list[int]:
        """Forget the n blocks that have been idle longest, and return them in this order: a
        child before its parent, never a block with a reader.

        Raises ValueError, and changes nothing, when fewer than n are idle.
        """
        if n > len(self._idle):
            raise ValueError(f"{n} blocks to evict, {len(self._idle)} idle")
        block_ids = [self._idle.popitem(last=False)[0] for _ in range(n)]
        for block_id in block_ids:
            self._remove(self._entries.pop(block_id))
        return block_ids

    def clear(self) -> list[int]:
        block_ids = list(self._idle)
        self._banned |= self._entries.keys() - self._idle.keys()
        self._buckets.clear()
        self._entries.clear()
        self._idle.clear()
        if self.record_events:
            self._events.append(("cleared",))
        return block_ids

    def take_events(self) -> tuple[tuple, ...]:
        events, self._events = tuple(self._events), []
        return events

    def _block(self, tokens: Sequence[int], index: int) -> tuple[int, ...]:
        return tuple(tokens[index * self.block_size : (index + 1) * self.block_size])

    def _num_known(self, block_ids: list[int], tokens: Sequence[int]) -> int:
        """How many of block_ids there are up to the last one that is cached."""
        num = len(block_ids)
        while num and block_ids[num - 1] not in self._entries:
            num -= 1
        if num:
            same = self._entries[block_ids[num - 1]].tokens == self._block(tokens, num - 1)
            assert same, f"block {block_ids[num - 1]} is cached with other tokens"
        return num

    def _find(
        self, key: int, parent: Entry | None, tokens: tuple[int, ...], extra_key: tuple
    ) -> Entry | None:
        for entry in self._buckets.get(key, ()):
            if entry.holds(parent, tokens, extra_key):
                return entry
        return None

    def _store(self, entry: Entry) -> None:
        assert len(entry.tokens) == self.block_size, "only full blocks are cached"
        assert entry.block_id not in self._entries, f"block {entry.block_id} is cached already"
        self._buckets.setdefault(entry.key, []).append(entry)
        self._entries[entry.block_id] = entry
        if self.record_events:
            parent_id = entry.parent.block_id if entry.parent else None
            self._events.append(
                ("stored", entry.block_id, parent_id, entry.tokens, entry.extra_key)
            )

    def _remove(self, entry: Entry) -> None:
        bucket = self._buckets[entry.key]
        bucket.remove(entry)
        if not bucket:
            del self._buckets[entry.key]
        if self.record_events:
            self._events.append(("removed", entry.block_id))

    def check(self) -> None:
        """Every entry is found under its key, follows a cached one, and never stays behind it."""
        found = [entry for bucket in self._buckets.values() for entry in bucket]
        assert len(found) == len(self._entries) and all(self._buckets.values())
        assert not self._banned & self._entries.keys() and self._idle.keys() <= self._entries.keys()
        places = {block_id: place for place, block_id in enumerate(self._idle)}
        contents = {(id(e.parent), e.tokens, e.extra_key) for e in found}
        assert len(contents) == len(found), "the same content is cached twice"
        for entry in found:
            assert self._entries[entry.block_id] is entry and len(entry.tokens) == self.block_size
            if entry.parent is None:
                continue
            parent_id = entry.parent.block_id
            assert self._entries.get(parent_id) is entry.parent, "a child outlived its parent"
            if parent_id in places:
                assert entry.block_id in places, f"{parent_id} is idle, what follows it is read"
                assert places[entry.block_id] < places[parent_id], "a parent would go first"
