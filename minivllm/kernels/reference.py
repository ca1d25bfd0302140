"""Every operation in plain torch: the meaning that faster backends are compared with.

KV layout: [blocks, 2 (K and V), kv_heads, block_size, head_dim], one tensor a layer. So the part
of a block that belongs to one head, a page, is one piece of memory, and attention gathers pages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import AttentionMetadata


def kv_cache_shape(
    num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int
) -> tuple[int, ...]:
    """Shape of one layer's KV memory."""
    return (num_blocks, 2, num_kv_heads, block_size, head_dim)


def place(tensors: Iterable[Tensor]) -> None:
    """Move weights and KV memory, which nobody has written yet, to where they are read best: here,
    where torch has put them."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of a step that attend in one product: all with as many new tokens, and padded to the
    longest one's blocks."""

    tokens: slice | Tensor  # which tokens of the step, row by row
    pages: Tensor  # [2 x rows x kv_heads x blocks]: pages to gather
    unwritten: Tensor  # [rows, 1, keys, 1] bool: no token of the row is there
    hidden: Tensor  # [rows, 1, 1, new tokens, keys] bool: this token must not see that key


@dataclass(frozen=True, slots=True)
class Prepared:
    """What is worked out once a step, for the attention and the KV writes of all layers."""

    batches: tuple[Batch, ...]
    written: slice | Tensor  # the tokens that have a slot
    blocks: Tensor  # [written tokens] block of each one's slot
    offsets: Tensor  # [written tokens] place in that block


def prepare(metadata: AttentionMetadata, kv_cache: Tensor) -> AttentionMetadata:
    """The metadata with `prepared` filled in. kv_cache: any layer's, only its shape is read."""
    starts, slots = metadata.query_start_loc, metadata.slot_mapping
    num_new = [end - start for start, end in pairwise(starts)]
    single = [row for row, num in enumerate(num_new) if num == 1]
    chunks = [row for row, num in enumerate(num_new) if num > 1]
    groups = ([single] if single else []) + [[row] for row in chunks]
    written: slice | Tensor = slice(None)
    if bool((slots < 0).any()):
        written = (slots >= 0).nonzero().squeeze(1)
    block_size = kv_cache.shape[3]
    prepared = Prepared(
        batches=tuple(_batch(rows, metadata, kv_cache.shape) for rows in groups),
        written=written,
        blocks=slots[written] // block_size,
        offsets=slots[written] % block_size,
    )
    return replace(metadata, prepared=prepared)


def within_window(metadata: AttentionMetadata, window: int) -> AttentionMetadata:
    """The metadata, as prepared, for layers whose tokens see their own key and the window - 1
    keys before it."""
    step = metadata.prepared
    batches = tuple(
        replace(batch, hidden=batch.hidden | beyond_window(batch.hidden, window))
        for batch in step.batches
    )
    return replace(metadata, prepared=replace(step, batches=batches))


def beyond_window(hidden: Tensor, window: int) -> Tensor:
    """hidden: [..., keys] bool, False for the keys that a token sees without a window, which are
    the first ones. Returns [..., keys] bool: True for those of them that are too far back."""
    num_seen = (~hidden).sum(-1, keepdim=True)
    keys = torch.arange(hidden.shape[-1], device=hidden.device)
    return keys < num_seen - window


