"""One request as the control plane sees it: its tokens, and how far its KV has come.

There are no phases. A request has tokens whose KV exists (`num_computed_tokens`), tokens that a
plan has sent off (`num_in_flight_tokens`), and the rest; a step computes some more of the rest.
"""

from __future__ import annotations

from enum import Enum

from .outputs import EngineCoreRequest


class RequestStatus(Enum):
    WAITING = "waiting"  # never ran, or had to give its blocks up
    RUNNING = "running"  # owns blocks and may be planned
    FINISHED = "finished"


class Request:
    """Made by the engine from an `EngineCoreRequest`; owned and changed by the scheduler."""

    def __init__(self, request: EngineCoreRequest) -> None:
        self.request_id = request.request_id
        self.sampling_params = request.sampling_params
        self.arrival_time = request.arrival_time
        self.priority = request.priority
        self.extra_key = request.extra_key
        self.fork_of = request.fork_of
        self.sample_index = request.sample_index
        self.holds_blocks = request.holds_blocks
        self.reads_prefix_cache = request.reads_prefix_cache
        self.kv_transfer = request.kv_transfer

        self.token_ids = list(request.prompt_token_ids)  # prompt, then what was sampled
        self.num_prompt_tokens = len(self.token_ids)
        self.num_computed_tokens = 0
        self.num_in_flight_tokens = 0
        self.status = RequestStatus.WAITING
        self.num_cached_tokens = 0  # computed by somebody else, when it was first admitted
        self.num_preemptions = 0
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None
        self.error: str | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_planned_tokens(self) -> int:
        """Tokens computed, or on their way: where the next step of this request starts."""
        return self.num_computed_tokens + self.num_in_flight_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        return len(self.token_ids) - self.num_computed_tokens - self.num_in_flight_tokens

    @property
    def is_scoring(self) -> bool:
        """Wants log-probabilities of its prompt and no new token."""
        return self.sampling_params.max_tokens == 0

    @property
    def is_finished(self) -> bool:
        return self.finish_reason is not None

    def finish(self, reason: str, stop_reason: int | str | None = None) -> None:
        assert not self.is_finished, f"{self.request_id} finished twice"
        self.status = RequestStatus.FINISHED
        self.finish_reason, self.stop_reason = reason, stop_reason

    def check(self) -> None:
        assert 0 <= self.num_computed_tokens <= self.num_planned_tokens <= self.num_tokens
        assert self.is_finished == (self.status is RequestStatus.FINISHED)
        if self.status is RequestStatus.WAITING:
            assert self.num_in_flight_tokens == 0, f"{self.request_id} waits with tokens planned"

    def __repr__(self) -> str:
        return (
            f"Request({self.request_id}, {self.status.value}, "
            f"{self.num_computed_tokens}+{self.num_in_flight_tokens} of {self.num_tokens})"
        )
