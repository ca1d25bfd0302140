"""When requests come, and how long they are: distributions drawn from a `random.Random`."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator

Length = Callable[[random.Random], int]  # draws a number of tokens, at least 1


def fixed(num_tokens: int) -> Length:
    return lambda rng: num_tokens


def uniform(low: int, high: int) -> Length:
    return lambda rng: rng.randint(low, high)


def lognormal(mean: float, sigma: float, high: int) -> Length:
    """Most are short and a few very long, as in real traffic. mean: of the lengths, before those
    above `high` are cut to it. sigma: of their logarithm; with 1, one in nine is longer than twice
    the mean."""
    mu = math.log(mean) - sigma**2 / 2
    return lambda rng: max(1, min(high, round(rng.lognormvariate(mu, sigma))))


def parse_length(text: str) -> Length:
    """1000, 500-1500 or lognormal:MEAN:SIGMA:HIGH. Raises ValueError that says so."""
    try:
        if text.startswith("lognormal:"):
            mean, sigma, high = (float(part) for part in text.split(":")[1:])
            if 1 <= mean <= high and 0 <= sigma < math.inf:
                return lognormal(mean, sigma, int(high))
        else:
            low, *more = (int(part) for part in text.split("-"))
            if low >= 1 and not more:
                return fixed(low)
            if 1 <= low <= more[0] and len(more) == 1:
                return uniform(low, more[0])
    except (ValueError, IndexError, OverflowError):
        pass  # told below, as any other text that is no length
    raise ValueError(
        f"{text!r} is no length: give tokens (1000), a range (500-1500) or "
        f"lognormal:MEAN:SIGMA:HIGH (lognormal:800:1:4000)"
    )


def all_at_once() -> Iterator[float]:
    """Everybody is there at second 0."""
    return itertools.repeat(0.0)


def poisson(rate: float, rng: random.Random) -> Iterator[float]:
    """Arrival times, in seconds, of people who know nothing of each other: `rate` a second, with
    exponential gaps. Raises ValueError for a rate that is not above 0."""
    if not rate > 0:
        raise ValueError(f"the rate must be above 0 requests a second, got {rate}")
    return itertools.accumulate(rng.expovariate(rate) for _ in itertools.count())


def bursts(rate: float, size: int, rng: random.Random) -> Iterator[float]:
    """As many a second on average, but `size` come at the same moment."""
    if size < 1:
        raise ValueError(f"a burst has at least 1 request, got {size}")
    for time in poisson(rate / size, rng):
        yield from itertools.repeat(time, size)
