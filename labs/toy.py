"""A model in plain Python whose memory can be read: the judge behind the engine's door.

It is an executor, and stands in the judge's process; the engine that is judged calls it over the
channel. Each slot of its memory holds which token was written there and at which position. The
next token is a function of *all* tokens that it reads back through the request's block table. So
a wrong slot, a block that two requests write, a stale table, a lost token: each changes the text,
or is caught in the act, and said in a sentence.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from lessons.draw import timeline
from minivllm.outputs import EngineCoreRequest, ModelRunnerOutput, Row, SchedulerOutput
from minivllm.sampling_params import SamplingParams

from .judge import Lab, Proxy, Wrong

VOCAB_SIZE = 50
WORDS = (  # noqa: SIM905
    "the a cat dog sat ran on under mat moon and but saw heard small old red quiet bird fish boat "
    "river house garden slowly never always again over into with light snow rain sun night day "
    "door song road tree stone green warm cold long far near home ."
).split()
EOS = VOCAB_SIZE - 1  # "."
EMPTY, POISON = "nothing", "poison"

Slots = Callable[[Sequence[int], int, int, int], Sequence[int]]


def next_token(tokens: Sequence[int]) -> int:
    """What the model says after these tokens."""
    return hashlib.sha256(repr([int(t) for t in tokens]).encode()).digest()[0] % VOCAB_SIZE


def text_of(token_ids: Sequence[int]) -> str:
    """Tokens as words, for a person. Raises TypeError for what is no token id: % means something
    else to a str."""
    if not all(isinstance(t, int) for t in token_ids):
        raise TypeError("a token id is an int")
    return " ".join(WORDS[t % VOCAB_SIZE] for t in token_ids)


def greedy(
    prompt: Sequence[int], max_tokens: int, eos: Sequence[int] = (), min_tokens: int = 0
) -> list[int]:
    """What a request must say, in whatever company: the law, in six lines."""
    tokens, output = list(prompt), []
    while len(output) < max_tokens:
        output.append(next_token(tokens + output))
        if output[-1] in eos and len(output) >= min_tokens:
            break
    return output


def slots_of(table: Sequence[int], start: int, num: int, block_size: int) -> list[int]:
    """The judge's own arithmetic, one position at a time."""
    slots = []
    for position in range(start, start + num):
        index, offset = divmod(position, block_size)
        slots.append(table[index] * block_size + offset)
    return slots


class ToyModel:
    """The executor. slots: whose arithmetic says where a token is written (the judge's, unless a
    lab is about it); what is read is always found by the judge's."""

    def __init__(self, num_blocks: int, block_size: int, slots: Slots = slots_of) -> None:
        self.num_blocks, self.block_size, self.slots = num_blocks, block_size, slots
        self.memory: list[Any] = [EMPTY] * (num_blocks * block_size)
        self.tables: dict[str, list[int]] = {}
        self.plans: list[SchedulerOutput] = []

    def execute_model(self, plan: SchedulerOutput) -> None:
        """Take the plan's messages in, and write the tokens of its rows."""
        self.plans.append(plan)
        for request_id in (*plan.finished_ids, *plan.preempted_ids):
            if self.tables.pop(request_id, None) is None:
                raise Wrong(f"Step {plan.step} ends request {request_id}, which does not run.")
        for new in plan.new_requests:
            if new.request_id in self.tables:
                raise Wrong(f"Step {plan.step} introduces request {new.request_id} again.")
            self.tables[new.request_id] = []
        for block_id in plan.freed_blocks:
            self._fill(block_id, POISON)
        for row in plan.rows:
            self._write(plan, row)

    def sample_tokens(self, step: int, masks: Any = None) -> ModelRunnerOutput:
        """Read each row's tokens back and say what comes next."""
        if not self.plans or self.plans[-1].step != step:
            raise Wrong(f"Step {step} is sampled, and it was not the last to be executed.")
        sampled = []
        for row in self.plans[-1].rows:
            tokens = self._read(row)
            sampled.append((next_token(tokens),) if row.num_to_sample else ())
        return ModelRunnerOutput(step=step, sampled=tuple(sampled))

    def steps(self) -> list[list[tuple[str, int, bool]]]:
        """Each step's rows, as a timeline draws them."""
        return [[(r.request_id, len(r.token_ids), r.num_to_sample > 0) for r in plan.rows]
                for plan in self.plans]  # fmt: skip

    def _write(self, plan: SchedulerOutput, row: Row) -> None:
        table = self.tables.get(row.request_id)
        if table is None:
            raise Wrong(f"Step {plan.step} plans request {row.request_id}, which was never "
                        f"introduced, or was ended.")  # fmt: skip
        table[row.table_start[0] :] = row.table_ids[0]
        self._check_table(row, table)
        slots = self.slots(tuple(table), row.start, len(row.token_ids), self.block_size)
        if len(slots) != len(row.token_ids):
            raise Wrong("slot_mapping gives one slot for each position.",
                        expected=len(row.token_ids), got=len(slots))  # fmt: skip
        for offset, (slot, token_id) in enumerate(zip(slots, row.token_ids)):
            if not self.block_size <= slot < len(self.memory):
                raise Wrong(
                    f"Request {row.request_id} writes into slot {slot}. Slots of blocks that may "
                    f"be used: {self.block_size} to {len(self.memory) - 1}."
                )
            self.memory[slot] = (row.start + offset, token_id)

    def _check_table(self, row: Row, table: list[int]) -> None:
        end = row.start + len(row.token_ids)
        if end > len(table) * self.block_size:
            raise Wrong(f"Request {row.request_id} computes up to position {end - 1}, and its "
                        f"{len(table)} blocks of {self.block_size} hold "
                        f"{len(table) * self.block_size} tokens.")  # fmt: skip
        if not all(0 < block_id < self.num_blocks for block_id in table):
            raise Wrong(f"Request {row.request_id} has blocks {table}; blocks that may be used: "
                        f"1 to {self.num_blocks - 1}.")  # fmt: skip

    def _read(self, row: Row) -> list[int]:
        """All tokens of a request up to the end of this row."""
        table, end = self.tables[row.request_id], row.start + len(row.token_ids)
        tokens = []
        for position, slot in enumerate(slots_of(table, 0, end, self.block_size)):
            held = self.memory[slot]
            if not isinstance(held, tuple) or held[0] != position:
                what = held if isinstance(held, str) else f"the token of position {held[0]}"
                raise Wrong(
                    f"Request {row.request_id} reads position {position} in block "
                    f"{slot // self.block_size} (slot {slot}) and finds {what} there."
                )
            tokens.append(held[1])
        return tokens

    def _fill(self, block_id: int, what: str) -> None:
        start = block_id * self.block_size
        self.memory[start : start + self.block_size] = [what] * self.block_size


