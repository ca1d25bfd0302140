"""A decoder layer in loops that numba compiles, made for rows with one new token each.

With few tokens in a step, a torch operation costs more to start than to do. Here a layer is a
handful of loops on all cores; each weight is read once, where the loader put it, and each key and
value where it lies in its block. Sums are float32, and so is what goes from layer to layer; weights
and KV are float32 as well, or bfloat16 as uint16, which is the upper half of a float32.

All compiled functions stand in this one file: numba compiles anew when the file changes, and
knows nothing of others. A twin named `_wide` is for rows enough to start all cores for.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit, prange, types
from numba.extending import overload

from .layer import Layer, Rows
from .prefetch import prefetch

FAST = {"reassoc", "contract"}  # sums in any order, so that they can use a processor's vectors


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
    heads = np.empty((len(qkv), qkv.shape[1] // kv.shape[4], kv.shape[4]), np.float32)
    for r in range(len(qkv)):
        turn_and_write(qkv, r, layer, rows, kv, heads)
    seen = attention(heads, layer, rows, kv, qkv)
    update = products(seen, layer.o, layer.o_bias)
    normed = add_and_norm(hidden, update, layer.post_norm, layer.eps)
    gated = gate(products(normed, layer.gate_up, layer.gate_up_bias))
    return products(gated, layer.down, layer.down_bias)


@njit(cache=True, fastmath=FAST)
def add_and_norm(hidden: np.ndarray, update: np.ndarray, weight: np.ndarray, eps: np.float32):
    """hidden += update, both [rows, hidden]. Returns the norm, as numbers of the update's kind."""
    out = np.empty_like(update)
    for r in range(len(hidden)):
        for j in range(len(weight)):
            hidden[r, j] += widen(update[r, j])
        scale = norm_scale(hidden[r], eps)
        for j in range(len(weight)):
            out[r, j] = narrow(hidden[r, j] * scale * weight[j], out)
    return out


@njit(cache=True, fastmath=FAST, parallel=True)
def add_and_norm_wide(hidden, update, weight, eps):
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
            total = bias[i] if len(bias) else np.float32(0)
            for j in range(x.shape[1]):
                total += widen(weight[i, j]) * x[r, j]
            out[r, i] = total
    return out


