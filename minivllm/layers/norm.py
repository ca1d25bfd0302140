"""Bringing each token's vector to the same size."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..kernels import Ops
from .linear import empty_parameter


class RMSNorm(nn.Module):
    """See `Ops.rms_norm`."""

    def __init__(
        self, size: int, eps: float, ops: Ops, *, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        super().__init__()
        self.weight = empty_parameter(size, dtype=dtype, device=device)
        self.eps = eps
        self.ops = ops

    def forward(self, x: Tensor) -> Tensor:  # [..., size]
        return self.ops.rms_norm(x, self.weight, self.eps)
