"""Why a plan looks as it does: read off the plan and the scheduler's state, request by request.

The scheduler is not asked. The rules are those that `Scheduler.schedule` and `_plan_waiting`
state, so a scheduler that somebody else wrote is explained by them too, or shown to break them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

WAITS, PREFILL, DECODE, STOPPED, PAUSED = "waits", "prefill", "decode", "stopped", "paused"


@dataclass(frozen=True, slots=True)
class Limits:
    """What a step may take. blocks: those that can be handed out."""

    places: int = 3  # max_num_seqs
    budget: int = 16  # max_num_batched_tokens
    blocks: int = 99
    block_size: int = 4
    policy: str = "fcfs"
    max_chunk: int = 0  # long_prefill_token_threshold


@dataclass(frozen=True, slots=True)
class Did:
    """What a step did with one request that had not ended before."""

    name: str
    state: str  # WAITS, PREFILL, DECODE, STOPPED, or PAUSED: owns blocks and got no token
    why: str  # one to three sentences
    num_tokens: int = 0  # computed in this step
    num_computed: int = 0  # before it
    num_had: int = 0  # prompt and answer so far, before it
    starts: bool = False  # admitted in this step
    is_cut: bool = False  # some of its tokens are left for a later step
    gains: bool = False  # a new token came of it
    ends: bool = False
    num_blocks: int = 0  # owned while the step runs


class Look:
    """What is seen between a plan and its answer. ran: who ran before the plan was made, and how
    many of its tokens were computed. notes: what the scheduler told its trace."""

    def __init__(
        self, scheduler: Any, plan: Any, now: float, limits: Limits, ran: dict, notes: list
    ) -> None:
        self.scheduler, self.plan, self.limits, self.ran = scheduler, plan, limits, ran
        self.kv = scheduler.kv
        self.num_free = self.kv.num_free_blocks
        self.requests = dict(scheduler.requests)
        self.had = {name: request.num_tokens for name, request in self.requests.items()}
        self.sizes = {name: len(table) for name, table in self.kv.tables.items()}
        self.new = [new.request_id for new in plan.new_requests]
        self.num_running = len(scheduler.running)
        order = list(scheduler.policy.order(scheduler.waiting, now))
        self.waiting = [request.request_id for request in order]
        self.blockage = self._blockage(order[0]) if order else ""
        self.stopped_for = {who: facts["for_id"] for what, who, facts in notes
                            if what == "preempted"}  # fmt: skip

    def did(self, gained: set[str], ended: set[str]) -> tuple[Did, ...]:
        """One entry for each request, those with tokens first. gained, ended: what the answer to
        the plan brought."""
        left, did = self.limits.budget, []
        for row in self.plan.rows:
            did.append(self._row(row, left, row.request_id in gained, row.request_id in ended))
            left -= len(row.token_ids)
        planned = {row.request_id for row in self.plan.rows}
        for name in self.sizes:
            if name not in planned:
                did.append(self._still(name, PAUSED, self._why_paused(left)))
        for index, name in enumerate(self.waiting):
            if name in self.plan.preempted_ids:
                did.append(self._still(name, STOPPED, self._why_stopped(name)))
            else:
                did.append(self._still(name, WAITS, self._why_waits(index)))
        return tuple(did)

    def _still(self, name: str, state: str, why: str) -> Did:
        return Did(
            name, state, why,
            num_computed=self.ran.get(name, 0),
            num_had=self.had[name],
            num_blocks=self.sizes.get(name, 0),
        )  # fmt: skip

    def _row(self, row: Any, left: int, gains: bool, ends: bool) -> Did:
        name, num_tokens, had = row.request_id, len(row.token_ids), self.had[row.request_id]
        is_cut = row.start + num_tokens < had
        is_decode = num_tokens == 1 and not is_cut and had > self.requests[name].num_prompt_tokens
        words = [self._why_admitted(name, left)] if name in self.new else []
        if is_decode:
            words.append("Runs, so it goes first: 1 token, the one it was given last.")
        else:
            words.append(self._why_so_many(row, had - row.start, left))
        if ends:
            words.append(f"The new one is its last: it leaves, and {blocks(self.sizes[name])} "
                         f"will be free.")  # fmt: skip
        return Did(
            name, DECODE if is_decode else PREFILL, " ".join(words), num_tokens, row.start, had,
            name in self.new, is_cut, gains, ends, self.sizes[name],
        )  # fmt: skip

    def _why_admitted(self, name: str, left: int) -> str:
        """The state when its turn came: whoever was admitted after it had taken nothing yet."""
        later = self.new[self.new.index(name) :]
        free = self.num_free + sum(self.sizes[n] for n in later)
        return (
            f"{'Comes back' if self._is_back(name) else 'Admitted'}: "
            f"{self.num_running - len(later)} of {self.limits.places} places were taken, {left} "
            f"of {self.limits.budget} tokens left, and it needs {blocks(self.sizes[name])} of the "
            f"{free} free."
        )

    def _is_back(self, name: str) -> bool:
        return self.requests[name].num_preemptions > 0

    def _why_so_many(self, row: Any, todo: int, left: int) -> str:
        num_tokens = len(row.token_ids)
        again = ""
        if self._is_back(row.request_id) and row.start == 0:
            again = ", from its start again"
        if num_tokens == todo:
            which = f"All {todo}" if row.start == 0 else f"The last {todo}"
            fit = "fits" if todo == 1 else "fit"
            return f"{which} of its tokens {fit} in{again}: it also gets a new one."
        is_own = num_tokens == self.limits.max_chunk and num_tokens < left
        most = "one request may take no more of a step" if is_own else "the step has no more left"
        return f"Chunked: {num_tokens} of {todo} tokens now{again}; {most}."

    def _why_paused(self, left: int) -> str:
        if left:
            return f"Runs and got no token, although {left} of the budget were left."
        return "Runs, but the budget was spent before its turn."

    def _why_stopped(self, name: str) -> str:
        other = self.stopped_for.get(name, "another")
        if other == name:
            return ("Stopped: it needed a block and none was free. Whoever came last gives way, "
                    "and that is itself. It waits at the head of the queue.")  # fmt: skip
        return (f"Stopped: {other} needed a block and none was free. Whoever came last gives its "
                f"blocks up. It waits at the head of the queue.")  # fmt: skip

    def _why_waits(self, index: int) -> str:
        if self.plan.preempted_ids:
            names = " and ".join(self.plan.preempted_ids)
            return f"Waits: memory is so short that {names} had to stop; nobody is admitted now."
        if index > 0:
            return f"Waits behind {self.waiting[index - 1]}: nobody overtakes."
        return f"Waits: {self.blockage}"

    def _blockage(self, head: Any) -> str:
        """What stands in the way of the first who waits, asked in the scheduler's order."""
        limits, spare = self.limits, sum(self.kv.is_full(r) for r in self.scheduler.running)
        if self.num_running >= limits.places:
            return f"{self.num_running} of {limits.places} places are taken."
        if self.plan.num_tokens >= limits.budget:
            return f"the {limits.budget} tokens of this step are spent."
        if barred := self.scheduler.policy.may_admit(head, self.plan):
            return f"{barred}."
        if not self.kv.fits(head, head.num_tokens, spare):
            need = blocks(-(-head.num_tokens // limits.block_size))
            kept = f", {spare} of them kept for those who run" if spare and self.num_free else ""
            free = f"{self.num_free} {'is' if self.num_free == 1 else 'are'} free{kept}"
            return f"its {head.num_tokens} tokens need {need}; {free}."
        return "and nothing stands in its way. The course's scheduler would have admitted it."


def blocks(num: int) -> str:
    return f"{num} block{'' if num == 1 else 's'}"