def params(max_tokens: int, **more: Any) -> SamplingParams:
    """Greedy, and nothing left to chance."""
    return SamplingParams(temperature=0, seed=0, max_tokens=max_tokens, **more)


def request(
    request_id: str, prompt: Sequence[int], max_tokens: int, **more: Any
) -> EngineCoreRequest:
    return EngineCoreRequest(request_id, tuple(prompt), params(max_tokens, **more))


class ToyEngine:
    """The learner's engine core in front of the judge's model."""

    def __init__(
        self,
        lab: Lab,
        *,
        num_blocks: int = 64,
        block_size: int = 4,
        max_num_seqs: int = 8,
        budget: int = 16,
        eos: Sequence[int] = (),
        policy: Any = None,  # lent; None: first come, first served
        slots: Slots = slots_of,
        **scheduling: Any,
    ) -> None:
        self.lab = lab
        self.model = ToyModel(num_blocks, block_size, slots)
        self.kv = lab.new("kvcache.kv_cache_manager.KVCacheManager", num_blocks, block_size)
        self.scheduler: Proxy = lab.new(
            "scheduler.scheduler.Scheduler",
            self.kv,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=budget,
            max_model_len=(num_blocks - 1) * block_size,
            eos_token_ids=tuple(eos),
            policy=policy,
            debug=True,
            **scheduling,
        )
        executor = lab.lend(self.model, "execute_model", "sample_tokens")
        self.core: Proxy = lab.new("engine.core.EngineCore", self.scheduler, executor)
        self.outputs: dict[str, list[int]] = {}
        self.reasons: dict[str, str] = {}

    def add(self, request_id: str, prompt: Sequence[int], max_tokens: int, **more: Any) -> None:
        self.outputs[request_id] = []
        self.core.add_request(request(request_id, prompt, max_tokens, **more))

    def step(self) -> list[str]:
        """One step; the requests that ended in it."""
        ended = []
        for output in self.core.step():
            self.outputs[output.request_id] += output.new_token_ids
            if output.finish_reason:
                self.reasons[output.request_id] = output.finish_reason
                ended.append(output.request_id)
        return ended

    def run(self, max_steps: int, says: str) -> int:
        """Step until all requests have ended; returns the number of steps. More than max_steps is
        wrong, with this sentence and the timeline."""
        steps = 0
        while self.core.has_unfinished_requests:
            if steps == max_steps:
                raise Wrong(says, picture=self.timeline())
            self.step()
            steps += 1
        return steps

    def timeline(self, caption: str = "", last: int = 20) -> Callable[[], Any]:
        """What draws the steps so far."""
        return partial(timeline, self.model.steps()[:last], caption)
