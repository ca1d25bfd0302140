"""The operations that a model is made of, in one record per backend, and what they work on.

`load(backend)` is called once, before the model is built; the model keeps what it is given.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

logger = logging.getLogger(__name__)

BACKENDS = ("reference", "cpu")


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
    place: Callable[[Iterable[Tensor]], None]
    prepare: Callable[..., AttentionMetadata]
    within_window: Callable[..., AttentionMetadata]
    pack_linear: Callable[..., Any]
    linear: Callable[..., Tensor]
    attention: Callable[..., Tensor]
    kv_write: Callable[..., None]
    rms_norm: Callable[..., Tensor]
    rope: Callable[..., Tensor]
    silu_and_mul: Callable[..., Tensor]
    compile_decoder: Callable[..., Callable[..., Tensor] | None]


def load(backend: str = "auto", device: str = "cpu") -> Ops:
    """The operations of a backend: "reference" (plain torch, on any device), "cpu" (packed
    products, and compiled loops where numba works), or "auto", which says in the log what it chose
    for the kind of device. Raises ValueError for a name that there is not, or that cannot work
    here."""
    if backend not in ("auto", *BACKENDS):
        raise ValueError(f"backend={backend!r} is not one of 'auto', {', '.join(BACKENDS)}")
    from . import reference
    from .cpu import narrow, packed

    ops = {name: getattr(reference, name) for name in Ops.__dataclass_fields__}
    if backend == "auto":
        backend = "cpu" if device == "cpu" and packed.why_not() is None else "reference"
        logger.info("backend: %s", backend)
    if backend == "cpu":
        reason = packed.why_not() if device == "cpu" else f"the device is {device!r}"
        if reason is not None:
            raise ValueError(f"backend='cpu' cannot work here: {reason}")
        reason = narrow.why_not()
        room = packed if reason else narrow
        ops |= {name: f for name, f in vars(room).items() if name in ops}
        what = f"products only, since {reason}" if reason else "products and the decoder's loops"
        logger.info("backend cpu: %s; all else is the reference's", what)
    return Ops(**ops)
