"""From token ids to vectors."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .linear import empty_parameter


class Embedding(nn.Module):
    """One row of `weight` [vocab, hidden] per token id."""

    def __init__(
        self, vocab_size: int, hidden_size: int, *, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        super().__init__()
        self.weight = empty_parameter(vocab_size, hidden_size, dtype=dtype, device=device)

    def forward(self, token_ids: Tensor) -> Tensor:  # [tokens] -> [tokens, hidden]
        return F.embedding(token_ids, self.weight)
