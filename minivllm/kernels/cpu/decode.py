"""A decoder layer in loops that numba compiles, made for rows with one new token each.

With few tokens in a step, a torch operation costs more to start than to do, and a step is as long
as it takes to read the weights and the KV. Here a layer is a handful of loops on all cores; each
weight is read once, where the loader put it, and each key and value where it lies in its block.
Sums are float32, and so is what goes from layer to layer; weights and KV are float32 as well, or
bfloat16 as uint16, which is the upper half of a float32.

All compiled functions stand in this one file: numba compiles anew when the file changes, and
knows nothing of others.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit, prange, types
from numba.extending import overload

# Sums may be taken in any order, so that they can use a processor's vectors.
FAST = {"reassoc", "contract"}


class Layer(NamedTuple):
    """Weights are [out, in]; what a model lacks (biases, norms of q and k) has length 0."""

    input_norm: np.ndarray  # [hidden] float32, as all norms and biases
    qkv: np.ndarray
    qkv_bias: np.ndarray
    q_norm: np.ndarray
    k_norm: np.ndarray
    o: np.ndarray
    o_bias: np.ndarray
    post_norm: np.ndarray
    gate_up: np.ndarray
    gate_up_bias: np.ndarray
    down: np.ndarray
    down_bias: np.ndarray
    eps: np.float32
    turns: bool  # whether q and k are turned by their position
    window: int  # keys that a token sees, its own among them


class Rows(NamedTuple):
    """Where the new token of each row stands. A row with more of them is given as one row for
    each, that ends with it."""

    lens: np.ndarray  # [rows] int64: tokens of the row, the new one among them; 0 attends to none
    table: np.ndarray  # [rows, blocks] int64
    slots: np.ndarray  # [rows] int64; -1 writes nothing
    cos: np.ndarray  # [rows, head_dim] float32
    sin: np.ndarray  # [rows, head_dim] float32, the first half negated


@njit(cache=True, fastmath=FAST)
def decoder_layer(
    hidden: np.ndarray,  # [rows, hidden] float32, changed in place
    update: np.ndarray,  # [rows, hidden] float32: what the layer before adds to it
    layer: Layer,
    rows: Rows,
    kv: np.ndarray,  # [blocks, 2, kv_heads, block_size, head_dim]
) -> np.ndarray:  # the update of this layer
    """All of a layer, for so few rows that reading a weight takes longer than to use it."""
    normed = add_and_norm(hidden, update, layer.input_norm, layer.eps)
    qkv = products(normed, layer.qkv, layer.qkv_bias)
    heads = turn_and_write(qkv, layer, rows, kv)
    seen = attention(heads, layer, rows, kv, qkv)
    update = products(seen, layer.o, layer.o_bias)
    normed = add_and_norm(hidden, update, layer.post_norm, layer.eps)
    gated = gated_products(normed, layer.gate_up, layer.gate_up_bias)
    return products(gated, layer.down, layer.down_bias)


@njit(cache=True, fastmath=FAST)
def add_and_norm(
    hidden: np.ndarray,  # [rows, hidden] float32, changed in place
    update: np.ndarray,  # [rows, hidden]
    weight: np.ndarray,  # [hidden] float32
    eps: np.float32,
) -> np.ndarray:
    """hidden += update. Returns its norm, as numbers of the update's kind."""
    out = np.empty_like(update)
    for r in range(len(hidden)):
        for j in range(len(weight)):
            hidden[r, j] += widen(update[r, j])
        scale = norm_scale(hidden[r], eps)
        for j in range(len(weight)):
            out[r, j] = narrow(hidden[r, j] * scale * weight[j], out)
    return out


@njit(cache=True, fastmath=FAST, parallel=True)
def add_and_norm_wide(
    hidden: np.ndarray, update: np.ndarray, weight: np.ndarray, eps: np.float32
) -> np.ndarray:
    """The same on all cores, which is worth their start when there are many rows."""
    out = np.empty_like(update)
    for r in prange(len(hidden)):
        out[r] = add_and_norm(hidden[r : r + 1], update[r : r + 1], weight, eps)[0]
    return out


