"""The feed-forward half of a decoder layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..kernels import Ops
from .linear import Linear


class GatedMLP(nn.Module):
    """down(silu(gate(x)) * up(x)), with gate and up as one product (Shazeer, 2020)."""

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        ops: Ops,
        *,
        bias: bool,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> None:
        super().__init__()
        make = {"bias": bias, "dtype": dtype, "device": device}
        self.gate_up_proj = Linear(hidden_size, 2 * intermediate_size, ops, **make)
        self.down_proj = Linear(intermediate_size, hidden_size, ops, **make)
        self.ops = ops

    def forward(self, x: Tensor) -> Tensor:  # [tokens, hidden]
        return self.down_proj(self.ops.silu_and_mul(self.gate_up_proj(x)))
