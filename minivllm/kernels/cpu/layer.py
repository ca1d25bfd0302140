"""What the compiled loops of `decode` read of a layer and of a step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


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
