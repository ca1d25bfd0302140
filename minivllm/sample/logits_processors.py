"""What a request's settings do to its scores, before temperature and filters.

The order is vLLM's (v1/sample/sampler.py): the bitmap of a grammar, allowed_token_ids, bad words,
stop tokens until min_tokens, logit_bias, plug-ins, penalties. Each step handles all rows that ask
for it at once, and touches no other.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from .rules import LogitsProcessor, SamplerRow, ScoreRules


def process(
    logits: Tensor,  # [rows, vocab]
    rows: Sequence[SamplerRow],
    plugins: Sequence[LogitsProcessor] = (),
) -> Tensor:
    """The scores to choose by, in float32 at least; logits themselves, if no row has rules."""
    if all(row.rules is None and row.bitmap is None for row in rows):
        return logits
    scores = logits.to(torch.promote_types(logits.dtype, torch.float32), copy=True)
    ruled = [(r, row.rules) for r, row in enumerate(rows) if row.rules is not None]
    mask_by_bitmaps(scores, rows)
    mask_all_but_allowed(scores, ruled)
    mask_forbidden(scores, ruled)
    add_biases(scores, ruled)
    for plugin in plugins:
        where = [r for r, rules in ruled if plugin in rules.plugins]
        if where:
            picked = scores[where]
            plugin.apply(picked, [rows[r] for r in where])
            scores[where] = picked
    penalize(scores, [(r, rules) for r, rules in ruled if rules.params.has_penalties])
    return scores


Ruled = Sequence[tuple[int, ScoreRules]]  # which row, and its request's rules


def mask_by_bitmaps(scores: Tensor, rows: Sequence[SamplerRow]) -> None:
    where = [r for r, row in enumerate(rows) if row.bitmap is not None]
    if where:
        allowed = unpack([rows[r].bitmap for r in where], scores.shape[-1]).to(scores.device)
        scores[where] = scores[where].where(allowed, -torch.inf)


def unpack(bitmaps: Sequence[bytes], num_bits: int) -> Tensor:
    """[rows, num_bits] bool: bit i of byte i // 8, counted from the lowest."""
    packed = torch.frombuffer(bytearray(b"".join(bitmaps)), dtype=torch.uint8)
    packed = packed.view(len(bitmaps), -1, 1)
    assert 8 * packed.shape[1] >= num_bits, "a bitmap shorter than the vocabulary"
    bits = packed >> torch.arange(8, dtype=torch.uint8) & 1
    return bits.flatten(1)[:, :num_bits].bool()


def mask_all_but_allowed(scores: Tensor, ruled: Ruled) -> None:
    """allowed_token_ids."""
    asked = [(r, rules.blocked) for r, rules in ruled if rules.blocked is not None]
    if asked:
        where, blocked = zip(*asked)
        where = list(where)
        scores[where] = scores[where].masked_fill(torch.stack(blocked), -torch.inf)


def mask_forbidden(scores: Tensor, ruled: Ruled) -> None:
    """Bad words and min_tokens."""
    places = [(r, token_id) for r, rules in ruled for token_id in rules.forbidden_ids()]
    if places:
        where, ids = zip(*places)
        scores[list(where), list(ids)] = -torch.inf


def add_biases(scores: Tensor, ruled: Ruled) -> None:
    """logit_bias. An id that is masked stays masked."""
    biases = [(r, *pair) for r, rules in ruled for pair in rules.params.logit_bias]
    if biases:
        where, ids, values = zip(*biases)
        added = torch.tensor(values, dtype=scores.dtype, device=scores.device)
        scores[list(where), list(ids)] += added


def penalize(scores: Tensor, ruled: Ruled) -> None:
    """Penalties, of rows that have some. repetition_penalty (Keskar et al., 2019) counts an id
    that stands in prompt or answer, once; it divides a score above 0 and multiplies one below.
    frequency_penalty is taken off for each time that the answer holds the id, presence_penalty
    once if it does. Only ids that were seen are touched: a few hundred of a row's 50,000.
    """
    if not ruled:
        return
    ids: list[int] = []
    counts: list[int] = []
    for _, rules in ruled:
        rules.count_new_tokens()
        ids.extend(rules.num_in_output)
        counts.extend(rules.num_in_output.values())
    device = scores.device
    num_ids = torch.tensor([len(rules.num_in_output) for _, rules in ruled], device=device)

    def of_each_id(values: list[float], dtype: torch.dtype) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=device).repeat_interleave(num_ids)

    def setting(name: str) -> Tensor:
        return of_each_id([getattr(rules.params, name) for _, rules in ruled], scores.dtype)

    places = (
        of_each_id([r for r, _ in ruled], torch.long),
        torch.tensor(ids, dtype=torch.long, device=device),
    )
    num_in_output = torch.tensor(counts, dtype=torch.long, device=device)
    repetition, picked = setting("repetition_penalty"), scores[places]
    picked = torch.where(picked > 0, picked / repetition, picked * repetition)
    picked -= setting("frequency_penalty") * num_in_output
    picked -= setting("presence_penalty") * (num_in_output > 0)
    scores[places] = picked


def load_plugins(names: Iterable[str]) -> list[LogitsProcessor]:
    """One processor for each "module:Class", in the order given. Raises ValueError naming the
    one that cannot be imported or is no LogitsProcessor."""
    plugins = []
    for name in names:
        module, _, attribute = name.partition(":")
        try:
            kind = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError, ValueError) as error:
            raise ValueError(f'logits_processors: no "module:Class" {name!r}: {error}') from error
        if not (isinstance(kind, type) and issubclass(kind, LogitsProcessor)):
            raise ValueError(f"logits_processors: {name!r} is not a LogitsProcessor")
        plugins.append(kind())
    return plugins