@njit(cache=True, fastmath=FAST, parallel=True)
def products(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """x W^T + b. x: [rows, in] float32, weight: [out, in], bias: [out] or [0]."""
    out = np.empty((len(x), len(weight)), np.float32)
    for i in prange(len(weight)):
        for r in range(len(x)):
            out[r, i] = dot(weight[i], x[r])
            if len(bias):
                out[r, i] += bias[i]
    return out


@njit(cache=True, fastmath=FAST, parallel=True)
def gated_products(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """silu(gate) * up, where `products` would return gate and up side by side."""
    num_out = len(weight) // 2
    out = np.empty((len(x), num_out), np.float32)
    for i in prange(num_out):
        for r in range(len(x)):
            gate, up = dot(weight[i], x[r]), dot(weight[num_out + i], x[r])
            if len(bias):
                gate += bias[i]
                up += bias[num_out + i]
            out[r, i] = silu(gate) * up
    return out


@njit(cache=True, fastmath=FAST, parallel=True)
def turn_and_write(
    qkv: np.ndarray,  # [rows, (query heads + 2 kv_heads) * head_dim]
    layer: Layer,
    rows: Rows,
    kv: np.ndarray,
) -> np.ndarray:  # [rows, query heads + 2 kv_heads, head_dim] float32
    """Turns q and k, and writes k and v into their slots."""
    num_kv_heads, dim = kv.shape[2], kv.shape[4]
    num_heads = qkv.shape[1] // dim - 2 * num_kv_heads
    heads = np.empty((len(qkv), num_heads + 2 * num_kv_heads, dim), np.float32)
    for r in prange(len(qkv)):
        for h in range(heads.shape[1]):
            for d in range(dim):
                heads[r, h, d] = widen(qkv[r, h * dim + d])
        q, k = heads[r, :num_heads], heads[r, num_heads : num_heads + num_kv_heads]
        if len(layer.q_norm):
            norm(q, layer.q_norm, layer.eps)
            norm(k, layer.k_norm, layer.eps)
        if layer.turns:
            turn(q, rows.cos[r], rows.sin[r])
            turn(k, rows.cos[r], rows.sin[r])
        write(k, heads[r, num_heads + num_kv_heads :], kv, rows.slots[r])
    return heads


@njit(cache=True, fastmath=FAST, parallel=True)
def attention(
    heads: np.ndarray,  # as turn_and_write returned it
    layer: Layer,
    rows: Rows,
    kv: np.ndarray,
    like: np.ndarray,  # an array of the kind of number wanted
) -> np.ndarray:  # [rows, query heads * head_dim]
    """softmax(q k / sqrt(head_dim)) v over the keys that each row's token sees. A row of length 0
    gives zeros."""
    num_rows, num_kv_heads, dim = len(heads), kv.shape[2], kv.shape[4]
    num_heads = heads.shape[1] - 2 * num_kv_heads
    out = np.empty((num_rows, num_heads * dim), like.dtype)
    for task in prange(num_rows * num_heads):
        r, h = task // num_heads, task % num_heads
        end = rows.lens[r]
        kv_head = h // (num_heads // num_kv_heads)
        seen = attend(heads[r, h], kv, kv_head, rows.table[r], max(0, end - layer.window), end)
        for d in range(dim):
            out[r, h * dim + d] = narrow(seen[d], out)
    return out


@njit(cache=True, fastmath=FAST)
def attend(
    q: np.ndarray,  # [head_dim] float32
    kv: np.ndarray,
    kv_head: int,
    table: np.ndarray,  # [blocks]
    first: int,
    end: int,
) -> np.ndarray:  # [head_dim] float32
    """One query and the keys number first to end - 1, block by block where they lie."""
    size = kv.shape[3]
    blocks = range(first // size, -(-end // size))
    scale = np.float32(1 / math.sqrt(len(q)))
    weights = np.empty(end - first, np.float32)
    highest = np.float32(-np.inf)
    for block in blocks:
        keys, start = kv[table[block], 0, kv_head], block * size
        for at in range(max(first, start), min(end, start + size)):
            score = dot(keys[at - start], q) * scale
            weights[at - first] = score
            highest = max(highest, score)
    total = np.float32(0)
    for i in range(len(weights)):
        weights[i] = math.exp(weights[i] - highest)
        total += weights[i]
    out = np.zeros(len(q), np.float32)
    for block in blocks:
        values, start = kv[table[block], 1, kv_head], block * size
        for at in range(max(first, start), min(end, start + size)):
            share = weights[at - first] / total
            for d in range(len(q)):
                out[d] += share * widen(values[at - start, d])
    return out


@njit(cache=True, fastmath=FAST)
def dot(w: np.ndarray, x: np.ndarray) -> np.float32:
    total = np.float32(0)
    for j in range(len(x)):
        total += widen(w[j]) * x[j]
    return total


@njit(cache=True, fastmath=FAST)
def norm_scale(x: np.ndarray, eps: np.float32) -> np.float32:
    """1 / the root of the mean square."""
    squares = np.float32(0)
    for j in range(len(x)):
        squares += x[j] * x[j]
    return np.float32(1) / math.sqrt(squares / np.float32(len(x)) + eps)


@njit(cache=True, fastmath=FAST)
def norm(x: np.ndarray, weight: np.ndarray, eps: np.float32) -> None:
    """RMS norm of each head of x, [heads, head_dim], in place."""
    for h in range(len(x)):
        scale = norm_scale(x[h], eps)
        for d in range(len(weight)):
            x[h, d] *= scale * weight[d]


@njit(cache=True, fastmath=FAST)
def silu(x: np.float32) -> np.float32:
    return x / (np.float32(1) + math.exp(-x))


@njit(cache=True, fastmath=FAST)
def turn(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> None:
    """RoPE in place, on [heads, head_dim]: (a, b) becomes (a cos - b sin, b cos + a sin)."""
    half = x.shape[1] // 2
    for h in range(len(x)):
        for i in range(half):
            a, b = x[h, i], x[h, half + i]
            x[h, i] = a * cos[i] + b * sin[i]
            x[h, half + i] = b * cos[half + i] + a * sin[half + i]


@njit(cache=True)
def write(k: np.ndarray, v: np.ndarray, kv: np.ndarray, slot: int) -> None:
    """k and v, [kv_heads, head_dim], into their slot."""
    if slot >= 0:
        block, offset = slot // kv.shape[3], slot % kv.shape[3]
        for h in range(len(k)):
            for d in range(k.shape[1]):
                kv[block, 0, h, offset, d] = narrow(k[h, d], kv)
                kv[block, 1, h, offset, d] = narrow(v[h, d], kv)


def widen(number: np.uint16 | np.float32) -> np.float32:
    """A weight as float32."""


def narrow(number: np.float32, array: np.ndarray) -> np.uint16 | np.float32:
    """float32 as the array keeps it; as bfloat16, the nearest, of two the even one."""


@overload(widen, inline="always")
def compile_widen(number):
    if number == types.uint16:
        return lambda number: np.uint32(np.uint32(number) << 16).view(np.float32)
    return lambda number: number


@overload(narrow, inline="always")
def compile_narrow(number, array):
    if array.dtype != types.uint16:
        return lambda number, array: number

    def to_bfloat16(number, array):
        bits = np.float32(number).view(np.uint32)
        if number != number:  # rounding could carry NaN's bits into another number's
            return np.uint16(0x7FC0)
        return np.uint16((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16)

    return to_bfloat16
