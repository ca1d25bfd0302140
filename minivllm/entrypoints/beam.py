"""Beam search: keep the best few beginnings, drop the rest, share what they have in common.

A beam is a request that holds its blocks: it reports the scores of its next token and waits. Each
survivor of a round forks the beam it goes on from, so that a common past is kept once.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace

from ..engine.llm_engine import LLMEngine
from ..outputs import CompletionOutput, EngineCoreRequest, RequestOutput
from ..sampling_params import SamplingParams
from ..tokenizer.detokenizer import Detokenizer


@dataclass(frozen=True, slots=True)
class BeamSearchParams:
    """vLLM's names where vLLM has them. A finished beam's score is the sum of its tokens'
    log-probabilities, the end token's too, over (number of tokens) ** length_penalty."""

    beam_width: int = 4
    max_tokens: int = 16
    length_penalty: float = 1.0
    early_stopping: bool = False  # True: end as soon as beam_width beams have ended
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        for name in ("beam_width", "max_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class Beam:
    """A beginning: what it says so far, and how likely that is."""

    token_ids: tuple[int, ...] = ()
    logprob: float = 0.0  # sum over token_ids
    request_id: str = ""  # that holds its blocks, once it has one

    def score(self, length_penalty: float) -> float:
        return self.logprob / len(self.token_ids) ** length_penalty


def prune(
    candidates: Sequence[Beam], beam_width: int, end_ids: Set[int]
) -> tuple[list[Beam], list[Beam]]:
    """The beams to go on with, and those that have ended, best first.

    Candidates are beams one token longer than the last round's. Up to beam_width of those that
    do not end go on. Those that end count only if they are among the best beam_width of all.
    """
    best = sorted(candidates, key=lambda beam: -beam.logprob)
    ended = [beam for beam in best[:beam_width] if beam.token_ids[-1] in end_ids]
    alive = [beam for beam in best if beam.token_ids[-1] not in end_ids]
    return alive[:beam_width], ended


class BeamSearch:
    """One prompt's search. `run` steps the engine; other requests go on beside it."""

    def __init__(self, engine: LLMEngine, request_id: str, params: BeamSearchParams) -> None:
        self.engine = engine
        self.request_id = request_id
        self.params = params
        self.end_ids = frozenset(() if params.ignore_eos else engine.eos_token_ids)
        # Each end token may take a place among the best, and as many must be left to go on.
        self.num_candidates = (len(self.end_ids) + 1) * params.beam_width
        self.num_requests = 0

    def run(self, prompt: str | Sequence[int], step) -> RequestOutput:
        """step: runs the engine once. Raises ValueError if the prompt cannot be served."""
        limits = SamplingParams(
            temperature=0,
            max_tokens=self.params.max_tokens,
            logprobs=min(self.num_candidates, self.engine.vocab_size),
        )
        (root,) = self.engine.prepare(self.request_id, prompt, limits).samples
        alive, ended = [Beam()], []
        try:
            for _ in range(self.params.max_tokens):
                alive = self._start(root, alive)
                candidates = self._collect(alive, step)
                alive, new = prune(candidates, self.params.beam_width, self.end_ids)
                ended = self._best(ended + new)
                if self._is_over(alive, ended):
                    break
            else:
                ended = self._best(ended + alive)
        finally:
            for request_id in self._own():
                self.engine.let_go(request_id)
        return self._output(prompt, root, ended)

    def _start(self, root: EngineCoreRequest, beams: list[Beam]) -> list[Beam]:
        """A request for each beam, forked from the one that it went on from."""
        started = []
        for beam in beams:
            request_id = f"{self.request_id}/{self.num_requests}"
            self.num_requests += 1
            self.engine.hold(
                replace(
                    root,
                    request_id=request_id,
                    prompt_token_ids=root.prompt_token_ids + beam.token_ids,
                    fork_of=beam.request_id or None,
                    holds_blocks=True,
                )
            )
            started.append(replace(beam, request_id=request_id))
        return started

    def _collect(self, beams: list[Beam], step) -> list[Beam]:
        """Every beam, one token longer, for each of its likeliest next tokens. The beams of the
        last round live through one more step, in which the new ones fork them."""
        current = {beam.request_id for beam in beams}
        step()
        for request_id in self._own() - current:
            self.engine.let_go(request_id)
        reports = self._reports(current)
        while len(reports) < len(beams):
            if self.engine.is_stuck:  # those that have reported leave no room for the others
                for request_id in self._own() & reports.keys():
                    self.engine.let_go(request_id)
            step()
            reports |= self._reports(current)
        return [
            Beam((*beam.token_ids, token_id), beam.logprob + logprob, beam.request_id)
            for beam in beams
            for token_id, logprob in reports[beam.request_id].items()
        ]

    def _reports(self, request_ids: set[str]) -> dict[str, dict[int, float]]:
        """Of the beams that have reported: their likeliest next tokens, with log-probabilities.
        Raises RuntimeError if one has failed."""
        reports = {}
        for request_id in self._own() & request_ids:
            output = self.engine.held[request_id]
            if output is None:
                continue
            if output.error is not None:
                raise RuntimeError(f"beam search cannot go on: {output.error}")
            reports[request_id] = {token_id: logprob for token_id, logprob, _ in output.logprobs[0]}
        return reports

    def _best(self, ended: list[Beam]) -> list[Beam]:
        """The beam_width best of those that ended, best first."""
        ended = sorted(ended, key=lambda beam: -beam.score(self.params.length_penalty))
        return ended[: self.params.beam_width]

    def _is_over(self, alive: list[Beam], ended: list[Beam]) -> bool:
        """Enough have ended, and none alive could beat the worst of them if it ended now."""
        if len(ended) < self.params.beam_width:
            return not alive
        worst = ended[-1].score(self.params.length_penalty)
        return self.params.early_stopping or not any(
            beam.score(self.params.length_penalty) > worst for beam in alive
        )

    def _own(self) -> set[str]:
        """The engine's held requests that are beams of this search."""
        return {held for held in self.engine.held if held.startswith(f"{self.request_id}/")}

    def _output(
        self, prompt: str | Sequence[int], root: EngineCoreRequest, beams: list[Beam]
    ) -> RequestOutput:
        outputs = []
        for index, beam in enumerate(beams):
            has_ended = beam.token_ids[-1] in self.end_ids
            detokenizer = Detokenizer(
                self.engine.tokenizer, root.sampling_params, root.prompt_token_ids
            )
            shown = beam.token_ids[:-1] if has_ended else beam.token_ids
            text = detokenizer.push(shown) + detokenizer.finish()
            outputs.append(
                CompletionOutput(
                    index=index,
                    text=text,
                    token_ids=beam.token_ids,
                    cumulative_logprob=beam.logprob,
                    finish_reason="stop" if has_ended else "length",
                )
            )
        return RequestOutput(
            request_id=self.request_id,
            prompt=prompt if isinstance(prompt, str) else None,
            prompt_token_ids=root.prompt_token_ids,
            outputs=tuple(outputs),
            finished=True,
        )
