"""The block formats of GGUF, back to float32. Reads bytes; never asks which tensor they are.

A row is cut into blocks of 32 numbers. A block keeps whole numbers q of 4, 5 or 8 bits and a
float16 scale d: the types that end in 0 mean d * q with q around zero, those that end in 1 have
a float16 minimum m as well and mean d * q + m with q from zero. Layouts: ggml-common.h of ggml.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor


def dequantize(raw: memoryview, type: str, shape: tuple[int, ...]) -> Tensor:
    """float32 numbers of `shape` (row-major) from the bytes of a tensor of a GGUF `type`.

    Raises ValueError for a type that is not supported.
    """
    if type in _FLOATS:
        return byte_tensor(raw).view(_FLOATS[type]).float().reshape(shape)
    if type not in _BLOCKS:
        known = ", ".join((*_FLOATS, *_BLOCKS))
        raise ValueError(f"type {type} cannot be dequantized (supported: {known})")
    block_bytes, from_blocks = _BLOCKS[type]
    return from_blocks(byte_tensor(raw).view(-1, block_bytes)).view(shape)


def byte_tensor(raw: memoryview) -> Tensor:
    """The bytes as a uint8 tensor, without a copy. Not to be written to."""
    with warnings.catch_warnings():
        # torch warns that the mapped file is read-only; nothing here writes to it.
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        return torch.frombuffer(raw, dtype=torch.uint8)


def _float16(column: Tensor) -> Tensor:
    """[blocks, 2] bytes -> [blocks, 1] float32."""
    return column.contiguous().view(torch.float16).float()


def _four_bits(column: Tensor) -> Tensor:
    """[blocks, 16] bytes -> [blocks, 32]: first the low halves of all bytes, then the high."""
    return torch.cat((column & 15, column >> 4), dim=1)


def _fifth_bits(column: Tensor) -> Tensor:
    """[blocks, 4] bytes -> [blocks, 32]: 16 where the bit is set, the lowest bit first."""
    bits = column.unsqueeze(2) >> torch.arange(8, dtype=torch.uint8) & 1
    return bits.flatten(1) << 4


def _q4_0(blocks: Tensor) -> Tensor:
    """d | 16 bytes of halves; d * (q - 8)."""
    return (_four_bits(blocks[:, 2:]).float() - 8) * _float16(blocks[:, :2])


def _q4_1(blocks: Tensor) -> Tensor:
    """d | m | 16 bytes of halves; d * q + m."""
    values = _four_bits(blocks[:, 4:]).float()
    return values.mul_(_float16(blocks[:, :2])).add_(_float16(blocks[:, 2:4]))


def _q5_0(blocks: Tensor) -> Tensor:
    """d | 4 bytes of fifth bits | 16 bytes of halves; d * (q - 16)."""
    whole = _four_bits(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6])
    return (whole.float() - 16) * _float16(blocks[:, :2])


def _q5_1(blocks: Tensor) -> Tensor:
    """d | m | 4 bytes of fifth bits | 16 bytes of halves; d * q + m."""
    whole = _four_bits(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8])
    return whole.float().mul_(_float16(blocks[:, :2])).add_(_float16(blocks[:, 2:4]))


def _q8_0(blocks: Tensor) -> Tensor:
    """d | 32 signed bytes; d * q."""
    return blocks[:, 2:].view(torch.int8).float() * _float16(blocks[:, :2])


_FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
# type: bytes of a block, and what turns [blocks, bytes] into [blocks, 32] numbers
_BLOCKS: dict[str, tuple[int, Callable[[Tensor], Tensor]]] = {
    "Q4_0": (18, _q4_0),
    "Q4_1": (20, _q4_1),
    "Q5_0": (22, _q5_0),
    "Q5_1": (24, _q5_1),
    "Q8_0": (34, _q8_0),
}
