"""The counter-based generator behind every draw: Philox4x32-10 (Salmon et al., SC 2011).

A draw is a function of (seed, sample index, position, kind of draw) and of nothing else: not of
the batch, not of what was drawn before. `sample/philox.py` is the same in torch, bit for bit.
"""

from __future__ import annotations

TOKEN, ACCEPT, RESAMPLE = 0, 1, 2  # kinds of draw

MASK32 = 0xFFFFFFFF
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
NUM_ROUNDS = 10


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Four random 32-bit numbers for a counter of four and a key of two."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(NUM_ROUNDS):
        p0, p1 = MULTIPLIERS[0] * c0, MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & MASK32, (p0 >> 32) ^ c3 ^ k1, p0 & MASK32
        k0, k1 = (k0 + KEY_STEPS[0]) & MASK32, (k1 + KEY_STEPS[1]) & MASK32
    return c0, c1, c2, c3


def uniform(seed: int, sample_index: int, position: int, kind: int = TOKEN) -> float:
    """A number in [0, 1), a multiple of 2**-53. The seed counts modulo 2**64.

    position: where the drawn token will stand in its sequence.
    """
    key = (seed & MASK32, (seed >> 32) & MASK32)
    high, low, _, _ = philox((position & MASK32, sample_index & MASK32, kind, 0), key)
    return ((high << 21) | (low >> 11)) / (1 << 53)
