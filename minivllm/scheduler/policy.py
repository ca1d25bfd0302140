"""In which order waiting requests are admitted. A policy looks; it never touches a block."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from ..kvcache.kv_cache_manager import KVCacheManager
from ..request import Request
from .plan import StepPlan


class Policy(Protocol):
    """The contract of every policy. One engine has one policy, made with its memory's manager."""

    def order(self, waiting: Sequence[Request], now: float) -> Iterable[Request]:
        """The waiting requests, the one to admit first at the front. In `waiting` those that
        were stopped stand in front, then the others by arrival."""

    def rank(self, request: Request) -> int:
        """Among running requests, the higher is stopped first when memory is full."""

    def may_admit(self, request: Request, plan: StepPlan) -> str | None:
        """None, or the reason why the request, and all behind it, must wait."""

    def served(self, request: Request, num_tokens: int) -> None:
        """The plan computes num_tokens tokens of the request."""


class Fcfs:
    """First come, first served: nobody is overtaken, so nobody waits for ever."""

    def __init__(self, kv: KVCacheManager) -> None:
        pass

    def order(self, waiting: Sequence[Request], now: float) -> Iterable[Request]:
        return waiting

    def rank(self, request: Request) -> int:
        return 0

    def may_admit(self, request: Request, plan: StepPlan) -> str | None:
        return None

    def served(self, request: Request, num_tokens: int) -> None:
        pass


class Static(Fcfs):
    """Batches as before Orca: nobody joins until the whole batch has ended. For comparison."""

    def may_admit(self, request: Request, plan: StepPlan) -> str | None:
        is_running = len(plan.rows) > len(plan.new_requests)
        return "the batch before has not ended" if is_running else None


class Priority(Fcfs):
    """The lower number first; equal numbers by arrival. Every `ageing_s` seconds of waiting count
    as one number less, so that the least of all is admitted some day."""

    def __init__(self, kv: KVCacheManager, ageing_s: float = 60.0) -> None:
        self.ageing_s = ageing_s

    def order(self, waiting: Sequence[Request], now: float) -> Iterable[Request]:
        def urgency(request: Request) -> tuple:
            waited = now - request.arrival_time
            return request.priority - int(waited / self.ageing_s), request.arrival_time

        return sorted(waiting, key=urgency)

    def rank(self, request: Request) -> int:
        return request.priority


class Fair(Fcfs):
    """The tenant that was served the fewest tokens first (Sheng et al., OSDI 2024). A tenant that
    comes back after a pause starts level with the least served of those that wait, so it cannot
    save up. The tenant is the request's extra_key."""

    def __init__(self, kv: KVCacheManager) -> None:
        self.num_served: dict[tuple, int] = {}
        self.waited: set[tuple] = set()  # tenants that waited when last looked at

    def order(self, waiting: Sequence[Request], now: float) -> Iterable[Request]:
        tenants = {request.extra_key for request in waiting}
        stayed = [self.num_served[tenant] for tenant in tenants & self.waited]
        for tenant in tenants - self.waited:
            level = max(self.num_served.get(tenant, 0), min(stayed, default=0))
            self.num_served[tenant] = level
        self.waited = tenants
        return sorted(waiting, key=lambda request: self.num_served[request.extra_key])

    def served(self, request: Request, num_tokens: int) -> None:
        before = self.num_served.get(request.extra_key, 0)
        self.num_served[request.extra_key] = before + num_tokens


class LongestPrefixMatch(Fcfs):
    """Whoever finds most of its prompt in the prefix cache first (SGLang's lpm): what is cached is
    used before it is evicted. A request that has waited `max_wait_s` goes before all others, by
    arrival. Matching has a price: of a queue longer than `max_matched`, the order is by arrival.
    """

    def __init__(
        self, kv: KVCacheManager, max_wait_s: float = 10.0, max_matched: int = 128
    ) -> None:
        self.kv = kv
        self.max_wait_s = max_wait_s
        self.max_matched = max_matched

    def order(self, waiting: Sequence[Request], now: float) -> Iterable[Request]:
        """First whoever has waited max_wait_s, by arrival; then by how many cached blocks the
        request would find, the most first, equals by arrival. now: seconds, as arrival_time is.
        More than max_matched requests stay in the order of arrival. Raises nothing."""
        if len(waiting) > self.max_matched:
            return waiting

        def place(request: Request) -> tuple[bool, int]:
            is_young = now - request.arrival_time < self.max_wait_s
            return is_young, -len(self.kv.get_computed_blocks(request)) if is_young else 0

        return sorted(waiting, key=place)


class DepthFirst(LongestPrefixMatch):
    """Requests that share a cached path stand next to each other, as in a walk through the tree of
    prefixes (SGLang's dfs-weight, simplified): by the ids of the blocks that they match. Those
    that match nothing go last."""

    def order(self, waiting: Sequence[Request], now: float) -> Iterable[Request]:
        if len(waiting) > self.max_matched:
            return waiting

        def place(request: Request) -> tuple[bool, bool, list[int]]:
            is_young = now - request.arrival_time < self.max_wait_s
            path = self.kv.get_computed_blocks(request) if is_young else []
            return is_young, not path, path

        return sorted(waiting, key=place)


POLICIES: dict[str, Callable[[KVCacheManager], Policy]] = {
    "fcfs": Fcfs,
    "static": Static,
    "priority": Priority,
    "fair": Fair,
    "lpm": LongestPrefixMatch,
    "dfs": DepthFirst,
}