def _batch(rows: list[int], metadata: AttentionMetadata, shape: tuple[int, ...]) -> Batch:
    """rows: row numbers, all with the same number of new tokens."""
    _, _, num_kv_heads, block_size, _ = shape
    device = metadata.block_table.device
    lens = [metadata.seq_lens[row] for row in rows]
    num_blocks = max(1, -(-max(lens) // block_size))
    table = metadata.block_table[rows, :num_blocks]

    side_and_head = torch.arange(2 * num_kv_heads, device=device).view(2, 1, num_kv_heads, 1)
    pages = table[None, :, None, :] * (2 * num_kv_heads) + side_and_head

    starts = metadata.query_start_loc
    first = starts[rows[0]]
    num_new = starts[rows[0] + 1] - first
    if rows[-1] - rows[0] + 1 == len(rows):  # neighbours
        tokens: slice | Tensor = slice(first, first + len(rows) * num_new)
    else:
        tokens = torch.tensor([starts[row] for row in rows], device=device)

    keys = torch.arange(num_blocks * block_size, device=device)
    ends = torch.tensor(lens, device=device)[:, None]
    num_seen = ends - num_new + 1 + torch.arange(num_new, device=device)  # [rows, new tokens]
    return Batch(
        tokens=tokens,
        pages=pages.flatten(),
        unwritten=(keys >= ends)[:, None, :, None],
        hidden=(keys >= num_seen[:, :, None])[:, None, None],
    )


def pack_linear(weight: Tensor, room: bool = True) -> Tensor:  # [out, in]
    """The weight as `linear` wants it, made once when it has been loaded. Here: as it is. room:
    whether memory holds it twice."""
    return weight


def linear(
    x: Tensor,  # [tokens, in]
    weight: Tensor,  # as pack_linear returned it
    bias: Tensor | None = None,  # [out]
) -> Tensor:  # [tokens, out]
    """x W^T + b."""
    return F.linear(x, weight, bias)


def kv_write(
    k: Tensor,  # [tokens, kv_heads, head_dim]
    v: Tensor,  # [tokens, kv_heads, head_dim]
    kv_cache: Tensor,
    metadata: AttentionMetadata,
) -> None:
    """Store each token's key and value in its slot, in place. A slot of -1 stores nothing."""
    step = metadata.prepared
    kv_cache[step.blocks, 0, :, step.offsets] = k[step.written]
    kv_cache[step.blocks, 1, :, step.offsets] = v[step.written]


def attention(
    q: Tensor,  # [tokens, heads, head_dim]
    kv_cache: Tensor,
    metadata: AttentionMetadata,
) -> Tensor:  # [tokens, heads, head_dim]
    """Each token attends to the keys of its own row up to its own position, which are in the
    cache already. A row of length 0 gives zeros."""
    batches = metadata.prepared.batches
    out = torch.empty_like(q)
    for batch in batches:
        k, v = gather(kv_cache, batch)
        queries = q[batch.tokens].unflatten(0, (len(k), -1))
        out[batch.tokens] = attend(queries, k, v, batch.hidden).flatten(0, 1)
    return out


def gather(kv_cache: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Keys and values of a batch's rows, each [rows, kv_heads, keys, head_dim]. Zeros stand where
    no token is, whatever the memory holds there: even NaN times a weight of 0 would be NaN."""
    _, _, num_kv_heads, _, head_dim = kv_cache.shape
    rows, _, num_keys, _ = batch.unwritten.shape
    gathered = kv_cache.flatten(0, 2).index_select(0, batch.pages)
    gathered = gathered.view(2, rows, num_kv_heads, num_keys, head_dim)
    k, v = gathered.masked_fill_(batch.unwritten, 0)
    return k, v


def attend(
    q: Tensor,  # [rows, new tokens, heads, head_dim]
    k: Tensor,  # [rows, kv_heads, keys, head_dim]
    v: Tensor,  # [rows, kv_heads, keys, head_dim]
    hidden: Tensor,  # [rows, 1, 1, new tokens, keys] bool
) -> Tensor:  # [rows, new tokens, heads, head_dim]
    """softmax(q k^T / sqrt(head_dim)) v, with 0 weight on hidden keys. Query heads share KV heads
    in order: with 6 on 2, heads 0 to 2 read KV head 0.

    The softmax is in float32 at least. float16 is widened throughout, since its largest number,
    65504, is soon passed by a score.
    """
    rows, num_new, _, head_dim = q.shape
    num_kv_heads = k.shape[1]
    dtype = q.dtype
    if dtype == torch.float16:
        q, k, v = q.float(), k.float(), v.float()
    q = q.view(rows, num_new, num_kv_heads, -1, head_dim).permute(0, 2, 3, 1, 4)
    group = q.shape[2]
    q = q.reshape(rows, num_kv_heads, group * num_new, head_dim)

    scores = (q * head_dim**-0.5) @ k.transpose(2, 3)
    scores = scores.unflatten(2, (group, num_new))
    # A finite floor: where every key is hidden, equal weights on zeros give zeros, not NaN.
    scores.masked_fill_(hidden, torch.finfo(scores.dtype).min)
    weights = scores.softmax(-1, dtype=at_least_float32(scores.dtype)).to(v.dtype)

    out = weights.flatten(2, 3) @ v
    out = out.unflatten(2, (group, num_new)).permute(0, 3, 1, 2, 4)
    return out.flatten(2, 3).to(dtype)


def rms_norm(
    x: Tensor,  # [..., hidden]
    weight: Tensor,  # [hidden]
    eps: float,
) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich, 2019), the mean in float32 at
    least."""
    wide = x.to(at_least_float32(x.dtype))
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale).to(x.dtype) * weight


def rope(
    x: Tensor,  # [tokens, heads, head_dim]
    cos: Tensor,  # [tokens, 1, head_dim]
    sin: Tensor,  # [tokens, 1, head_dim], the first half negated
) -> Tensor:
    """Turn number i of each head together with number i + head_dim / 2, by its position's angle
    (Su et al., 2021): (a, b) becomes (a cos - b sin, b cos + a sin)."""
    partner = x.roll(x.shape[-1] // 2, dims=-1)
    return torch.addcmul(x * cos, partner, sin)


def silu_and_mul(x: Tensor) -> Tensor:
    """[tokens, 2 n], gate and up side by side -> [tokens, n]: silu(gate) * up. torch computes the
    silu of half types in float32."""
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate) * up


def compile_decoder(model: nn.Module, kv_cache: Sequence[Tensor]) -> None:
    """A quicker way to run the decoder `model`, made once for a KV cache. Here: there is none."""


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """float32 for the half types, else the dtype itself."""
    return torch.promote_types(dtype, torch.float32)
