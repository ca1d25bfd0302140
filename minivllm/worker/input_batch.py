"""What the worker knows of each request, and a plan's rows laid out flat for the model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..kernels import AttentionMetadata
from ..kvcache.block_table import slot_mapping
from ..outputs import LAST_SAMPLED, NULL_BLOCK, NewRequest, Row, SchedulerOutput
from ..sample.rules import ScoreRules
from ..sampling_params import SamplingParams


@dataclass(slots=True)
class RequestState:
    """One request, by what the scheduler has said and what was sampled here."""

    request_id: str
    token_ids: list[int]  # prompt and what was sampled
    num_prompt_tokens: int
    sampling_params: SamplingParams
    sample_index: int
    block_table: list[int] = field(default_factory=list)
    rules: ScoreRules | None = None  # if its settings change scores

    def take(self, row: Row) -> None:
        """Bring the block table and the tokens up to date with a row of the plan."""
        (first,), (block_ids,) = row.table_start, row.table_ids
        assert first <= len(self.block_table), "a block table cannot have a gap"
        self.block_table[first : first + len(block_ids)] = block_ids
        assert row.start <= len(self.token_ids), "tokens were left out"
        for position, token_id in enumerate(row.token_ids, row.start):
            if token_id == LAST_SAMPLED:
                assert position == len(self.token_ids) - 1, "nothing was sampled for this place"
            elif self.token_ids[position : position + 1] != [token_id]:
                self.token_ids[position : position + 1] = (token_id,)
                if self.rules is not None:
                    self.rules.recount()

    def append(self, token_id: int, position: int) -> None:
        """A sampled id, and where it stands."""
        assert position == len(self.token_ids)
        self.token_ids.append(token_id)


class InputBatch:
    """The requests that the scheduler wants remembered, by id. Decides nothing."""

    def __init__(self) -> None:
        self.requests: dict[str, RequestState] = {}

    def update(self, plan: SchedulerOutput) -> None:
        """Forget, then remember, then take what the rows say is new."""
        for request_id in (*plan.finished_ids, *plan.preempted_ids):
            assert request_id in self.requests, f"{request_id} was never introduced"
            del self.requests[request_id]
        for new in plan.new_requests:
            assert new.request_id not in self.requests, f"{new.request_id} is known already"
            self.requests[new.request_id] = new_state(new)
        for row in plan.rows:
            assert row.request_id in self.requests, f"{row.request_id} was never introduced"
            self.requests[row.request_id].take(row)

    def states(self, rows: Iterable[Row]) -> list[RequestState]:
        return [self.requests[row.request_id] for row in rows]


def new_state(new: NewRequest) -> RequestState:
    return RequestState(
        request_id=new.request_id,
        token_ids=list(new.token_ids),
        num_prompt_tokens=new.num_prompt_tokens,
        sampling_params=new.sampling_params,
        sample_index=new.sample_index,
    )


@dataclass(frozen=True, slots=True)
class ModelInput:
    """The rows of a step, one after the other."""

    token_ids: Tensor  # [tokens] int64
    positions: Tensor  # [tokens] int64
    metadata: AttentionMetadata


def flatten(
    rows: tuple[Row, ...], states: list[RequestState], block_size: int, device: torch.device | str
) -> ModelInput:
    """rows and states in the same order, at least one; the states have taken the rows."""
    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    query_start_loc, seq_lens, tables = [0], [], []
    for row, state in zip(rows, states, strict=True):
        start, num = row.start, len(row.token_ids)
        token_ids += state.token_ids[start : start + num]
        positions += range(start, start + num)
        slots += slot_mapping(state.block_table, start, num, block_size)
        query_start_loc.append(len(token_ids))
        seq_lens.append(start + num)
        tables.append(state.block_table[: -(-(start + num) // block_size)])

    longest = max(len(table) for table in tables)
    padded = [table + [NULL_BLOCK] * (longest - len(table)) for table in tables]

    def tensor(numbers: list) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=device)

    return ModelInput(
        token_ids=tensor(token_ids),
        positions=tensor(positions),
        metadata=AttentionMetadata(
            query_start_loc=query_start_loc,
            seq_lens=seq_lens,
            block_table=tensor(padded),
            slot_mapping=tensor(slots),
        ),
    )
