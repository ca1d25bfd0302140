"""Requests that start from another's blocks, held back until those blocks are computed."""

from __future__ import annotations

from ..request import Request


class Forks:
    """Held requests by the id of the one they fork."""

    def __init__(self) -> None:
        self.held: dict[str, list[Request]] = {}

    def __len__(self) -> int:
        return sum(len(children) for children in self.held.values())

    def __iter__(self):
        return (child for children in self.held.values() for child in children)

    def hold(self, child: Request) -> None:
        self.held.setdefault(child.fork_of, []).append(child)

    def release(self, parent: Request) -> list[Request]:
        """The children whose time has come: the parent has computed all their tokens but the
        last, or has ended."""
        children = self.held.pop(parent.request_id, [])
        ready = [c for c in children if parent.is_finished or has_computed(parent, c)]
        if len(ready) < len(children):
            self.held[parent.request_id] = [c for c in children if c not in ready]
        return ready

    def remove(self, child: Request) -> None:
        self.held[child.fork_of].remove(child)
        if not self.held[child.fork_of]:
            del self.held[child.fork_of]


def has_computed(parent: Request, child: Request) -> bool:
    """Whether the parent's KV holds all tokens of the child but the last."""
    return parent.num_computed_tokens >= child.num_tokens - 1
