"""In which order waiting requests are admitted. A policy looks; it never touches a block."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from ..request import Request


class Policy(Protocol):
    """The contract of every policy."""

    def order(self, waiting: Sequence[Request], now: float) -> Iterable[Request]:
        """The waiting requests, the one to admit first at the front. Preempted requests stand
        at the front of `waiting` already."""

    def may_admit(self, request: Request, num_running: int) -> str | None:
        """None, or the reason why the request, and all behind it, must wait."""


class Fcfs:
    """First come, first served: nobody is overtaken, so nobody waits for ever."""

    def order(self, waiting: Sequence[Request], now: float) -> Iterable[Request]:
        return waiting

    def may_admit(self, request: Request, num_running: int) -> str | None:
        return None


POLICIES = {"fcfs": Fcfs}
