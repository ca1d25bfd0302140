"""The operations that a model is made of, in one record per backend, and what they work on.

`load(backend)` is called once, before the model is built; the model keeps what it is given.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

logger = logging.getLogger(__name__)

BACKENDS = ("reference",)


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """Where the tokens of one step stand. The same for every layer, and never a global.

    Row r has the tokens query_start_loc[r] to query_start_loc[r + 1]; they are the last ones of
    the seq_lens[r] tokens that the row will have when the step has run.
    """

    query_start_loc: list[int]  # rows + 1 numbers, from 0 to the number of tokens
    seq_lens: list[int]  # by row
    block_table: Tensor  # [rows, blocks of the longest row] int64, padded with block 0
    slot_mapping: Tensor  # [tokens] int64; -1 writes nothing
    prepared: Any = None  # what the backend worked out for all its layers


@dataclass(frozen=True, slots=True)
class Ops:
    """One backend. The KV layout is its own: all that others know is that a layer's tensor has
    the shape kv_cache_shape(...) and that its first dimension counts blocks."""

    kv_cache_shape: Callable[..., tuple[int, ...]]
    prepare: Callable[..., AttentionMetadata]
    attention: Callable[..., Tensor]
    kv_write: Callable[..., None]
    rms_norm: Callable[..., Tensor]
    rope: Callable[..., Tensor]
    silu_and_mul: Callable[..., Tensor]


def load(backend: str = "auto") -> Ops:
    """The operations of a backend: "reference" (plain torch, on any device) or "auto", which
    says in the log what it chose. Raises ValueError for any other name."""
    if backend == "auto":
        backend = "reference"
        logger.info("backend: %s", backend)
    if backend not in BACKENDS:
        raise ValueError(f"backend={backend!r} is not one of 'auto', {', '.join(BACKENDS)}")
    from . import reference

    return Ops(**{name: getattr(reference, name) for name in Ops.__dataclass_fields__})
