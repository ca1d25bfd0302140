"""One request's list of blocks, and the arithmetic between positions, blocks and slots.

Token position p lives in the table's block p // block_size, at offset p % block_size. A slot is
that place in the whole KV memory: block id x block_size + offset.
"""

from __future__ import annotations

from collections.abc import Sequence


def blocks_needed(num_owned: int, num_tokens: int, block_size: int) -> int:
    """How many more blocks a request that owns `num_owned` needs to hold `num_tokens`: 0 if it
    has enough, or more than enough; never negative."""
    return max(0, -(-num_tokens // block_size) - num_owned)


def slot_mapping(table: Sequence[int], start: int, num: int, block_size: int) -> list[int]:
    """Slots of the positions start, ..., start + num - 1, in order.

    table: block ids of the request from position 0 on. [7, 2, 9] with start 5, num 6 and
    block_size 4 gives 9, 10, 11, 36, 37, 38. Raises IndexError past the end of the table.
    """
    return [
        table[position // block_size] * block_size + position % block_size
        for position in range(start, start + num)
    ]


class BlockTable:
    """Block ids by index, and from which index on the worker has not been told."""

    def __init__(self) -> None:
        self.block_ids: list[int] = []
        self.num_published = 0  # blocks at the start that the prefix cache was offered
        self._first_changed = 0

    def __len__(self) -> int:
        return len(self.block_ids)

    def extend(self, block_ids: Sequence[int]) -> None:
        self.block_ids.extend(block_ids)

    def replace(self, index: int, block_id: int) -> None:
        self.block_ids[index] = block_id
        self._first_changed = min(self._first_changed, index)

    def take_changes(self) -> tuple[int, tuple[int, ...]]:
        """The first changed index and the ids from there on; then counts as told."""
        start = self._first_changed
        self._first_changed = len(self.block_ids)
        return start, tuple(self.block_ids[start:])

    def check(self) -> None:
        assert 0 <= self._first_changed <= len(self.block_ids)
        assert 0 <= self.num_published <= len(self.block_ids)
        assert len(set(self.block_ids)) == len(self.block_ids), "a block stands twice in a table"
