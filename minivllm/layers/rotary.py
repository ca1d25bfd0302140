"""How a token's position enters attention: angles, by position and pair of numbers in a head."""

from __future__ import annotations

import torch
from torch import Tensor


class RotaryTable:
    """Cosines and sines of all positions, looked up once a step for every layer.

    A table, so that a position's angles are the same bits in any company. The angles are float32
    whatever the dtype: models are trained with that rounding, and transformers has it too.
    """

    def __init__(
        self,
        head_dim: int,
        num_positions: int,
        theta: float,
        *,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> None:
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        positions = torch.arange(num_positions, dtype=torch.float32)
        angles = torch.outer(positions, 1.0 / theta**exponents)  # [positions, head_dim / 2]
        cos, sin = angles.cos(), angles.sin()
        self.cos = torch.cat((cos, cos), dim=1).to(device, dtype)
        self.sin = torch.cat((-sin, sin), dim=1).to(device, dtype)  # as Ops.rope wants it

    def look_up(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """positions [tokens] -> cos and sin, each [tokens, 1, head_dim]."""
        return self.cos[positions, None], self.sin[positions, None]
