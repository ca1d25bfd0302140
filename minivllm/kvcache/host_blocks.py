"""KV blocks in host memory: where a stopped request's KV waits. Ids only; a worker moves bytes."""

from __future__ import annotations

from collections import deque


class HostBlocks:
    """Host block ids by request. Block 0 is a block like any other here."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.free_ids = deque(range(num_blocks))
        self.tables: dict[str, list[int]] = {}

    def store(self, request_id: str, n: int) -> list[int] | None:
        """n host blocks for a request; None, and nothing is changed, when fewer are free."""
        if n > len(self.free_ids):
            return None
        host_ids = [self.free_ids.popleft() for _ in range(n)]
        self.tables[request_id] = host_ids
        return host_ids

    def take_back(self, request_id: str) -> list[int]:
        """The request's host blocks, which are free from the next step on."""
        host_ids = self.tables.pop(request_id)
        self.free_ids.extend(host_ids)
        return host_ids

    def check(self) -> None:
        held = [block_id for table in self.tables.values() for block_id in table]
        assert sorted([*held, *self.free_ids]) == list(range(self.num_blocks))
