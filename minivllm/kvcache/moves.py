"""Moves of whole blocks that the next plan orders, in the order a worker makes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

Pair = tuple[int, int]


@dataclass(slots=True)
class Moves:
    """Pairs of (from, to) blocks."""

    swap_out: list[Pair] = field(default_factory=list)  # (block, host block)
    swap_in: list[Pair] = field(default_factory=list)  # (host block, block)
    copies: list[Pair] = field(default_factory=list)  # (block, block)

    def forget(self, block_ids: Sequence[int]) -> None:
        """These blocks were given up before the moves were made: nothing is moved into them, for
        somebody else may get them now."""
        gone = set(block_ids)
        self.swap_in = [pair for pair in self.swap_in if pair[1] not in gone]
        self.copies = [pair for pair in self.copies if pair[1] not in gone]
