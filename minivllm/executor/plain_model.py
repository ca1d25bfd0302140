"""A Llama in plain Python: one token in, one vector out, every number in sight.

The specification that faster engines are compared with. A vector is a list of floats and a matrix
a list of rows. Nothing is batched and nothing is masked: tokens come one after the other, each
writes its own key and value into the paged KV memory, then looks at all that stand there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import add, mul

from ..checkpoint.model_config import ModelConfig
from .plain_kv import LayerKV
from .plain_weights import Matrix, Vector, read_weights

if hasattr(math, "sumprod"):  # Python 3.12 and later
    dot = math.sumprod
else:

    def dot(a: Sequence[float], b: Sequence[float]) -> float:
        """The sum of products of two vectors of one length."""
        return sum(map(mul, a, b))


@dataclass(frozen=True, slots=True)
class Linear:
    """A product with a matrix, and what is added to it."""

    weight: Matrix  # [out][in]
    bias: Vector | None = None  # [out]

    def __call__(self, x: Vector) -> Vector:
        out = [dot(row, x) for row in self.weight]
        return out if self.bias is None else list(map(add, out, self.bias))


@dataclass(frozen=True, slots=True)
class Layer:
    """The weights of one layer. Sizes: hidden, heads, KV heads, head_dim, intermediate."""

    attention_norm: Vector  # [hidden]
    q: Linear  # hidden -> heads x head_dim
    k: Linear  # hidden -> kv_heads x head_dim
    v: Linear  # hidden -> kv_heads x head_dim
    o: Linear  # heads x head_dim -> hidden
    mlp_norm: Vector  # [hidden]
    gate: Linear  # hidden -> intermediate
    up: Linear  # hidden -> intermediate
    down: Linear  # intermediate -> hidden


class PlainModel:
    """A decoder of the Llama family (Touvron et al., 2023) and its head."""

    def __init__(self, config: ModelConfig) -> None:
        check_supported(config)
        self.config = config
        weights = read_weights(config)

        def linear(name: str) -> Linear:
            return Linear(weights[f"{name}.weight"], weights.get(f"{name}.bias"))

        self.embedding: Matrix = weights["model.embed_tokens.weight"]  # [vocab][hidden]
        self.layers = []
        for index in range(config.num_layers):
            name = f"model.layers.{index}"
            attention, mlp = f"{name}.self_attn", f"{name}.mlp"
            self.layers.append(
                Layer(
                    attention_norm=weights[f"{name}.input_layernorm.weight"],
                    q=linear(f"{attention}.q_proj"),
                    k=linear(f"{attention}.k_proj"),
                    v=linear(f"{attention}.v_proj"),
                    o=linear(f"{attention}.o_proj"),
                    mlp_norm=weights[f"{name}.post_attention_layernorm.weight"],
                    gate=linear(f"{mlp}.gate_proj"),
                    up=linear(f"{mlp}.up_proj"),
                    down=linear(f"{mlp}.down_proj"),
                )
            )
        self.norm: Vector = weights["model.norm.weight"]  # [hidden]
        tied = config.tie_word_embeddings
        self.head = Linear(self.embedding) if tied else linear("lm_head")

    def forward(
        self,
        token_id: int,
        slots: Sequence[int],  # of the positions 0, 1, ... and last the token's own
        memory: Sequence[LayerKV],  # by layer
    ) -> Vector:  # [hidden]
        """What the token makes of itself and of all before it, whose keys and values are in
        memory. Writes its own there."""
        hidden = self.embedding[token_id]
        angles = rotary_angles(len(slots) - 1, self.config.head_dim, self.config.rope_theta)
        turns = [(math.cos(angle), math.sin(angle)) for angle in angles]
        eps = self.config.rms_norm_eps
        for layer, layer_memory in zip(self.layers, memory, strict=True):
            normed = rms_norm(hidden, layer.attention_norm, eps)
            hidden = list(map(add, hidden, self.attend(layer, normed, turns, slots, layer_memory)))
            normed = rms_norm(hidden, layer.mlp_norm, eps)
            hidden = list(map(add, hidden, gated_mlp(layer, normed)))
        return rms_norm(hidden, self.norm, eps)

    def attend(
        self,
        layer: Layer,
        x: Vector,
        turns: Sequence[tuple[float, float]],
        slots: Sequence[int],
        memory: LayerKV,
    ) -> Vector:  # [hidden]
        """Attention of one layer. Query heads share KV heads in order (Ainslie et al., 2023):
        with 6 on 2, heads 0 to 2 read KV head 0."""
        size = self.config.head_dim
        queries = [rope(head, turns) for head in in_heads(layer.q(x), size)]
        keys = [rope(head, turns) for head in in_heads(layer.k(x), size)]
        values = in_heads(layer.v(x), size)
        group = len(queries) // len(keys)
        out = []
        for head, (key, value) in enumerate(zip(keys, values, strict=True)):
            memory.keys[head][slots[-1]] = key
            memory.values[head][slots[-1]] = value
            own = queries[head * group : (head + 1) * group]
            out += attention(own, memory.read_keys(head, slots), memory.read_values(head, slots))
        return layer.o(out)

    def compute_logits(self, hidden: Vector) -> Vector:  # [vocab]
        """The score of each id to be the next token."""
        return self.head(hidden)


def check_supported(config: ModelConfig) -> None:
    """Raises ValueError naming what the checkpoint asks for beyond the plain Llama."""
    asked = {
        "norms of queries and keys": config.qk_norm,
        "RoPE scaling": config.rope_scaling is not None,
        "sliding window attention": any(window is not None for window in config.windows),
        "layers without RoPE": bool(config.layers_without_rope),
        "fused weights": config.fused_weights,
    }
    for feature, is_asked in asked.items():
        if is_asked:
            raise ValueError(f"{config.path}: PlainExecutor has no {feature}: use UniprocExecutor")


def rms_norm(x: Vector, weight: Vector, eps: float) -> Vector:
    """x / sqrt(mean(x^2) + eps), times weight, number by number (Zhang and Sennrich, 2019)."""
    scale = (dot(x, x) / len(x) + eps) ** -0.5
    return [number * scale * own for number, own in zip(x, weight, strict=True)]


def rotary_angles(position: int, head_dim: int, theta: float) -> list[float]:
    """By how much a position turns each of the head_dim / 2 pairs of a head, in radians:
    position / theta^(2 i / head_dim) for pair i (Su et al., 2021). Models are trained with angles
    in float32; at position 1,000 scores differ by some 1e-5 for it."""
    return [position / theta ** (i / head_dim) for i in range(0, head_dim, 2)]


def rope(head: Vector, turns: Sequence[tuple[float, float]]) -> Vector:
    """Turn number i of a head together with number i + head_dim / 2, by (cosine, sine) of the
    pair's angle: (a, b) becomes (a cos - b sin, b cos + a sin)."""
    half = len(head) // 2
    pairs = list(zip(head[:half], head[half:], turns, strict=True))
    first = [a * cos - b * sin for a, b, (cos, sin) in pairs]
    second = [b * cos + a * sin for a, b, (cos, sin) in pairs]
    return first + second


