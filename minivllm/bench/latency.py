"""How long a batch of a fixed size waits: for its first token, and for each one after it."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from .arrivals import fixed
from .offline import Figures, offline_requests
from .report import milliseconds
from .simulate import Record
from .workload import WorkloadRequest


def latency_requests(
    batch_size: int, input_len: int, output_len: int, *, vocab_size: int, seed: int, repeat: int
) -> list[WorkloadRequest]:
    """batch_size prompts of the same length, new ones each repeat."""
    return offline_requests(
        batch_size, fixed(input_len), fixed(output_len),
        vocab_size=vocab_size, seed=seed, repeat=repeat,
    )  # fmt: skip


def latency_figures(records: Sequence[Record]) -> Figures:
    """ttft_s: until half of the batch has its first token. per_token_s: from one token to the
    next while everybody decodes, from the last first token to the first last one; where the
    answers are too short for that, the median over requests. latency_s: until all is said."""
    last_first = max(r.token_times[0] for r in records)
    first_last = min(r.token_times[-1] for r in records)
    inside = [sum(last_first < t <= first_last for t in r.token_times) for r in records]
    if first_last > last_first:
        per_token = (first_last - last_first) * len(records) / sum(inside)
    else:
        per_token = median(r.tpot_s for r in records)
    return {
        "ttft_s": median(r.ttft_s for r in records),
        "per_token_s": per_token,
        "latency_s": max(r.token_times[-1] for r in records),
        "decode_tokens_per_s": len(records) / per_token if per_token else 0.0,
    }


def latency_table(by_batch: dict[int, Figures]) -> str:
    """The figures for people, a line for each batch size."""
    lines = [f"{'batch':>5}{'TTFT':>12}{'per token':>12}{'whole batch':>13}{'decode tok/s':>14}"]
    for size, f in by_batch.items():
        cells = (f["ttft_s"], f["per_token_s"], f["latency_s"])
        ttft, per_token, whole = (milliseconds(value) for value in cells)
        rate = f["decode_tokens_per_s"]
        lines.append(f"{size:5}{ttft:>12}{per_token:>12}{whole:>13}{rate:14,.1f}")
    return "\n".join(lines)
