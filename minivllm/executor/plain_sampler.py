"""From one row of scores to a token, in plain Python: the order of work of `sample/sampler.py`,
written for one request at a time. It draws the same token from the same scores."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from ..outputs import Candidates
from ..philox import uniform
from ..sampling_params import SamplingParams

Scores = Sequence[float]  # one an id


@dataclass(frozen=True, slots=True)
class Asker:
    """The request that a row of scores is for."""

    params: SamplingParams  # with a seed, unless greedy
    token_ids: Sequence[int]  # prompt, then what was sampled
    num_prompt_tokens: int
    sample_index: int = 0
    eos_token_ids: Sequence[int] = ()
    bitmap: bytes | None = None  # of ids that a grammar allows: bit i of byte i // 8 is id i


def choose(scores: Scores, asker: Asker) -> int:
    """The next token. Raises ValueError, saying why, if none can be chosen: no id is allowed, or
    the best score is not a finite number."""
    scores = process(scores, asker)
    best = math.nan if any(map(math.isnan, scores)) else max(scores)
    if best == -math.inf:
        raise ValueError("no token is allowed here: every one is masked")
    if not math.isfinite(best):
        raise ValueError(f"the model's scores are not numbers to choose by: the best is {best}")
    params = asker.params
    if params.is_greedy:
        return scores.index(best)
    position = len(asker.token_ids)
    return draw(probabilities(scores, params), uniform(params.seed, asker.sample_index, position))


def process(scores: Scores, asker: Asker) -> list[float]:
    """What a request's settings leave of its scores, in vLLM's order: the bitmap of a grammar,
    allowed ids, bad words, stop tokens until min_tokens, logit_bias, penalties."""
    scores, params = list(scores), asker.params
    for token_id in forbidden_ids(asker, len(scores)):
        scores[token_id] = -math.inf
    for token_id, bias in params.logit_bias:
        scores[token_id] += bias
    if params.has_penalties:
        penalize(scores, asker)
    return scores


def forbidden_ids(asker: Asker, vocab_size: int) -> set[int]:
    """Ids that must not come next."""
    params, output = asker.params, list(asker.token_ids[asker.num_prompt_tokens :])
    forbidden: set[int] = set()
    if asker.bitmap is not None:
        allowed = asker.bitmap
        forbidden |= {i for i in range(vocab_size) if not allowed[i // 8] >> i % 8 & 1}
    if params.allowed_token_ids is not None:
        forbidden |= set(range(vocab_size)).difference(params.allowed_token_ids)
    for *earlier, last in params.bad_words_token_ids:
        if output[max(0, len(output) - len(earlier)) :] == earlier:
            forbidden.add(last)
    if len(output) < params.min_tokens:
        eos = () if params.ignore_eos else asker.eos_token_ids
        forbidden |= {i for i in (*params.stop_token_ids, *eos) if i < vocab_size}
    return forbidden


def penalize(scores: list[float], asker: Asker) -> None:
    """Change the scores of ids that stand in prompt or answer: repetition_penalty (Keskar et al.,
    2019) divides one above 0 and multiplies one below; then frequency_penalty is taken off for
    each time that the answer holds the id, presence_penalty once if it does."""
    params = asker.params
    for token_id in set(asker.token_ids):
        score, penalty = scores[token_id], params.repetition_penalty
        scores[token_id] = score / penalty if score > 0 else score * penalty
    for token_id, count in Counter(asker.token_ids[asker.num_prompt_tokens :]).items():
        scores[token_id] -= params.frequency_penalty * count
        scores[token_id] -= params.presence_penalty


def probabilities(scores: Scores, params: SamplingParams) -> list[float]:
    """What each id is drawn with, up to a common factor; 0 for those that a filter drops.

    Temperature first. Then each filter works on what the one before kept, and the likeliest id
    always stays. min-p (Nguyen et al., 2024): those at least min_p times as likely as the
    likeliest. top-k: the k likeliest; of equals the lower ids. top-p (Holtzman et al., 2020): the
    fewest of the likeliest whose mass reaches p.
    """
    best = max(scores)
    ratios = [math.exp((score - best) / params.temperature) for score in scores]
    if params.top_k <= 0 and params.top_p >= 1:
        return [ratio if ratio >= params.min_p else 0.0 for ratio in ratios]
    kept = [i for i in likeliest(scores, len(scores)) if ratios[i] >= params.min_p]
    if params.top_k > 0:
        kept = kept[: params.top_k]
    if params.top_p < 1:
        masses = list(accumulate(ratios[i] for i in kept))
        enough = params.top_p * masses[-1]
        kept = [i for i, mass in zip(kept, [0.0, *masses]) if mass < enough]
    probs = [0.0] * len(scores)
    for token_id in kept:
        probs[token_id] = ratios[token_id]
    return probs


def draw(probs: Sequence[float], uniform: float) -> int:
    """The first id at which the sum of probs so far exceeds uniform (in [0, 1)) x the whole sum.
    An id of probability 0 is never drawn."""
    sums = list(accumulate(probs))
    return bisect_right(sums, uniform * sums[-1])


def candidates(scores: Scores, token_id: int, num: int) -> Candidates:
    """(id, log-probability, rank) of token_id, then of the num likeliest, best first. Of equals
    the lower id ranks first. NaN among the scores makes every log-probability NaN."""
    best = max(scores)
    log_whole = best + math.log(sum(math.exp(score - best) for score in scores))
    own = scores[token_id]
    rank = 1 + sum(s > own or (s == own and i < token_id) for i, s in enumerate(scores))
    top = enumerate(likeliest(scores, num), start=1)
    return (
        (token_id, own - log_whole, rank),
        *((i, scores[i] - log_whole, place) for place, i in top),
    )


def likeliest(scores: Scores, num: int) -> list[int]:
    """The num ids of the highest scores, best first, of equals the lower id."""
    if num == 0:
        return []
    return sorted(range(len(scores)), key=scores.__getitem__, reverse=True)[:num]
