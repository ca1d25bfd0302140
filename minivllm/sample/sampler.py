"""From rows of scores to tokens. Each row by its own settings, whatever its company.

Order of work on a row: what its request does to scores (`logits_processors`), temperature, min-p,
top-k, top-p, one draw. What is reported is of the model's own distribution, before all of that.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..outputs import Candidates
from .logits_processors import process
from .philox import uniform
from .rules import LogitsProcessor, SamplerRow

FEW = 64  # ids that are put in order at first, where it is not known how many must be


@dataclass(frozen=True, slots=True)
class SamplerOutput:
    """By row, in the order given."""

    token_ids: list[int]  # without meaning in a row that has an error
    logprobs: list[Candidates | None]  # None: not asked for
    errors: dict[int, str]  # row -> why nothing can be chosen from it


def sample(
    logits: Tensor,  # [rows, vocab]
    rows: Sequence[SamplerRow],
    plugins: Sequence[LogitsProcessor] = (),
    rows_at_once: int = sys.maxsize,
) -> SamplerOutput:
    """Choose one id for each row. A row whose best score is not a finite number gets an error,
    and no other row feels it. rows_at_once: draw for so many rows at a time, so that what is
    worked out on the way stays in a CPU's caches."""
    scores = process(logits, rows, plugins)
    best, token_ids = scores.max(dim=-1)  # NaN counts as the best; of equals the first
    errors = {r: describe(x) for r, x in enumerate(best.tolist()) if not abs(x) < float("inf")}

    drawn = [r for r, row in enumerate(rows) if not row.params.is_greedy and r not in errors]
    for start in range(0, len(drawn), rows_at_once):
        some = drawn[start : start + rows_at_once]
        token_ids[some] = sample_randomly(scores[some], [rows[r] for r in some])

    logprobs: list[Candidates | None] = [None] * len(rows)
    asked = [r for r, row in enumerate(rows) if row.params.logprobs is not None and r not in errors]
    if asked:
        nums = [rows[r].params.logprobs for r in asked]
        for r, found in zip(asked, candidates(logits[asked], token_ids[asked], nums)):
            logprobs[r] = found
    return SamplerOutput(token_ids.tolist(), logprobs, errors)


def describe(best: float) -> str:
    """Why a row with this best score cannot be sampled."""
    if best == -float("inf"):
        return "no token is allowed here: every one is masked"
    return f"the model's scores are not numbers to choose by: the best is {best}"


def sample_randomly(logits: Tensor, rows: Sequence[SamplerRow]) -> Tensor:
    """One draw a row: temperature, filters, inverse of the cumulative distribution. All in
    float32 at least."""
    params = [row.params for row in rows]
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))

    def column(numbers: list, dtype: torch.dtype = logits.dtype) -> Tensor:
        return torch.tensor(numbers, dtype=dtype, device=logits.device)

    # The maximum goes first, so that a tiny temperature cannot overflow; nor is it ever 0 here.
    temperature = column([p.temperature for p in params]).clamp_min(torch.finfo(logits.dtype).tiny)
    logits = (logits - logits.amax(-1, keepdim=True)) / temperature[:, None]
    probs = logits.softmax(-1)

    # Rows with a top-k apart: their few likeliest ids are found without sorting all.
    few = [r for r, p in enumerate(params) if p.top_k > 0]
    all_ids = [r for r, p in enumerate(params) if p.top_k <= 0 and (p.top_p < 1 or p.min_p > 0)]
    for where in (few, all_ids):
        if where:
            keep = keep_mask(
                logits[where],
                column([params[r].top_k for r in where], torch.int64),
                column([params[r].top_p for r in where]),
                column([params[r].min_p for r in where]),
            )
            probs[where] = probs[where].where(keep, 0)

    uniforms = uniform(
        [p.seed for p in params], [r.sample_index for r in rows], [r.position for r in rows]
    )
    return draw(probs, uniforms.to(logits.device))


def keep_mask(
    logits: Tensor,  # [rows, vocab], already divided by the temperature; -inf is never kept
    top_k: Tensor,  # [rows] int64; 0 or less: off
    top_p: Tensor,  # [rows]; 1: off
    min_p: Tensor,  # [rows]; 0: off
) -> Tensor:  # [rows, vocab] bool
    """Which ids may still be drawn. Each filter works on what the one before kept, renormalised,
    and the likeliest id always stays.

    min-p (Nguyen et al., 2024): those at least min_p times as likely as the likeliest. top-k: the
    k likeliest; of equals the lower ids. top-p (Holtzman et al., 2020): the fewest of the
    likeliest whose mass reaches p.
    """
    keep = logits > -torch.inf
    if (min_p > 0).any():
        ratios = (logits - logits.amax(-1, keepdim=True)).exp_()
        keep &= ratios >= min_p[:, None]
    has_top_k, has_top_p = top_k > 0, top_p < 1
    if not (has_top_k | has_top_p).any():
        return keep

    logits = logits.where(keep, -torch.inf)
    probs = logits.softmax(-1)
    in_order = (has_top_k | has_top_p).nonzero().squeeze(1)
    keep[in_order] = keep_likeliest(
        logits[in_order], probs[in_order], top_k[in_order, None], top_p[in_order, None]
    )
    return keep


