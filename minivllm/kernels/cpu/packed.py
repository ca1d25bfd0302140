"""Products with weights that oneDNN has laid out for its own loops, once, when they are loaded.

A plain product lays the weight out anew at each call. At one token a step that is as much work
as the product itself: packed, it takes about half the time. The result is the same.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

PACKABLE = (torch.bfloat16, torch.float32)


def why_not() -> str | None:
    """Why this torch cannot pack; None if it can."""
    if not torch.backends.mkldnn.is_available():
        return "this build of torch has no oneDNN"
    return None


def pack_linear(weight: Tensor, room: bool = True) -> Tensor:  # [out, in]
    """The weight as `linear` wants it, which is all that is kept of it. One on another device, or
    in a dtype that oneDNN has no packed loops for, stays as it is."""
    if weight.device.type != "cpu" or weight.dtype not in PACKABLE:
        return weight
    return torch.ops.mkldnn._reorder_linear_weight(weight.detach())


def linear(
    x: Tensor,  # [tokens, in]
    weight: Tensor,  # as pack_linear returned it
    bias: Tensor | None = None,  # [out]
) -> Tensor:  # [tokens, out]
    if not weight.is_mkldnn:
        return F.linear(x, weight, bias)
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
