"""How a token's position enters attention: angles, by position and pair of numbers in a head."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..checkpoint.model_config import ModelConfig, RopeScaling


class RotaryTable:
    """Cosines and sines of all positions, looked up once a step for every layer.

    A table, so that a position's angles are the same bits in any company. The angles are float32
    whatever the dtype: models are trained with that rounding, and transformers has it too.
    """

    def __init__(
        self, config: ModelConfig, *, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        positions = torch.arange(config.max_position_embeddings, dtype=torch.float32)
        angles = torch.outer(positions, frequencies(config))  # [positions, head_dim / 2]
        scale = config.rope_scaling.attention_factor if config.rope_scaling else 1.0
        cos, sin = angles.cos() * scale, angles.sin() * scale
        self.cos = torch.cat((cos, cos), dim=1).to(device, dtype)
        self.sin = torch.cat((-sin, sin), dim=1).to(device, dtype)  # as Ops.rope wants it

    def look_up(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """positions [tokens] -> cos and sin, each [tokens, 1, head_dim]."""
        return self.cos[positions, None], self.sin[positions, None]


def frequencies(config: ModelConfig) -> Tensor:  # [head_dim / 2] float32
    """Radians that each pair turns by from one position to the next: theta^(-2i / head_dim) for
    pair i (Su et al., 2021), slowed as config.rope_scaling says."""
    scaling, theta = config.rope_scaling, config.rope_theta
    if scaling is not None and scaling.kind == "dynamic":
        theta = dynamic_theta(config, scaling)
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    periods = theta**exponents
    if scaling is None or scaling.kind == "dynamic":
        return 1.0 / periods
    if scaling.kind == "linear":
        return 1.0 / periods / scaling.factor
    if scaling.kind == "divisors":
        return 1.0 / (torch.tensor(scaling.divisors) * periods)
    if scaling.kind == "llama3":
        return slowed_like_llama3(1.0 / periods, scaling)
    assert scaling.kind == "yarn", scaling.kind
    return slowed_by_yarn(periods, theta, scaling)


def dynamic_theta(config: ModelConfig, scaling: RopeScaling) -> float:
    """NTK scaling: a larger theta, so that the slowest pair turns no further over all positions
    than it did in training.

    transformers lets theta grow with the longest sequence so far, and so a text would depend on
    its company. Here, as in vLLM (rotary_embedding/dynamic_ntk_scaling_rope.py), theta is settled
    once, for the most positions that there are.
    """
    stretch = config.max_position_embeddings / scaling.original_max_position_embeddings
    grown = scaling.factor * stretch - (scaling.factor - 1)
    return config.rope_theta * grown ** (config.head_dim / (config.head_dim - 2))


def slowed_like_llama3(trained: Tensor, scaling: RopeScaling) -> Tensor:
    """Llama 3.1's rule. A pair that turned at least high_freq_factor times over the positions of
    the first training stays; one that turned at most low_freq_factor times is divided by the
    factor; between the two borders the change is even."""
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    turns = scaling.original_max_position_embeddings / (2 * math.pi / trained)
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - kept) * trained / scaling.factor + kept * trained


def slowed_by_yarn(periods: Tensor, theta: float, scaling: RopeScaling) -> Tensor:
    """YaRN (Peng et al., 2023, section 3.2). The same idea as Llama 3's, but between the borders
    the change is even in the number of the pair: from the pair that turned beta_fast times in
    training, which stays, to the one that turned beta_slow times."""
    num_pairs = len(periods)

    def pair_that_turns(times: float) -> float:
        length = scaling.original_max_position_embeddings
        return num_pairs * math.log(length / (times * 2 * math.pi)) / math.log(theta)

    first, last = pair_that_turns(scaling.beta_fast), pair_that_turns(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * num_pairs - 1)
    if first == last:
        last += 0.001  # one pair is the border
    pairs = torch.arange(num_pairs, dtype=torch.float32)
    kept = 1 - ((pairs - first) / (last - first)).clamp(0, 1)
    return 1.0 / (scaling.factor * periods) * (1 - kept) + 1.0 / periods * kept
