"""The comparisons that introductions to serving like to simulate, here with the real scheduler and
caches: one call each. Times are modelled, of a Llama 3 8B on an H100 unless you say otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .model_shapes import MODELS
from .outcome import deploy, figures, run
from .roofline import Deployment
from .workload import WorkloadRequest

Figures = dict[str, float]  # what report.summarize returns


def simulate_static(
    reqs: Sequence[WorkloadRequest], batch: int = 16, deployment: Deployment | None = None
) -> Figures:
    """Batches as before Orca: the next one starts when the longest answer of this one ends."""
    longest = max(len(r.prompt_token_ids) for r in reqs)
    return figures(
        run(
            reqs,
            deployment or deploy("llama-3-8b", "h100"),
            policy="static",
            max_num_seqs=batch,
            max_num_batched_tokens=batch * longest,
        )
    )


def simulate_continuous(
    reqs: Sequence[WorkloadRequest], chunked: bool = True, deployment: Deployment | None = None
) -> Figures:
    """Continuous batching; with chunked, in steps of at most 512 tokens, else with room for every
    prompt in one piece, however long all others wait for it."""
    longest = max(len(r.prompt_token_ids) for r in reqs)
    return figures(
        run(
            reqs,
            deployment or deploy("llama-3-8b", "h100"),
            max_num_batched_tokens=512 if chunked else 256 + longest,
        )
    )


ORDERS = {"FCFS": "fcfs", "CACHE_AWARE": "lpm"}


def simulate(
    requests: Sequence[WorkloadRequest],
    order: str,
    num_blocks: int | None = None,
    deployment: Deployment | None = None,
) -> Figures:
    """With a radix tree, serving by arrival ("FCFS") or the longest cached prefix first
    ("CACHE_AWARE"). num_blocks: a smaller KV memory than would fit. Raises ValueError for
    another order."""
    if order not in ORDERS:
        raise ValueError(f"order must be one of {', '.join(ORDERS)}, got {order!r}")
    return figures(
        run(
            requests,
            deployment or deploy("llama-3-8b", "h100"),
            prefix_cache="radix",
            policy=ORDERS[order],
            num_blocks=num_blocks,
        )
    )


@dataclass(frozen=True, slots=True)
class Stack:
    """A precision, as far as memory is concerned."""

    weight_bits: float
    kv_bits: int


STACKS = {
    "bf16": Stack(16, 16),
    "fp8": Stack(8, 8),
    "nvfp4": Stack(4.5, 8),  # 4 bits, and 8 of scale for each 16 weights
}


def hbm_footprint_gb(params_b: float, active_b: float, seq_len: int, stack: str) -> float:
    """GB of the weights and of one request's KV. params_b, active_b: billions of parameters, all
    and those a token meets. Such numbers do not say how large the KV is; taken is that of the
    known model whose active parameters are nearest in proportion. Raises ValueError for an
    unknown stack."""
    if stack not in STACKS:
        raise ValueError(f"unknown stack {stack!r}: known are {', '.join(STACKS)}")
    bits = STACKS[stack]
    ratio = {m: (m.active_params + m.head_params) / (active_b * 1e9) for m in MODELS.values()}
    like = min(ratio, key=lambda model: max(ratio[model], 1 / ratio[model]))
    numbers = 2 * like.num_layers * like.num_kv_heads * like.head_dim * seq_len
    return params_b * bits.weight_bits / 8 + numbers * bits.kv_bits / 8 / 1e9
