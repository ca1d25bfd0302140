"""Memory is full in mid-sentence: whom to stop."""

from __future__ import annotations

from collections.abc import Sequence

from ..request import Request


def choose_victim(running: Sequence[Request]) -> Request:
    """The request to stop so that another can go on: the one admitted last.

    The one admitted first is then never stopped while others run, so somebody always makes
    progress, and whoever is stopped has the least to lose.
    """
    return running[-1]
