"""One step of the model, in the order that `outputs` states: moves of blocks, poison, KV writes
and attention, sampling. Runs what the plan says and decides nothing."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..checkpoint.model_config import ModelConfig
from ..kernels import Ops
from ..models.transformer import Transformer
from ..outputs import (
    Candidates,
    ModelRunnerOutput,
    NewRequest,
    PromptLogprobs,
    Row,
    SchedulerOutput,
)
from ..sample.rules import LogitsProcessor, SamplerRow, ScoreRules, has_rules, plugins_for
from ..sample.sampler import candidates, sample
from .input_batch import InputBatch, RequestState, flatten
from .kv_tensors import KVTensors

NUMBERS_AT_ONCE = 1 << 19  # scores that the sampler works on, on a CPU: some MB of its caches

Masks = Mapping[str, tuple[bytes, ...]]


@dataclass(frozen=True, slots=True)
class StartedStep:
    """What `execute` leaves for `sample`."""

    plan: SchedulerOutput
    states: list[RequestState]  # by row
    hidden: Tensor | None  # [tokens, hidden]; None: a plan without rows
    logits: Tensor | None  # [rows that sample, vocab]
    errors: dict[str, str]  # request id -> why it cannot be served


class ModelRunner:
    """A model, its KV memory, and the requests that use it."""

    def __init__(
        self,
        model: Transformer,
        ops: Ops,
        kv: KVTensors,
        block_size: int,
        model_config: ModelConfig,
        plugins: Sequence[LogitsProcessor] = (),
    ) -> None:
        self.model = model
        self.ops = ops
        self.kv = kv
        self.block_size = block_size
        self.vocab_size = model_config.vocab_size
        self.eos_token_ids = model_config.eos_token_ids
        self.plugins = plugins
        self.decoder = ops.compile_decoder(model.model, kv.layers)
        # Sampling sums in float64, which Apple's GPUs have not.
        device = kv.memory.device
        self.scores_device = torch.device("cpu") if device.type == "mps" else device
        on_cpu = self.scores_device.type == "cpu"
        self.rows_at_once = max(1, NUMBERS_AT_ONCE // self.vocab_size) if on_cpu else sys.maxsize
        self.batch = InputBatch()
        self._started: StartedStep | None = None

    @torch.inference_mode()
    def execute(self, plan: SchedulerOutput) -> None:
        """Run the step up to the scores. One `sample` must follow before the next."""
        assert self._started is None, "the step before was not sampled"
        assert not (plan.load_adapters or plan.connector)
        self.batch.update(plan)
        errors = self._make_rules(plan.new_requests)
        self._move_blocks(plan)
        states = self.batch.states(plan.rows)
        hidden = logits = None
        if plan.rows:
            hidden = self._forward(plan, states)
            logits = self._sampled_logits(plan, hidden)
        self._started = StartedStep(plan, states, hidden, logits, errors)

    def _make_rules(self, new_requests: Sequence[NewRequest]) -> dict[str, str]:
        """Prepare what new requests ask of their scores. Returns, by request id, why a plug-in
        refuses one."""
        errors = {}
        for new in new_requests:
            state, params = self.batch.requests[new.request_id], new.sampling_params
            try:
                wanted = plugins_for(params, self.plugins)
            except ValueError as error:
                errors[new.request_id] = str(error)
                continue
            if wanted or has_rules(params):
                state.rules = ScoreRules(
                    params,
                    state.token_ids,
                    state.num_prompt_tokens,
                    vocab_size=self.vocab_size,
                    device=self.scores_device,
                    eos_token_ids=self.eos_token_ids,
                    plugins=wanted,
                )
        return errors

    def _move_blocks(self, plan: SchedulerOutput) -> None:
        """Whole blocks, in the order that the messages promise."""
        self.kv.swap_out(plan.swap_out)
        self.kv.swap_in(plan.swap_in)
        self.kv.copy(plan.copies)
        self.kv.poison(plan.freed_blocks)

    def _forward(self, plan: SchedulerOutput, states: list[RequestState]) -> Tensor:
        """The model over all tokens of the plan: [tokens, hidden]."""
        step = flatten(plan.rows, states, self.block_size, self.kv.memory.device)
        if self.decoder is not None:
            return self.decoder(step.token_ids, step.positions, step.metadata)
        metadata = self.ops.prepare(step.metadata, self.kv.layers[0])
        return self.model(step.token_ids, step.positions, metadata, self.kv.layers)

    def _sampled_logits(self, plan: SchedulerOutput, hidden: Tensor) -> Tensor | None:
        """Scores of the last token of each row that samples, and of no other: the head is a
        large part of the work. None if no row does."""
        ends, end = [], 0
        for row in plan.rows:
            assert row.num_draft_tokens == 0 and row.num_to_sample in (0, 1)
            end += len(row.token_ids)
            if row.num_to_sample:
                ends.append(end - 1)
        if not ends:
            return None
        return self._scores(hidden if len(ends) == len(hidden) else hidden[ends])

    def _scores(self, hidden: Tensor) -> Tensor:
        return self.model.compute_logits(hidden).to(self.scores_device)

    @torch.inference_mode()
    def sample(self, step: int, masks: Masks | None = None) -> ModelRunnerOutput:
        """End the step that `execute` started."""
        started, self._started = self._started, None
        assert started is not None and started.plan.step == step, "this step was not started"
        rows = started.plan.rows
        prompt_logprobs, unscored = self._prompt_logprobs(started)
        errors = unscored | started.errors
        sampled: list[tuple[int, ...]] = [()] * len(rows)
        logprobs: list[tuple[Candidates, ...]] = [()] * len(rows)

        where = [i for i, row in enumerate(rows) if row.num_to_sample]
        if where:
            asked = [self._sampler_row(rows[i], started.states[i], masks or {}) for i in where]
            output = sample(started.logits, asked, self.plugins, self.rows_at_once)
            for r, text in output.errors.items():
                errors.setdefault(rows[where[r]].request_id, text)
            for r, i in enumerate(where):
                if rows[i].request_id in errors:
                    continue
                started.states[i].append(output.token_ids[r], asked[r].position)
                sampled[i] = (output.token_ids[r],)
                if output.logprobs[r] is not None:
                    logprobs[i] = (output.logprobs[r],)
        return ModelRunnerOutput(
            step=step,
            sampled=tuple(sampled),
            logprobs=tuple(logprobs),
            prompt_logprobs=tuple(prompt_logprobs),
            errors=tuple(errors.items()),
        )

    def _sampler_row(self, row: Row, state: RequestState, masks: Masks) -> SamplerRow:
        return SamplerRow(
            params=state.sampling_params,
            position=row.start + len(row.token_ids),
            sample_index=state.sample_index,
            rules=state.rules,
            bitmap=masks[row.request_id][0] if row.request_id in masks else None,
        )

    def _prompt_logprobs(
        self, started: StartedStep
    ) -> tuple[list[PromptLogprobs | None], dict[str, str]]:
        """By row, what the model thought of the prompt tokens that follow the row's tokens; and
        errors by request id. An empty list if no row asks."""
        rows, errors = started.plan.rows, {}
        if not any(row.wants_prompt_logprobs for row in rows):
            return [], errors
        found: list[PromptLogprobs | None] = []
        end = 0
        for row, state in zip(rows, started.states):
            first, end = end, end + len(row.token_ids)
            answers = state.token_ids[row.start + 1 : state.num_prompt_tokens][: end - first]
            if not row.wants_prompt_logprobs or not answers:
                found.append(None)
                continue
            logits = self._scores(started.hidden[first : first + len(answers)])
            num = state.sampling_params.prompt_logprobs
            assert num is not None, f"{row.request_id} never asked for prompt_logprobs"
            own = torch.tensor(answers, device=logits.device)
            positions = tuple(candidates(logits, own, [num] * len(answers)))
            found.append(PromptLogprobs(row.start + 1, positions))
            if any(math.isnan(position[0][1]) for position in positions):
                errors[row.request_id] = "the model's scores of the prompt are not numbers"
        return found, errors
