"""What a request asks of its scores, beyond temperature and filters, and what a plug-in may do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class SamplerRow:
    """How to choose from one row of scores."""

    params: SamplingParams  # with a seed, unless greedy
    position: int  # where the token will stand in its sequence
    sample_index: int = 0
    rules: ScoreRules | None = None  # None: the request takes its scores as they are
    bitmap: bytes | None = None  # of ids that a grammar allows: bit i of byte i // 8 is id i


class LogitsProcessor(ABC):
    """Changes the scores of the requests that ask for it, and of no others.

    It keeps nothing of a request: what it may go by is in the row, whose `rules.token_ids` are
    the request's tokens so far, so that it says the same in any company and after a preemption.
    """

    arg_names: tuple[str, ...] = ()  # what it reads of SamplingParams.extra_args

    @abstractmethod
    def wants(self, params: SamplingParams) -> bool:
        """Whether it has a say in a request with these settings. Asked once. Raises ValueError
        for arguments that make no sense: that request ends with the message, no other does."""

    @abstractmethod
    def apply(self, scores: Tensor, rows: Sequence[SamplerRow]) -> None:
        """Change scores [rows, vocab] in place; only rows whose requests want it are here."""


def plugins_for(
    params: SamplingParams, plugins: Sequence[LogitsProcessor]
) -> tuple[LogitsProcessor, ...]:
    """The ones that a request wants. Raises ValueError for an argument that none of the engine's
    plug-ins reads."""
    known = {name for plugin in plugins for name in plugin.arg_names}
    for name, _ in params.extra_args:
        if name not in known:
            raise ValueError(f"extra_args: no logits processor of this engine reads {name!r}")
    return tuple(plugin for plugin in plugins if plugin.wants(params))


def has_rules(params: SamplingParams) -> bool:
    """Whether these settings change scores, plug-ins apart."""
    return bool(
        params.has_penalties or params.logit_bias or params.min_tokens
        or params.bad_words_token_ids or params.allowed_token_ids
    )  # fmt: skip


class ScoreRules:
    """What one request asks of its scores, as tensors where the scores are.

    Made when the worker learns of the request, and again after a preemption. Whoever owns
    `token_ids` appends to it, and each step counts only what is new there.
    """

    def __init__(
        self,
        params: SamplingParams,
        token_ids: list[int],  # prompt, then what was sampled
        num_prompt_tokens: int,
        *,
        vocab_size: int,
        device: torch.device | str = "cpu",
        eos_token_ids: tuple[int, ...] = (),
        plugins: tuple[LogitsProcessor, ...] = (),  # those that want the request
    ) -> None:
        self.params = params
        self.token_ids = token_ids
        self.num_prompt_tokens = num_prompt_tokens
        # A tokenizer may know an EOS that the model has no score for.
        eos = () if params.ignore_eos else (i for i in eos_token_ids if i < vocab_size)
        self.stop_ids = (*params.stop_token_ids, *eos)
        self.plugins = plugins
        self.blocked: Tensor | None = None  # [vocab] bool
        if params.allowed_token_ids is not None:
            self.blocked = torch.ones(vocab_size, dtype=torch.bool, device=device)
            self.blocked[list(params.allowed_token_ids)] = False
        # What penalties go by: how often each id stands in the answer. An id of the prompt alone
        # has 0, and is here only if the request minds it.
        self.num_in_output: dict[int, int] = {}
        if params.repetition_penalty != 1:
            self.num_in_output = dict.fromkeys(token_ids[:num_prompt_tokens], 0)
        self._num_counted = num_prompt_tokens

    def count_new_tokens(self) -> None:
        for token_id in self.token_ids[self._num_counted :]:
            self.num_in_output[token_id] = self.num_in_output.get(token_id, 0) + 1
        self._num_counted = len(self.token_ids)

    def recount(self) -> None:
        """Tokens that were there already have changed."""
        self._num_counted = self.num_prompt_tokens
        self.num_in_output = dict.fromkeys(self.num_in_output, 0)

    def forbidden_ids(self) -> list[int]:
        """Ids that must not come next: those that would complete a bad word of the answer, and
        stop tokens while the answer is shorter than min_tokens."""
        num_output = len(self.token_ids) - self.num_prompt_tokens
        forbidden = list(self.stop_ids) if num_output < self.params.min_tokens else []
        for *earlier, last in self.params.bad_words_token_ids:
            n = len(earlier)
            if n <= num_output and self.token_ids[len(self.token_ids) - n :] == earlier:
                forbidden.append(last)
        return forbidden