@njit(cache=True, fastmath=FAST)
def gate(gate_up: np.ndarray) -> np.ndarray:
    """silu(gate) * up. gate_up: [rows, 2 * intermediate], the gate's half first."""
    out = np.empty((len(gate_up), gate_up.shape[1] // 2), gate_up.dtype)
    for r in range(len(out)):
        first, second = gate_up[r, : out.shape[1]], gate_up[r, out.shape[1] :]
        for i in range(len(first)):
            out[r, i] = narrow(silu(widen(first[i])) * widen(second[i]), out)
    return out


@njit(cache=True, fastmath=FAST, parallel=True)
def gate_wide(gate_up):
    out = np.empty((len(gate_up), gate_up.shape[1] // 2), gate_up.dtype)
    for r in prange(len(out)):
        out[r] = gate(gate_up[r : r + 1])[0]
    return out


@njit(cache=True, fastmath=FAST)
def turn_and_write(
    qkv: np.ndarray,  # [rows, (query heads + 2 kv_heads) * head_dim]
    r: int,
    layer: Layer,
    rows: Rows,
    kv: np.ndarray,
    heads: np.ndarray,  # [rows, query heads + 2 kv_heads, head_dim] float32; [r] is written
) -> None:
    """Turns q and k of row r into its heads, and writes k and v into their slots."""
    end, dim = heads.shape[1] - kv.shape[2], kv.shape[4]
    for i in range(qkv.shape[1]):
        heads[r, i // dim, i % dim] = widen(qkv[r, i])
    q, k, v = heads[r, : end - kv.shape[2]], heads[r, end - kv.shape[2] : end], heads[r, end:]
    if len(layer.q_norm):
        norm(q, layer.q_norm, layer.eps)
        norm(k, layer.k_norm, layer.eps)
    if layer.turns:
        turn(q, rows.cos[r], rows.sin[r])
        turn(k, rows.cos[r], rows.sin[r])
    write(k, v, kv, rows.slots[r])


@njit(cache=True, fastmath=FAST, parallel=True)
def turn_and_write_wide(qkv, layer, rows, kv):
    heads = np.empty((len(qkv), qkv.shape[1] // kv.shape[4], kv.shape[4]), np.float32)
    for r in prange(len(qkv)):
        turn_and_write(qkv, r, layer, rows, kv, heads)
    return heads


@njit(cache=True, fastmath=FAST, parallel=True)
def attention(heads: np.ndarray, layer: Layer, rows: Rows, kv: np.ndarray, like: np.ndarray):
    """softmax(q k / sqrt(head_dim)) v over the keys that a row's token sees; zeros at length 0.
    heads: as turn_and_write left it. Returns [rows, query heads * head_dim], numbers as in like."""
    num_rows, num_heads = len(heads), heads.shape[1] - 2 * kv.shape[2]
    out = np.empty((num_rows, num_heads, kv.shape[4]), like.dtype)
    # Queries that share a KV head read it together, unless that leaves too few tasks.
    num = num_heads // kv.shape[2] if num_rows > 4 else 1
    parts = num_heads // num
    for task in prange(num_rows * parts):
        attend(heads, task // parts, task % parts * num, num, layer, rows, kv, out)
    return out.reshape(num_rows, -1)


@njit(cache=True, fastmath=FAST)
def attend(
    heads: np.ndarray, r: int, h: int, num: int, layer: Layer, rows: Rows, kv: np.ndarray, out
) -> None:
    """Queries h to h + num - 1 of row r, into out[r]. Keys and values are read block by block
    where they lie, and by index: numba counts who holds a slice, as much work as a key."""
    num_kv_heads, size, dim = kv.shape[2:]
    end, table = rows.lens[r], rows.table
    first = max(0, end - layer.window)
    kv_head = h // (out.shape[1] // num_kv_heads)
    blocks = range(first // size, -(-end // size))
    scale = np.float32(1 / math.sqrt(dim))
    weights = np.empty((num, end - first), np.float32)
    for column in blocks:
        block, start = table[r, column], column * size
        prefetch(kv, table[r, min(column + 1, blocks.stop - 1)], 0, kv_head)
        for n in range(num):
            for i in range(max(0, first - start), min(size, end - start)):
                score = np.float32(0)
                for d in range(dim):
                    score += widen(kv[block, 0, kv_head, i, d]) * heads[r, h + n, d]
                weights[n, start + i - first] = score * scale
    for n in range(num):
        softmax(weights[n])
    seen = np.zeros((num, dim), np.float32)
    for column in blocks:
        block, start = table[r, column], column * size
        prefetch(kv, table[r, min(column + 1, blocks.stop - 1)], 1, kv_head)
        i, stop = max(0, first - start), min(size, end - start)
        for n in range(num):
            add_values(weights, n, start + i - first, kv, block, kv_head, i, stop, seen)
    for n in range(num):
        for d in range(dim):
            out[r, h + n, d] = narrow(seen[n, d], out)


@njit(cache=True, fastmath=FAST)
def add_values(
    weights: np.ndarray, n: int, j: int, kv, block: int, h: int, i: int, stop: int, seen
):
    """seen[n] += the values i to stop - 1 of a block, with weights from [n, j] on. By fours, since
    to read and write a sum is more than to add to it."""
    while i + 4 <= stop:
        a, b, c, e = weights[n, j], weights[n, j + 1], weights[n, j + 2], weights[n, j + 3]
        for d in range(seen.shape[1]):
            seen[n, d] += (
                a * widen(kv[block, 1, h, i, d])
                + b * widen(kv[block, 1, h, i + 1, d])
                + (c * widen(kv[block, 1, h, i + 2, d]) + e * widen(kv[block, 1, h, i + 3, d]))
            )
        i, j = i + 4, j + 4
    for k in range(stop - i):
        for d in range(seen.shape[1]):
            seen[n, d] += weights[n, j + k] * widen(kv[block, 1, h, i + k, d])


@njit(cache=True, fastmath=FAST, error_model="numpy")
def softmax(scores: np.ndarray) -> None:
    """In place."""
    highest, total = np.float32(-np.inf), np.float32(0)
    for j in range(len(scores)):
        highest = max(highest, scores[j])
    for j in range(len(scores)):
        scores[j] = exp(scores[j] - highest)
        total += scores[j]
    for j in range(len(scores)):
        scores[j] /= total


@njit(cache=True, fastmath=FAST, inline="always")
def exp(x: np.float32) -> np.float32:
    """e^x = 2^(n + f) by operations that vectors have, which math.exp is not: n goes into the
    exponent, 2^f is a polynomial. Within 4e-7 of e^x for |x| < 5, and 4e-6 up to float32's ends,
    beyond which it stays."""
    power = min(max(x * np.float32(1.44269504), np.float32(-126)), np.float32(127))
    n = np.floor(power + np.float32(0.5))
    f = power - n
    p = np.float32(0.000154035304) * f + np.float32(0.00133335581)  # Taylor's: ln(2)^k / k!
    p = (p * f + np.float32(0.00961812911)) * f + np.float32(0.0555041087)
    p = (p * f + np.float32(0.240226507)) * f + np.float32(0.693147181)
    exponent = np.int32((np.int32(n) + np.int32(127)) << np.int32(23))
    return (p * f + np.float32(1)) * exponent.view(np.float32)


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


@njit(cache=True, fastmath=FAST, error_model="numpy")  # no test for division by zero
def silu(x: np.float32) -> np.float32:
    return x / (np.float32(1) + exp(-x))


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


@overload(narrow)
def compile_narrow(number, array):
    if array.dtype != types.uint16:
        return lambda number, array: number

    def to_bfloat16(number, array):
        bits = np.float32(number).view(np.uint32)
        odd = (bits >> np.uint32(16)) & np.uint32(1)
        near = (bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)
        return np.uint16(near if number == number else np.uint32(0x7FC0))  # NaN stays one

    return to_bfloat16
