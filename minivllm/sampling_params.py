"""What a user may ask of one request's sampling, checked here and read everywhere."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose the next token, when to stop, what to report. vLLM's names and defaults.

    Order of work on a row of scores: stop tokens masked until `min_tokens`, temperature, top-k,
    then top-p, then min-p (each on what the one before kept, renormalised), one draw.
    `temperature=0` is exact argmax, the lowest id winning a tie, whatever the filters say.
    Raises ValueError naming the field and what it may be.
    """

    n: int = 1  # samples of each prompt
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
    logprobs: int | None = None  # the sampled token's, and this many of the likeliest
    prompt_logprobs: int | None = None

    def __post_init__(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids or ()))
        for name, low, high in _BOUNDS:
            _check_number(name, getattr(self, name), low, high)
        for name in _WHOLE:
            _check_whole(name, getattr(self, name))
        if self.top_p == 0:
            raise ValueError("top_p must be above 0 (it is the probability to keep), got 0")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(
                f"min_tokens {self.min_tokens} is more than max_tokens {self.max_tokens}"
            )
        for text in stop:
            if not isinstance(text, str) or not text:
                raise ValueError(f"stop must hold non-empty strings, got {text!r}")

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0


_OPTIONAL = ("seed", "max_tokens", "logprobs", "prompt_logprobs")  # may be None
# field, lowest, highest (both allowed; None: no bound)
_BOUNDS = (
    ("n", 1, None),
    ("temperature", 0, None),
    ("top_k", -1, None),
    ("top_p", 0, 1),
    ("min_p", 0, 1),
    ("max_tokens", 0, None),
    ("min_tokens", 0, None),
    ("logprobs", 0, None),
    ("prompt_logprobs", 0, None),
)
_WHOLE = ("n", "top_k", "seed", "max_tokens", "min_tokens", "logprobs", "prompt_logprobs")


def _check_number(name: str, value: float | None, low: float, high: float | None) -> None:
    if value is None and name in _OPTIONAL:
        return
    wrong_type = not isinstance(value, (int, float)) or isinstance(value, bool)
    if wrong_type or not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number, got {value!r}")
    if value < low or (high is not None and value > high):
        bounds = f"at least {low}" if high is None else f"between {low} and {high}"
        raise ValueError(f"{name} must be {bounds}, got {value}")


def _check_whole(name: str, value: int | None) -> None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise ValueError(f"{name} must be a whole number, got {value!r}")
