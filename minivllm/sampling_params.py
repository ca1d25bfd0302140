"""What a user may ask of one request's sampling, checked here and read everywhere."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose the next token, when to stop, what to report. vLLM's names and defaults.

    Order of work on a row of scores, which is vLLM's: allowed ids, bad words, stop tokens masked
    until `min_tokens`, `logit_bias`, plug-ins, penalties; then temperature, min-p, top-k, top-p
    (the latter two on what the one before kept), and one draw. `temperature=0` is exact argmax,
    the lowest id winning a tie, whatever the last three say.

    Lists may be given where tuples are kept, and dicts where pairs are. Raises ValueError naming
    the field and what it may be.
    """

    n: int = 1  # samples of each prompt
    presence_penalty: float = 0.0  # taken off the score of an id that the answer holds
    frequency_penalty: float = 0.0  # taken off for each time that the answer holds it
    repetition_penalty: float = 1.0  # of ids in prompt or answer: divides scores above 0,
    # multiplies those below
    temperature: float = 1.0
    top_k: int = 0  # 0 or -1: off
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None  # None: fresh randomness
    max_tokens: int | None = 16  # None: up to max_model_len. 0: score the prompt, write nothing
    min_tokens: int = 0
    stop: tuple[str, ...] = ()  # a string or a sequence of strings
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None  # the sampled token's, and this many of the likeliest; -1: all
    prompt_logprobs: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()  # {id: what is added to its score}
    allowed_token_ids: tuple[int, ...] | None = None  # no other id is chosen
    bad_words: tuple[str, ...] = ()  # never written, with or without a space before
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()  # never completed; one id: banned.
    # The engine adds those of bad_words
    extra_args: tuple[tuple[str, Any], ...] = ()  # {name: value}, for logits processors

    def __post_init__(self) -> None:
        keep = partial(object.__setattr__, self)
        keep("stop", _strings("stop", self.stop))
        keep("bad_words", _strings("bad_words", self.bad_words))
        keep("stop_token_ids", _ids("stop_token_ids", self.stop_token_ids or ()))
        if self.allowed_token_ids is not None:
            keep("allowed_token_ids", _ids("allowed_token_ids", self.allowed_token_ids))
        sequences = _items("bad_words_token_ids", self.bad_words_token_ids or ())
        keep("bad_words_token_ids", tuple(_ids("bad_words_token_ids", s) for s in sequences))
        keep("logit_bias", _biases(self.logit_bias or ()))
        keep("extra_args", _arguments(self.extra_args or ()))
        for name, low, high in _BOUNDS:
            _check_number(name, getattr(self, name), low, high)
        for name in _WHOLE:
            _check_whole(name, getattr(self, name))
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be True or False, got {getattr(self, name)!r}")
        self._check_together()

    def _check_together(self) -> None:
        """What no bound of one number says."""
        if self.top_p == 0:
            raise ValueError("top_p must be above 0 (it is the probability to keep), got 0")
        if self.repetition_penalty == 0:
            raise ValueError("repetition_penalty must be above 0, got 0 (1 is off)")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(
                f"min_tokens {self.min_tokens} is more than max_tokens {self.max_tokens}"
            )
        if self.allowed_token_ids == ():
            raise ValueError("allowed_token_ids is empty, so nothing could be chosen (None is off)")
        if () in self.bad_words_token_ids:
            raise ValueError("bad_words_token_ids must hold sequences of at least one id")

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0

    @property
    def has_penalties(self) -> bool:
        return (self.presence_penalty, self.frequency_penalty, self.repetition_penalty) != (0, 0, 1)


_OPTIONAL = ("seed", "max_tokens", "logprobs", "prompt_logprobs")  # may be None
# field, lowest, highest (both allowed; None: no bound)
_BOUNDS = (
    ("n", 1, None),
    ("presence_penalty", -2, 2),
    ("frequency_penalty", -2, 2),
    ("repetition_penalty", 0, None),
    ("temperature", 0, None),
    ("top_k", -1, None),
    ("top_p", 0, 1),
    ("min_p", 0, 1),
    ("max_tokens", 0, None),
    ("min_tokens", 0, None),
    ("logprobs", -1, None),
    ("prompt_logprobs", -1, None),
)
_WHOLE = ("n", "top_k", "seed", "max_tokens", "min_tokens", "logprobs", "prompt_logprobs")
_FLAGS = ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens")


def _check_number(name: str, value: Any, low: float, high: float | None) -> None:
    if value is None and name in _OPTIONAL:
        return
    wrong_type = not isinstance(value, (int, float)) or isinstance(value, bool)
    if wrong_type or not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number, got {value!r}")
    if value < low or (high is not None and value > high):
        bounds = f"at least {low}" if high is None else f"between {low} and {high}"
        raise ValueError(f"{name} must be {bounds}, got {value}")


def _check_whole(name: str, value: Any) -> None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise ValueError(f"{name} must be a whole number, got {value!r}")


def _items(name: str, given: Any) -> tuple:
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise ValueError(f"{name} must be a list, got {given!r}")
    return tuple(given)


def _strings(name: str, given: Any) -> tuple[str, ...]:
    texts = (given,) if isinstance(given, str) else _items(name, given or ())
    for text in texts:
        if not isinstance(text, str) or not text:
            raise ValueError(f"{name} must hold non-empty strings, got {text!r}")
    return texts


def _ids(name: str, given: Any) -> tuple[int, ...]:
    ids = _items(name, given)
    for token_id in ids:
        if not isinstance(token_id, int) or isinstance(token_id, bool) or token_id < 0:
            raise ValueError(f"{name} must hold token ids, got {token_id!r}")
    return ids


def _pairs(name: str, given: Any) -> Iterable[tuple[Any, Any]]:
    """Of a dict, or of the pairs that one was kept as."""
    try:
        return dict(given).items()
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a dict, got {given!r}") from None


def _biases(given: Any) -> tuple[tuple[int, float], ...]:
    """Pairs of (id, bias). JSON has no keys but strings, so "5" is the id 5."""
    biases: dict[int, float] = {}
    for key, bias in _pairs("logit_bias", given):
        is_text = isinstance(key, str) and key.isascii() and key.isdecimal()
        (token_id,) = _ids("logit_bias", (int(key) if is_text else key,))
        if token_id in biases:
            raise ValueError(f"logit_bias names the id {token_id} twice")
        _check_number(f"logit_bias of the id {token_id}", bias, -100, 100)
        biases[token_id] = bias
    return tuple(biases.items())


def _arguments(given: Any) -> tuple[tuple[str, Any], ...]:
    """Pairs of (name, plain value)."""
    pairs = tuple(_pairs("extra_args", given))
    for name, value in pairs:
        if not isinstance(name, str) or not isinstance(value, (str, int, float)):
            raise ValueError(f"extra_args must map names to text or numbers, got {name}={value!r}")
    return pairs
