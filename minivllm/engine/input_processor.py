"""From what a user hands in to an `EngineCoreRequest`: text to ids, defaults resolved, and every
reason to refuse found before anything is queued."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

from ..outputs import EngineCoreRequest
from ..sampling_params import SamplingParams
from ..tokenizer.tokenizer import Tokenizer

Prompt = str | Sequence[int]


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A user's request, checked and ready to queue."""

    request_id: str
    prompt: str | None  # None when it was given as token ids
    samples: tuple[EngineCoreRequest, ...]


class InputProcessor:
    """Refuses by ValueError what the engine could not finish, before anything is queued."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        vocab_size: int,
        max_model_len: int,
        seed: int | None = None,  # of requests that bring none
    ) -> None:
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size
        self.max_model_len = max_model_len
        self.seed = seed
        self.num_processed = 0

    def process(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams,
        *,
        arrival_time: float = 0.0,
        priority: int = 0,
    ) -> PreparedRequest:
        """The request as n samples, each a request of its own: "id" alone, or "id/0", "id/1", ...

        They share one seed and differ in sample_index, on which every draw depends. The k-th
        request without a seed gets the engine's seed + k, or fresh randomness if it has none.
        """
        token_ids = self.encode(prompt)
        params = self._resolve(params, len(token_ids))
        self.num_processed += 1
        samples = []
        for index in range(params.n):
            own = params if index == 0 else replace(params, prompt_logprobs=None)
            samples.append(
                EngineCoreRequest(
                    request_id=request_id if params.n == 1 else f"{request_id}/{index}",
                    prompt_token_ids=token_ids,
                    sampling_params=own,
                    arrival_time=arrival_time,
                    priority=priority,
                    parent_id=None if params.n == 1 else request_id,
                    sample_index=index,
                    fork_of=f"{request_id}/0" if index > 0 else None,
                    reads_prefix_cache=own.prompt_logprobs is None,
                )
            )
        text = prompt if isinstance(prompt, str) else None
        return PreparedRequest(request_id, text, tuple(samples))

    def encode(self, prompt: Prompt) -> tuple[int, ...]:
        """The prompt's token ids, at least one, each in the vocabulary."""
        if isinstance(prompt, str):
            token_ids = tuple(self.tokenizer.encode(prompt))
        elif isinstance(prompt, Sequence) and not isinstance(prompt, bytes | bytearray):
            token_ids = tuple(prompt)
        else:
            raise ValueError(
                f"a prompt is a string or a list of token ids, got {type(prompt).__name__}"
            )
        if not token_ids:
            raise ValueError("the prompt is empty: give it at least one token")
        for token_id in token_ids:
            if not isinstance(token_id, int) or isinstance(token_id, bool):
                raise ValueError(
                    f"one prompt is a string or a list of token ids, got a list with {token_id!r}"
                )
            if not 0 <= token_id < self.vocab_size:
                raise ValueError(
                    f"token id {token_id} is outside the vocabulary of {self.vocab_size}"
                )
        return token_ids

    def _resolve(self, params: SamplingParams, num_prompt_tokens: int) -> SamplingParams:
        room = self.max_model_len - num_prompt_tokens
        wants_text = params.max_tokens != 0
        if room < (1 if wants_text else 0):
            raise ValueError(
                f"the prompt has {num_prompt_tokens} tokens and max_model_len is "
                f"{self.max_model_len}: no room for an answer"
            )
        if params.max_tokens is not None and params.max_tokens > room:
            raise ValueError(
                f"the prompt has {num_prompt_tokens} tokens and max_tokens is "
                f"{params.max_tokens}: together more than max_model_len, {self.max_model_len}"
            )
        for name in ("logprobs", "prompt_logprobs"):
            count = getattr(params, name)
            if count is not None and count > self.vocab_size:
                raise ValueError(f"{name}={count} is more than the vocabulary, {self.vocab_size}")
        params = self._resolve_ids(params)
        seed = params.seed
        if seed is None:
            seed = secrets.randbits(64) if self.seed is None else self.seed + self.num_processed
        max_tokens = room if params.max_tokens is None else params.max_tokens
        return replace(params, seed=seed, max_tokens=max_tokens)

    def _resolve_ids(self, params: SamplingParams) -> SamplingParams:
        """Words become ids, "all" a number, and ids that the model does not have are refused."""
        bad_words = tuple(s for word in params.bad_words for s in self._spellings(word))
        counts = {
            name: self.vocab_size
            for name in ("logprobs", "prompt_logprobs")
            if getattr(params, name) == -1
        }
        if bad_words or counts:
            banned = params.bad_words_token_ids + bad_words
            params = replace(params, bad_words=(), bad_words_token_ids=banned, **counts)
        for name, ids in (
            ("stop_token_ids", params.stop_token_ids),
            ("allowed_token_ids", params.allowed_token_ids or ()),
            ("bad_words_token_ids", chain(*params.bad_words_token_ids)),
            ("logit_bias", (token_id for token_id, _ in params.logit_bias)),
        ):
            for token_id in ids:
                if not 0 <= token_id < self.vocab_size:
                    raise ValueError(f"{name}: {token_id} is not in 0..{self.vocab_size - 1}")
        return params

    def _spellings(self, word: str) -> list[tuple[int, ...]]:
        """A bad word's ids at the start of a text and, where a space before it gives another
        first id but as many ids, after one (the rule of vLLM's SamplingParams)."""
        word = word.lstrip()
        plain = tuple(self.tokenizer.encode(word, add_special_tokens=False))
        if not plain:
            raise ValueError(f"bad_words: {word!r} gives no token")
        spaced = tuple(self.tokenizer.encode(f" {word}", add_special_tokens=False))
        is_other = spaced and spaced[0] != plain[0] and len(spaced) == len(plain)
        return [plain, spaced] if is_other else [plain]
