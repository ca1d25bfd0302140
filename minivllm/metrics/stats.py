"""Counters of what the scheduler did since it was made."""

from __future__ import annotations

from dataclasses import dataclass

from ..request import Request


@dataclass(slots=True)
class SchedulerStats:
    """Sums over all requests; a request that is admitted again counts once."""

    num_prompt_tokens: int = 0  # of requests that were admitted
    num_cached_tokens: int = 0  # of those tokens, found computed already
    num_evicted_blocks: int = 0  # that the prefix cache had to forget
    num_preemptions: int = 0
    num_swaps: int = 0  # preemptions that moved KV to host memory instead of giving it up
    num_finished: int = 0
    num_failed: int = 0  # of those, with an error of their own

    def count_end(self, request: Request) -> None:
        self.num_finished += 1
        self.num_failed += request.error is not None

    @property
    def hit_rate(self) -> float:
        """Share of prompt tokens that nobody had to compute; 0 before the first prompt."""
        return self.num_cached_tokens / self.num_prompt_tokens if self.num_prompt_tokens else 0.0
