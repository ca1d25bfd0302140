"""The messages: everything that crosses from one room to the next, and nothing that computes.

Each is frozen and holds ints, strings and tuples, so whoever keeps one may trust it: nobody goes
on changing it. (The two made for every request in every step are named tuples, which are frozen
too, and made four times as fast.)

Order inside a step, for every executor: swap out, swap in, copies, poison, KV writes and
attention, sampling, saves. A block freed by a plan may be reused by the same plan.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from .sampling_params import SamplingParams

LAST_SAMPLED = -1  # in Row.token_ids: the id that this row sampled last, known to the worker only
NULL_BLOCK = 0  # never handed out; padding reads it
NO_SLOT = -1  # in a slot mapping: writes nothing

# One candidate of a distribution: (token id, log-probability, rank; the likeliest has rank 1).
Candidate = tuple[int, float, int]
# The log-probabilities at one position: the token that stands there first, then the likeliest.
Candidates = tuple[Candidate, ...]


@dataclass(frozen=True, slots=True)
class EngineCoreRequest:
    """entrypoints -> engine: one sample of one prompt, with every default resolved."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling_params: SamplingParams  # seed and max_tokens resolved
    arrival_time: float = 0.0  # seconds, of whatever clock the engine was given
    priority: int = 0  # the lower goes first
    extra_key: tuple = ()  # adapter load id, tenant salt: what sets equal tokens apart
    parent_id: str | None = None  # the request this is one of n samples of
    sample_index: int = 0
    fork_of: str | None = None  # the request whose blocks it may start from, once computed
    holds_blocks: bool = False  # True: report scores once, append nothing, wait to be forked
    reads_prefix_cache: bool = True  # False where prompt_logprobs need every position computed
    kv_transfer: tuple | None = None


@dataclass(frozen=True, slots=True)
class NewRequest:
    """scheduler -> worker: what a worker must know of a request. Sent once, and again after a
    preemption, since the worker forgot it."""

    request_id: str
    token_ids: tuple[int, ...]  # prompt, and what was sampled before a preemption
    num_prompt_tokens: int
    sampling_params: SamplingParams
    sample_index: int = 0
    adapter: str | None = None


class Row(NamedTuple):
    """One request's part of a step: compute `token_ids`, which stand at `start` onwards."""

    request_id: str
    start: int  # position of the first of token_ids
    token_ids: tuple[int, ...]
    num_to_sample: int  # 0: a chunk that ends early; 1; or num_draft_tokens + 1
    num_draft_tokens: int = 0  # how many of token_ids, at the end, are guesses
    table_start: tuple[int, ...] = (0,)  # per KV group: first changed index of the block table
    table_ids: tuple[tuple[int, ...], ...] = ((),)  # per KV group: the block ids from there on
    wants_prompt_logprobs: bool = False


@dataclass(frozen=True, slots=True)
class SchedulerOutput:
    """scheduler -> worker: the plan of one step."""

    step: int
    new_requests: tuple[NewRequest, ...] = ()
    rows: tuple[Row, ...] = ()
    finished_ids: tuple[str, ...] = ()  # forget these
    preempted_ids: tuple[str, ...] = ()  # forget these; they come back as new_requests
    swap_out: tuple[tuple[int, int], ...] = ()  # (block, host block)
    swap_in: tuple[tuple[int, int], ...] = ()  # (host block, block)
    copies: tuple[tuple[int, int], ...] = ()  # (source block, target block)
    freed_blocks: tuple[int, ...] = ()  # debug only: poison these
    load_adapters: tuple[str, ...] = ()
    connector: tuple | None = None

    def is_empty(self) -> bool:
        """No rows, and nothing to forget, move or load."""
        return not (
            self.rows or self.finished_ids or self.preempted_ids or self.swap_out or self.swap_in
            or self.copies or self.freed_blocks or self.load_adapters or self.connector
        )  # fmt: skip

    @property
    def num_tokens(self) -> int:
        return sum(len(row.token_ids) for row in self.rows)


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Candidates of the prompt's tokens at positions start, start + 1, ..."""

    start: int
    positions: tuple[Candidates, ...]


@dataclass(frozen=True, slots=True)
class ModelRunnerOutput:
    """worker -> scheduler: what came of a step. Tuples by row stand in the order of plan.rows."""

    step: int
    sampled: tuple[tuple[int, ...], ...] = ()  # by row: 0, 1 or more ids
    logprobs: tuple[tuple[Candidates, ...], ...] = ()  # by row: one entry a sampled id, or ()
    prompt_logprobs: tuple[PromptLogprobs | None, ...] = ()  # by row; () if nobody asked
    drafts: tuple[tuple[int, ...], ...] = ()  # by row: guesses for the next step
    errors: tuple[tuple[str, str], ...] = ()  # (request id, message): it ends, the others go on
    connector: tuple | None = None  # sent, received, failed blocks


class EngineCoreOutput(NamedTuple):
    """scheduler -> output processor: what one request gained in a step."""

    request_id: str
    new_token_ids: tuple[int, ...] = ()
    logprobs: tuple[Candidates, ...] = ()  # one entry a new token, or ()
    prompt_logprobs: PromptLogprobs | None = None
    finish_reason: str | None = None  # "stop" | "length" | "abort" | "error"
    stop_reason: int | str | None = None  # the stop token id or string that ended it
    error: str | None = None
    num_cached_tokens: int = 0
    num_preemptions: int = 0


@dataclass(frozen=True, slots=True)
class Logprob:
    """One token's log-probability under the model's own distribution (before temperature and
    filters), its rank (1: the likeliest), and the text and bytes it stands for."""

    logprob: float
    rank: int
    decoded_token: str = ""
    bytes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """When things happened to a request, in seconds of the engine's clock; None: not yet."""

    arrival_time: float
    first_token_time: float | None = None
    last_token_time: float | None = None
    num_preemptions: int = 0

    @property
    def ttft_s(self) -> float | None:
        """Time to first token: seconds from arrival until it came; None before there is one."""
        return None if self.first_token_time is None else self.first_token_time - self.arrival_time


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One of a request's n samples, so far."""

    index: int
    text: str = ""
    token_ids: tuple[int, ...] = ()
    new_text: str = ""  # added to text since the last report
    new_token_ids: tuple[int, ...] = ()
    logprobs: tuple[dict[int, Logprob], ...] | None = None  # one dict a token id
    cumulative_logprob: float | None = None  # of token_ids, where logprobs were asked for
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    error: str | None = None

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """engine -> entrypoints: a request as its user sees it, so far."""

    request_id: str
    prompt: str | None  # None when the prompt was given as token ids
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]
    finished: bool
    prompt_logprobs: tuple[dict[int, Logprob] | None, ...] | None = None  # the first is None
    num_cached_tokens: int = 0
    metrics: RequestMetrics = field(default_factory=lambda: RequestMetrics(0.0))
    kv_transfer: tuple | None = None
