"""`minivllm/philox.py` in torch: the same numbers, bit for bit, for many rows at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..philox import KEY_STEPS, MASK32, MULTIPLIERS, NUM_ROUNDS, TOKEN


def philox(
    counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Philox4x32-10 on int64 tensors that hold 32-bit numbers.

    A product of two 32-bit numbers may wrap round as a signed int64; its 64 bits are right all
    the same, and masking takes both halves from them.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(NUM_ROUNDS):
        p0, p1 = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        high0, high1 = (p0 >> 32) & MASK32, (p1 >> 32) & MASK32
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, p1 & MASK32, high0 ^ c3 ^ k1, p0 & MASK32
        k0, k1 = (k0 + KEY_STEPS[0]) & MASK32, (k1 + KEY_STEPS[1]) & MASK32
    return c0, c1, c2, c3


def uniform(
    seeds: Sequence[int],
    sample_indices: Sequence[int],
    positions: Sequence[int],
    kind: int = TOKEN,
) -> Tensor:  # [rows] float64, on the CPU
    """Numbers in [0, 1), multiples of 2**-53: row r is philox.uniform of the r-th of each."""

    def words(numbers: Sequence[int], shift: int = 0) -> Tensor:
        return torch.tensor([(n >> shift) & MASK32 for n in numbers], dtype=torch.int64)

    key = (words(seeds), words(seeds, 32))
    zeros = torch.zeros_like(key[0])
    counter = (words(positions), words(sample_indices), zeros + kind, zeros)
    high, low, _, _ = philox(counter, key)
    return ((high << 21) | (low >> 11)).double() / (1 << 53)
