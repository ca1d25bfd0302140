"""From new token ids to what a user sees: text, stop strings, log-probabilities, n samples joined
into one answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..outputs import (
    Candidates,
    CompletionOutput,
    EngineCoreOutput,
    EngineCoreRequest,
    Logprob,
    RequestMetrics,
    RequestOutput,
)
from ..tokenizer.detokenizer import Detokenizer
from ..tokenizer.tokenizer import Tokenizer
from .input_processor import PreparedRequest


class Sample:
    """One of a request's samples, growing."""

    def __init__(self, request: EngineCoreRequest, tokenizer: Tokenizer) -> None:
        self.index = request.sample_index
        self.params = request.sampling_params
        self.tokenizer = tokenizer
        self.detokenizer = Detokenizer(tokenizer, self.params, request.prompt_token_ids)
        self.token_ids: list[int] = []
        self.logprobs: list[dict[int, Logprob]] | None = (
            None if self.params.logprobs is None else []
        )
        self.new_text = ""
        self.new_token_ids: tuple[int, ...] = ()
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None
        self.error: str | None = None

    def take(self, output: EngineCoreOutput) -> bool:
        """Take in what one step brought. True if a stop string ended the sample here, so that
        the engine, which sees no text, has to be told."""
        self.token_ids += output.new_token_ids
        self.new_token_ids += output.new_token_ids
        if self.logprobs is not None:
            self.logprobs += [named(self.tokenizer, c) for c in output.logprobs]
        self.finish_reason, self.stop_reason = output.finish_reason, output.stop_reason
        self.error = output.error
        self.new_text += self.detokenizer.push(self._shown(output))
        if self.finish_reason is not None:
            self.new_text += self.detokenizer.finish()
        if self.detokenizer.stop_reason is not None:
            self.finish_reason, self.stop_reason = "stop", self.detokenizer.stop_reason
        return self.finish_reason is not None and output.finish_reason is None

    def _shown(self, output: EngineCoreOutput) -> tuple[int, ...]:
        """The ids that become text: not the token that ended the answer, unless asked for."""
        if output.finish_reason == "stop" and not self.params.include_stop_str_in_output:
            return output.new_token_ids[:-1]
        return output.new_token_ids

    def _cumulative_logprob(self) -> float | None:
        if self.logprobs is None:
            return None
        pairs = zip(self.token_ids, self.logprobs, strict=True)
        return sum(candidates[token_id].logprob for token_id, candidates in pairs)

    def report(self) -> CompletionOutput:
        """The sample so far; what counts as new starts afresh."""
        new_text, new_token_ids = self.new_text, self.new_token_ids
        self.new_text, self.new_token_ids = "", ()
        return CompletionOutput(
            index=self.index,
            text=self.detokenizer.text,
            token_ids=tuple(self.token_ids),
            new_text=new_text,
            new_token_ids=new_token_ids,
            logprobs=None if self.logprobs is None else tuple(self.logprobs),
            cumulative_logprob=self._cumulative_logprob(),
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            error=self.error,
        )


class OngoingRequest:
    """A user's request: its samples, and what they share."""

    def __init__(self, request: PreparedRequest, tokenizer: Tokenizer, every_step: bool) -> None:
        first = request.samples[0]
        self.request_id = request.request_id
        self.prompt = request.prompt
        self.prompt_token_ids = first.prompt_token_ids
        self.tokenizer = tokenizer
        self.every_step = every_step
        self.samples = {s.request_id: Sample(s, tokenizer) for s in request.samples}
        wants_prompt = first.sampling_params.prompt_logprobs is not None
        self.prompt_logprobs: list[dict[int, Logprob] | None] | None = (
            [None] * len(first.prompt_token_ids) if wants_prompt else None
        )
        self.num_cached_tokens = 0
        self.metrics = RequestMetrics(first.arrival_time)

    @property
    def finished(self) -> bool:
        return all(s.finish_reason is not None for s in self.samples.values())

    def take(self, output: EngineCoreOutput, now: float) -> bool:
        self.num_cached_tokens = max(self.num_cached_tokens, output.num_cached_tokens)
        if output.new_token_ids:
            first = self.metrics.first_token_time
            self.metrics = replace(
                self.metrics,
                first_token_time=now if first is None else first,
                last_token_time=now,
            )
        if output.num_preemptions > self.metrics.num_preemptions:
            self.metrics = replace(self.metrics, num_preemptions=output.num_preemptions)
        if output.prompt_logprobs is not None and self.prompt_logprobs is not None:
            start = output.prompt_logprobs.start
            for position, candidates in enumerate(output.prompt_logprobs.positions, start):
                self.prompt_logprobs[position] = named(self.tokenizer, candidates)
        return self.samples[output.request_id].take(output)

    def report(self) -> RequestOutput:
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt,
            prompt_token_ids=self.prompt_token_ids,
            outputs=tuple(sample.report() for sample in self.samples.values()),
            finished=self.finished,
            prompt_logprobs=None if self.prompt_logprobs is None else tuple(self.prompt_logprobs),
            num_cached_tokens=self.num_cached_tokens,
            metrics=self.metrics,
        )


class OutputProcessor:
    """Knows every request until its last sample has ended."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.requests: dict[str, OngoingRequest] = {}
        self.parents: dict[str, str] = {}  # sample's request id -> user's request id

    def add_request(self, request: PreparedRequest, every_step: bool = True) -> None:
        """every_step: report at each step that adds something; else once, at the end."""
        if request.request_id in self.requests:
            raise ValueError(f"request id {request.request_id!r} is in use")
        self.requests[request.request_id] = OngoingRequest(request, self.tokenizer, every_step)
        self.parents |= {s.request_id: request.request_id for s in request.samples}

    def process(
        self, outputs: Sequence[EngineCoreOutput], now: float
    ) -> tuple[list[RequestOutput], list[str]]:
        """What users see of a step, and the samples that a stop string ended."""
        touched: dict[str, OngoingRequest] = {}
        stopped = []
        for output in outputs:
            parent_id = self.parents[output.request_id]
            request = touched.setdefault(parent_id, self.requests[parent_id])
            if request.take(output, now):
                stopped.append(output.request_id)
        reports = []
        for request in touched.values():
            if request.every_step or request.finished:
                reports.append(request.report())
            if request.finished:
                self.remove(request.request_id)
        return reports, stopped

    def remove(self, request_id: str) -> list[str]:
        """Forget a request. Returns its samples' ids."""
        sample_ids = list(self.requests.pop(request_id).samples)
        for sample_id in sample_ids:
            del self.parents[sample_id]
        return sample_ids


def named(tokenizer: Tokenizer, candidates: Candidates) -> dict[int, Logprob]:
    """Candidates of one position, with the bytes and the text that each token adds."""
    logprobs = {}
    for token_id, logprob, rank in candidates:
        raw = tokenizer.token_bytes(token_id)
        text = raw.decode("utf-8", errors="replace")
        logprobs[token_id] = Logprob(logprob, rank, text, tuple(raw))
    return logprobs
