"""A plan in the making: what one step will run, gathered request by request, then sealed."""

from __future__ import annotations

from ..kvcache.kv_cache_manager import KVCacheManager
from ..kvcache.moves import Moves
from ..outputs import NewRequest, Row, SchedulerOutput
from ..request import Request


class StepPlan:
    """Collects the parts of a `SchedulerOutput`. Each request has at most one row."""

    def __init__(self, step: int, now: float = 0.0) -> None:
        self.step = step
        self.now = now
        self.new_requests: list[NewRequest] = []
        self.rows: list[Row] = []
        self.preempted_ids: list[str] = []

    def introduce(self, request: Request) -> None:
        """The worker does not know this request (any more)."""
        self.new_requests.append(
            NewRequest(
                request_id=request.request_id,
                token_ids=tuple(request.token_ids),
                num_prompt_tokens=request.num_prompt_tokens,
                sampling_params=request.sampling_params,
                sample_index=request.sample_index,
            )
        )

    def add(self, request: Request, num_tokens: int, kv: KVCacheManager) -> None:
        """Send off the next num_tokens tokens of a request, whose slots are allocated."""
        assert num_tokens > 0
        start = request.num_planned_tokens
        end = start + num_tokens
        params = request.sampling_params
        samples = end == len(request.token_ids) and params.max_tokens != 0
        wants_scores = params.prompt_logprobs is not None
        table_start, table_ids = kv.tables[request.request_id].take_changes()
        self.rows.append(
            Row(
                request_id=request.request_id,
                start=start,
                token_ids=tuple(request.token_ids[start:end]),
                num_to_sample=1 if samples else 0,
                table_start=(table_start,),
                table_ids=(table_ids,),
                wants_prompt_logprobs=wants_scores and start + 1 < request.num_prompt_tokens,
            )
        )
        request.num_in_flight_tokens += num_tokens

    def seal(
        self, finished_ids: list[str], moves: Moves, freed_blocks: list[int]
    ) -> SchedulerOutput:
        """The plan as it crosses the door. Blocks that something is moved into are not among
        the freed ones: poison comes after the moves."""
        filled = {target for _, target in moves.copies + moves.swap_in}
        return SchedulerOutput(
            step=self.step,
            new_requests=tuple(self.new_requests),
            rows=tuple(self.rows),
            finished_ids=tuple(finished_ids),
            preempted_ids=tuple(self.preempted_ids),
            swap_out=tuple(moves.swap_out),
            swap_in=tuple(moves.swap_in),
            copies=tuple(moves.copies),
            freed_blocks=tuple(b for b in freed_blocks if b not in filled),
        )
