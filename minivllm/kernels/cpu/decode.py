"""One decoder layer for a few rows with one new token each, in loops that numba compiles.

At so few tokens a step is as long as it takes to read the weights, and a torch operation costs
more to start than to do. Here a layer is five loops on all cores, and each weight is read once,
where the loader put it. Numbers are float32 from the embedding to the last norm; weights and KV
are float32 as well, or bfloat16 as uint16, which is the upper half of a float32.

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
    """Where the new token of each row stands."""

    lens: np.ndarray  # [rows] int64: tokens of the row, the new one among them
    table: np.ndarray  # [rows, blocks] int64
    slots: np.ndarray  # [rows] int64; -1 writes nothing
    cos: np.ndarray  # [rows, head_dim] float32
    sin: np.ndarray  # [rows, head_dim] float32, the first half negated


@njit(cache=True, fastmath=FAST)
def decoder_layer(
    hidden: np.ndarray,  # [rows, hidden] float32, changed in place
    layer: Layer,
    rows: Rows,
    kv: np.ndarray,  # [blocks, 2, kv_heads, block_size, head_dim]
) -> None:
    num_rows, dim = len(hidden), kv.shape[4]
    num_kv_heads, num_heads = kv.shape[2], layer.o.shape[1] // dim
    normed = np.empty_like(hidden)
    rms_norm(hidden, layer.input_norm, layer.eps, normed)
    qkv = products(normed, layer.qkv, layer.qkv_bias)
    heads = qkv.reshape(num_rows, num_heads + 2 * num_kv_heads, dim)
    for r in range(num_rows):
        q, k = heads[r, :num_heads], heads[r, num_heads : num_heads + num_kv_heads]
        if len(layer.q_norm):
            rms_norm(q, layer.q_norm, layer.eps, q)
            rms_norm(k, layer.k_norm, layer.eps, k)
        if layer.turns:
            turn(q, rows.cos[r], rows.sin[r])
            turn(k, rows.cos[r], rows.sin[r])
        write(k, heads[r, num_heads + num_kv_heads :], kv, rows.slots[r])
    seen = attention(heads, num_heads, kv, rows, layer.window)
    hidden += products(seen, layer.o, layer.o_bias)
    rms_norm(hidden, layer.post_norm, layer.eps, normed)
    gated = gated_products(normed, layer.gate_up, layer.gate_up_bias)
    hidden += products(gated, layer.down, layer.down_bias)


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
    """silu(gate) * up, where gate and up are the halves of what `products` would return."""
    num_out = len(weight) // 2
    out = np.empty((len(x), num_out), np.float32)
    for i in prange(num_out):
        for r in range(len(x)):
            gate, up = dot(weight[i], x[r]), dot(weight[num_out + i], x[r])
            if len(bias):
                gate += bias[i]
                up += bias[num_out + i]
            out[r, i] = gate / (np.float32(1) + math.exp(-gate)) * up
    return out


@njit(cache=True, fastmath=FAST, parallel=True)
def attention(
    heads: np.ndarray,  # [rows, query heads and more, head_dim] float32
    num_heads: int,
    kv: np.ndarray,
    rows: Rows,
    window: int,
) -> np.ndarray:  # [rows, num_heads * head_dim]
    """softmax(q k / sqrt(head_dim)) v over the keys that each row's token sees, read block by
    block where they lie. A row of length 0 gives zeros."""
    num_rows, dim = len(heads), heads.shape[2]
    out = np.zeros((num_rows, num_heads * dim), np.float32)
    for task in prange(num_rows * num_heads):
        r, h = task // num_heads, task % num_heads
        seen = out[r, h * dim : (h + 1) * dim]
        first = max(0, rows.lens[r] - window)
        group = num_heads // kv.shape[2]
        attend(heads[r, h], kv, h // group, rows.table[r], first, rows.lens[r], seen)
    return out


@njit(cache=True, fastmath=FAST)
def attend(
    q: np.ndarray,  # [head_dim]
    kv: np.ndarray,
    kv_head: int,
    table: np.ndarray,  # [blocks]
    first: int,
    end: int,
    out: np.ndarray,  # [head_dim] float32, zeros
) -> None:
    """One query and the keys number first to end - 1."""
    block_size = kv.shape[3]
    scale = np.float32(1 / math.sqrt(len(q)))
    weights = np.empty(end - first, np.float32)
    highest = np.float32(-np.inf)
    for at in range(first, end):
        key = kv[table[at // block_size], 0, kv_head, at % block_size]
        score = dot(key, q) * scale
        weights[at - first] = score
        highest = max(highest, score)
    total = np.float32(0)
    for i in range(len(weights)):
        weights[i] = math.exp(weights[i] - highest)
        total += weights[i]
    for at in range(first, end):
        value = kv[table[at // block_size], 1, kv_head, at % block_size]
        share = weights[at - first] / total
        for d in range(len(out)):
            out[d] += share * widen(value[d])


@njit(cache=True, fastmath=FAST)
def dot(w: np.ndarray, x: np.ndarray) -> np.float32:
    total = np.float32(0)
    for j in range(len(x)):
        total += widen(w[j]) * x[j]
    return total


@njit(cache=True, fastmath=FAST)
def rms_norm(x: np.ndarray, weight: np.ndarray, eps: np.float32, out: np.ndarray) -> None:
    """Each line of x, over its root mean square, times weight. out may be x."""
    for r in range(len(x)):
        squares = np.float32(0)
        for j in range(len(weight)):
            squares += x[r, j] * x[r, j]
        scale = np.float32(1) / math.sqrt(squares / np.float32(len(weight)) + eps)
        for j in range(len(weight)):
            out[r, j] = x[r, j] * scale * weight[j]


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
