"""From scores to a token in plain Python, in vLLM's order: the judge of everything that samples.

Written from the papers and from the order that vLLM documents; knows nothing of tensors or rows.
"""

from __future__ import annotations

import math
from itertools import accumulate

from minivllm.philox import uniform


def judged_scores(scores, params, prompt, output, eos=()) -> list[float]:
    """What a request's settings leave of its scores, before the temperature."""
    scores, output = list(scores), list(output)
    banned = set()
    if params.allowed_token_ids is not None:
        banned |= set(range(len(scores))) - set(params.allowed_token_ids)
    for word in params.bad_words_token_ids:
        if [*output, word[-1]][-len(word) :] == list(word):
            banned.add(word[-1])
    if len(output) < params.min_tokens:
        banned |= {*params.stop_token_ids, *(() if params.ignore_eos else eos)}
    for token_id in banned & set(range(len(scores))):
        scores[token_id] = -math.inf
    for token_id, bias in params.logit_bias:
        scores[token_id] += bias
    for token_id in {*prompt, *output}:
        score = scores[token_id]
        scores[token_id] = (
            score / params.repetition_penalty if score > 0 else score * params.repetition_penalty
        )
    for token_id in output:
        scores[token_id] -= params.frequency_penalty
    for token_id in set(output):
        scores[token_id] -= params.presence_penalty
    return scores


def judged_probs(scores, params) -> list[float]:
    """The distribution that is drawn from: temperature, min-p, top-k, top-p."""
    best = max(scores)
    mass = {i: math.exp((x - best) / params.temperature) for i, x in enumerate(scores)}
    order = sorted((i for i in mass if scores[i] > -math.inf), key=lambda i: (-scores[i], i))
    order = [i for i in order if mass[i] >= params.min_p]
    if params.top_k > 0:
        order = order[: params.top_k]
    whole = math.fsum(mass[i] for i in order)
    if params.top_p < 1:
        so_far = list(accumulate(mass[i] for i in order))
        order = [
            i for i, s in zip(order, so_far, strict=True) if s - mass[i] < params.top_p * whole
        ]
        whole = math.fsum(mass[i] for i in order)
    return [mass[i] / whole if i in order else 0.0 for i in range(len(scores))]


def judged_token(scores, params, position, sample_index=0) -> int:
    """The token itself."""
    if params.temperature == 0:
        return scores.index(max(scores))
    sums = list(accumulate(judged_probs(scores, params)))
    target = uniform(params.seed, sample_index, position) * sums[-1]
    return next(i for i, s in enumerate(sums) if s > target)
