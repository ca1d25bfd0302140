"""The experiments by name."""

from __future__ import annotations

from .memory_experiments import preemption_cliff, recompute_or_swap, scrambled_prompts
from .scheduling_experiments import cache_aware_order, chunked_prefill, static_batching

EXPERIMENTS = {
    "static-batching": static_batching,
    "chunked-prefill": chunked_prefill,
    "scrambled-prompts": scrambled_prompts,
    "cache-aware-order": cache_aware_order,
    "preemption-cliff": preemption_cliff,
    "recompute-or-swap": recompute_or_swap,
}