def keep_likeliest(
    logits: Tensor,  # [rows, vocab]
    probs: Tensor,  # [rows, vocab]: their softmax
    top_k: Tensor,  # [rows, 1]
    top_p: Tensor,  # [rows, 1]
) -> Tensor:  # [rows, vocab] bool
    """top-k and top-p, of which each row has one. Only as many ids are put in order as must be:
    the k likeliest; a few, if top-p ends among them; else all that it may keep."""
    # More than 1 - p lies on an id that top-p keeps and on less likely ones together, so that it
    # is likelier than (1 - p) / vocab.
    has_top_k, lowest = top_k > 0, (1 - top_p) / logits.shape[-1]
    num = max(0 if has_top_k.all() else FEW, int(top_k.max()))
    for is_enough in (False, True):
        ids = likeliest(logits, num)
        ordered = probs.gather(-1, ids)
        rank = torch.arange(ids.shape[-1], device=ids.device)
        keep = torch.where(has_top_k, rank < top_k, ordered > lowest)
        keep &= logits.gather(-1, ids) > -torch.inf
        ordered = ordered.where(keep, 0)
        mass = ordered.cumsum(-1)
        # Whether top-p ends here beyond doubt, whatever the rounding of sums.
        ended = ~keep[:, -1:] | (mass[:, -1:] - ordered[:, -1:] > top_p + 1e-4)
        if is_enough or (has_top_k | ended).all():
            break
        num_likely = (probs > lowest).sum(-1, keepdim=True).where(~has_top_k, 0)
        num = max(num, int(num_likely.max()))
    whole = torch.where(has_top_k, mass[:, -1:], 1)
    keep &= (mass - ordered < top_p * whole) | (top_p >= 1)
    keep[:, 0] = True
    return torch.zeros_like(logits, dtype=torch.bool).scatter_(-1, ids, keep)


def draw(
    probs: Tensor,  # [rows, vocab], not negative; a row need not add up to 1
    uniforms: Tensor,  # [rows] float64 in [0, 1)
) -> Tensor:  # [rows] int64
    """The first id at which the sum of probs so far exceeds uniform x the row's whole sum. An id
    of probability 0 is never drawn. In float64, so that the product stays below the whole sum."""
    cumulative = probs.double().cumsum(-1)
    targets = uniforms[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, targets, right=True).squeeze(-1)


def candidates(
    logits: Tensor,  # [rows, vocab]
    token_ids: Tensor,  # [rows]: what stands, or will stand, at each row's position
    nums: Sequence[int],  # by row: how many of the likeliest to list as well
) -> list[Candidates]:
    """By row: (id, log-probability, rank) of the row's own token, then of its likeliest, best
    first. No number depends on how many are asked for. Of equals the lower id ranks first."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    logprobs = logits.log_softmax(-1)
    own_ids = token_ids[:, None]
    own = logits.gather(-1, own_ids)
    earlier = torch.arange(logits.shape[-1], device=logits.device) < own_ids
    ranks = 1 + ((logits > own) | ((logits == own) & earlier)).sum(-1)

    top_ids = likeliest(logits, max(nums))
    ids = torch.cat((own_ids, top_ids), dim=1)
    values = logprobs.gather(-1, ids).tolist()
    top_ranks = list(range(1, top_ids.shape[1] + 1))
    return [
        tuple(zip(row_ids[: n + 1], row_values, [rank, *top_ranks]))
        for row_ids, row_values, rank, n in zip(ids.tolist(), values, ranks.tolist(), nums)
    ]


def likeliest(logits: Tensor, num: int) -> Tensor:
    """[rows, num] ids of the highest scores, best first, of equals the lower id (topk alone
    promises no order of equals, and in bfloat16 there are many); those of -inf in any order."""
    vocab_size = logits.shape[-1]
    num = min(num, vocab_size)
    if num == 0:
        return torch.empty((len(logits), 0), dtype=torch.int64, device=logits.device)
    num_asked = num + FEW  # topk may leave out the lower ids among equals of the last
    if num_asked <= vocab_size // 8:
        values, ids = logits.topk(num_asked)
        tied = (values[:, num - 1] == values[:, -1]) & (values[:, -1] > -torch.inf)
        if tied.any():
            num_asked = int((logits >= values[:, num - 1 : num]).sum(-1).max())
            if num_asked <= vocab_size // 8:
                ids = logits.topk(num_asked).indices
    if num_asked > vocab_size // 8:  # sorting all is as quick
        return logits.sort(dim=-1, descending=True, stable=True).indices[:, :num]
    ids = ids.sort(-1).values
    order = logits.gather(-1, ids).sort(dim=-1, descending=True, stable=True).indices
    return ids.gather(-1, order)[:, :num]
