"""The product of tokens with a weight matrix."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..kernels import Ops


def empty_parameter(*shape: int, dtype: torch.dtype, device: torch.device | str) -> nn.Parameter:
    """A weight that the loader will fill: what it holds until then is whatever was there."""
    return nn.Parameter(torch.empty(shape, dtype=dtype, device=device), requires_grad=False)


class Linear(nn.Module):
    """x W^T + b, W of shape [out, in]."""

    def __init__(
        self,
        num_in: int,
        num_out: int,
        ops: Ops,
        *,
        bias: bool = False,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> None:
        super().__init__()
        self.ops = ops
        self.weight = empty_parameter(num_out, num_in, dtype=dtype, device=device)
        self.bias = empty_parameter(num_out, dtype=dtype, device=device) if bias else None
        self.packed: Any = None  # what Ops.pack_linear made of the weight

    def pack(self, room: bool = True) -> None:
        """The weight is loaded: lay it out as the backend wants it, and keep that alone. room:
        whether memory holds it twice."""
        self.packed = self.ops.pack_linear(self.weight, room)
        self.weight = None

    def forward(self, x: Tensor) -> Tensor:  # [tokens, in] -> [tokens, out]
        weight = self.weight if self.packed is None else self.packed
        return self.ops.linear(x, weight, self.bias)