def in_heads(x: Vector, head_dim: int) -> list[Vector]:
    """A vector cut into heads."""
    return [x[start : start + head_dim] for start in range(0, len(x), head_dim)]


def attention(
    queries: Sequence[Vector],  # the heads that share these keys
    keys: Sequence[Vector],  # [positions][head_dim]
    values: Sequence[Vector],  # [positions][head_dim]
) -> Vector:  # the heads' results, one after the other
    """For each query the mean of the values, each weighed by softmax(query . key / sqrt(head_dim))
    of its key (Vaswani et al., 2017)."""
    out = []
    columns = list(zip(*values, strict=True))  # [head_dim][positions]
    for query in queries:
        scale = len(query) ** -0.5
        scaled = [number * scale for number in query]
        weights = softmax([dot(scaled, key) for key in keys])
        out += [dot(weights, column) for column in columns]
    return out


def softmax(scores: Sequence[float]) -> list[float]:
    """e^score of each, over their sum. The best goes first, so that none overflows."""
    best = max(scores)
    powers = [math.exp(score - best) for score in scores]
    whole = sum(powers)
    return [power / whole for power in powers]


def gated_mlp(layer: Layer, x: Vector) -> Vector:
    """down(silu(gate(x)) * up(x)) (Shazeer, 2020)."""
    return layer.down(list(map(mul, map(silu, layer.gate(x)), layer.up(x))))


def silu(x: float) -> float:
    """x / (1 + e^-x), by the power that cannot overflow."""
    if x < 0:
        power = math.exp(x)
        return x * power / (1 + power)
    return x / (1 + math.exp(-x))
