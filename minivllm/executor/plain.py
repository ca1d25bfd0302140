"""The whole data plane where there is nothing but Python: a small Llama, run token by token."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..checkpoint.model_config import ModelConfig
from ..config import EngineConfig
from ..kvcache.block_table import slot_mapping
from ..kvcache.spec import KVCacheSpec
from ..outputs import (
    LAST_SAMPLED,
    Candidates,
    ModelRunnerOutput,
    NewRequest,
    PromptLogprobs,
    Row,
    SchedulerOutput,
)
from .base import Executor
from .plain_kv import PlainKV
from .plain_model import PlainModel
from .plain_sampler import Asker, candidates, choose
from .plain_weights import Vector

logger = logging.getLogger(__name__)

FLOAT_BYTES = 32  # what a number in a Python list takes: 8 for its place, 24 for itself
MAX_KV_BYTES = 1 << 28


@dataclass(slots=True)
class RequestState:
    """One request, by what the scheduler has said and what was sampled here."""

    new: NewRequest
    token_ids: list[int]  # prompt and what was sampled
    block_table: list[int] = field(default_factory=list)

    def take(self, row: Row) -> None:
        """Bring the block table and the tokens up to date with a row of the plan."""
        (first,), (block_ids,) = row.table_start, row.table_ids
        assert first <= len(self.block_table), "a block table cannot have a gap"
        self.block_table[first : first + len(block_ids)] = block_ids
        for position, token_id in enumerate(row.token_ids, row.start):
            assert position <= len(self.token_ids), "tokens were left out"
            if token_id == LAST_SAMPLED:
                assert position == len(self.token_ids) - 1, "nothing was sampled for this place"
            else:
                self.token_ids[position : position + 1] = (token_id,)


class PlainExecutor(Executor):
    """Standard library only, so the engine runs where there is no torch and no numpy.

    It computes in Python's floats, which are float64, on one core: that is exact enough for any
    dtype of a checkpoint, and fast enough for models of some hundred thousand parameters. Raises
    ValueError for another device or dtype, and for a model or a setting that it does not have.
    """

    def __init__(self, config: EngineConfig, model_config: ModelConfig) -> None:
        check_config(config)
        self.config = config
        self.eos_token_ids = model_config.eos_token_ids
        self.model = PlainModel(model_config)
        self.spec = KVCacheSpec(
            block_size=config.block_size,
            num_layers=model_config.num_layers,
            num_kv_heads=model_config.num_kv_heads,
            head_dim=model_config.head_dim,
            dtype_bytes=FLOAT_BYTES,
        )
        self.kv: PlainKV | None = None
        self.requests: dict[str, RequestState] = {}
        self._started: tuple[SchedulerOutput, list[list[Vector]]] | None = None
        logger.info("running in plain Python, in float64")

    def kv_cache_specs(self) -> tuple[KVCacheSpec, ...]:
        return (self.spec,)

    def available_memory(self) -> int:
        return self.config.kv_cache_memory_bytes or MAX_KV_BYTES

    def initialize(self, num_blocks: int, num_host_blocks: int = 0) -> None:
        self.kv = PlainKV(self.spec, num_blocks, num_host_blocks)

    def execute_model(self, plan: SchedulerOutput) -> None:
        """Run the step up to the vectors that scores are made of, by row and token."""
        assert self.kv is not None, "initialize comes first"
        assert self._started is None, "the step before was not sampled"
        assert not (plan.load_adapters or plan.connector)
        self._remember(plan)
        self.kv.swap_out(plan.swap_out)
        self.kv.swap_in(plan.swap_in)
        self.kv.copy(plan.copies)
        self.kv.poison(plan.freed_blocks)
        self._started = plan, [self._forward(row) for row in plan.rows]

    def _remember(self, plan: SchedulerOutput) -> None:
        """Forget, then learn, then take what the rows say is new."""
        for request_id in (*plan.finished_ids, *plan.preempted_ids):
            assert request_id in self.requests, f"{request_id} was never introduced"
            del self.requests[request_id]
        for new in plan.new_requests:
            assert new.request_id not in self.requests, f"{new.request_id} is known already"
            self.requests[new.request_id] = RequestState(new, list(new.token_ids))
        for row in plan.rows:
            self.requests[row.request_id].take(row)

    def _forward(self, row: Row) -> list[Vector]:
        """The model over the row's tokens, one after the other."""
        assert row.num_draft_tokens == 0 and row.num_to_sample in (0, 1)
        state = self.requests[row.request_id]
        end = row.start + len(row.token_ids)
        slots = slot_mapping(state.block_table, 0, end, self.spec.block_size)
        return [
            self.model.forward(state.token_ids[position], slots[: position + 1], self.kv.layers)
            for position in range(row.start, end)
        ]

    def sample_tokens(
        self, step: int, masks: Mapping[str, tuple[bytes, ...]] | None = None
    ) -> ModelRunnerOutput:
        assert self._started is not None and self._started[0].step == step, "another step runs"
        (plan, hidden), self._started = self._started, None
        sampled: list[tuple[int, ...]] = []
        logprobs: list[tuple[Candidates, ...]] = []
        prompt_logprobs: list[PromptLogprobs | None] = []
        errors: dict[str, str] = {}
        for row, vectors in zip(plan.rows, hidden, strict=True):
            token_ids, found, scored = (), (), None
            try:
                check_request(self.requests[row.request_id].new)
                scored = self._score_prompt(row, vectors)
                bitmaps = (masks or {}).get(row.request_id, ())
                token_ids, found = self._sample(row, vectors, bitmaps)
            except ValueError as error:
                errors[row.request_id] = str(error)
            sampled.append(token_ids)
            logprobs.append(found)
            prompt_logprobs.append(scored)
        return ModelRunnerOutput(
            step=step,
            sampled=tuple(sampled),
            logprobs=tuple(logprobs),
            prompt_logprobs=tuple(prompt_logprobs) if any(prompt_logprobs) else (),
            errors=tuple(errors.items()),
        )

    def _sample(
        self, row: Row, vectors: Sequence[Vector], bitmaps: Sequence[bytes]
    ) -> tuple[tuple[int, ...], tuple[Candidates, ...]]:
        """The row's next token and its log-probabilities, each () if there is none. Raises
        ValueError if none can be chosen."""
        if not row.num_to_sample:
            return (), ()
        state = self.requests[row.request_id]
        params = state.new.sampling_params
        assert len(state.token_ids) == row.start + len(row.token_ids)
        scores = self.model.compute_logits(vectors[-1])
        asker = Asker(
            params,
            state.token_ids,
            state.new.num_prompt_tokens,
            state.new.sample_index,
            self.eos_token_ids,
            bitmaps[0] if bitmaps else None,
        )
        token_id = choose(scores, asker)
        state.token_ids.append(token_id)
        if params.logprobs is None:
            return (token_id,), ()
        return (token_id,), (candidates(scores, token_id, params.logprobs),)

    def _score_prompt(self, row: Row, vectors: Sequence[Vector]) -> PromptLogprobs | None:
        """What the model thought of the prompt tokens that follow the row's tokens, if the row
        asks. Raises ValueError if its scores are not numbers."""
        state = self.requests[row.request_id]
        answers = state.token_ids[row.start + 1 : state.new.num_prompt_tokens][: len(vectors)]
        if not row.wants_prompt_logprobs or not answers:
            return None
        num = state.new.sampling_params.prompt_logprobs
        positions = tuple(
            candidates(self.model.compute_logits(vector), token_id, num)
            for vector, token_id in zip(vectors, answers)
        )
        if any(math.isnan(position[0][1]) for position in positions):
            raise ValueError("the model's scores of the prompt are not numbers")
        return PromptLogprobs(row.start + 1, positions)

    def shutdown(self) -> None:
        self.model = self.kv = None
        self.requests.clear()


def check_config(config: EngineConfig) -> None:
    """Raises ValueError naming the setting that plain Python does not have. float32 is accepted:
    float64 holds every one of its numbers."""
    for name, choices in (
        ("device", ("auto", "cpu")),
        ("dtype", ("auto", "float64", "float32")),
        ("backend", ("auto",)),
        ("logits_processors", ((),)),
    ):
        value = getattr(config, name)
        if value not in choices:
            known = ", ".join(repr(choice) for choice in choices)
            raise ValueError(f"{name}={value!r}: PlainExecutor supports only {known}")


def check_request(new: NewRequest) -> None:
    """Raises ValueError if a request asks for what no plain executor can do."""
    for name, _ in new.sampling_params.extra_args:
        raise ValueError(f"extra_args: no logits processor of this engine reads {name!r}")
    if new.adapter is not None:
        raise ValueError(f"PlainExecutor has no LoRA support, so no adapter {new.adapter!r}")
