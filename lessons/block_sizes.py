"""What a size of blocks costs a request, counted on the users of `two_memories`; what small blocks
are worth, on a modelled GPU; and what handing one out takes on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from minivllm.bench.arrivals import uniform
from minivllm.bench.outcome import deploy, run
from minivllm.bench.workload import workload_prefixes

from . import draw
from .bars import Bars, bars
from .two_memories import Arrival, serve_paged


def law_by_block_size(
    users: Sequence[Arrival], num_slots: int, num_steps: int, engine: Callable[[str], Any]
) -> draw.Picture:
    """Unused slots and table entries of a request, averaged over all steps at which one is in,
    beside what the law says of them."""
    rows: dict[str, list[str]] = {}
    for size in (1, 2, 4, 8, 16, 32, 64):
        moments = serve_paged(users, num_slots, num_steps, size, engine)
        num_running = sum(len(m.running) for m in moments)
        unused = sum(m.count(draw.RESERVED, draw.INSIDE) for m in moments) / num_running
        owned = sum(num_slots - m.num_free for m in moments) / num_running
        column = {
            "slots in a block": f"{size}",
            "unused, by the law": f"{(size - 1) / 2:.1f}",
            "unused, counted": f"{unused:.1f}",
            "table entries": f"{owned / size:.1f}",
        }
        for label, value in column.items():
            rows.setdefault(label, []).append(value)
    made = [
        draw.Row(label, draw.cells(values, draw.USED if n else draw.NOTHING))
        for n, (label, values) in enumerate(rows.items())
    ]
    caption = f"Averages over {num_steps} steps, each request in each of them."
    return draw.Picture(tuple(made), caption, title="what a block size costs a request")


def served_twice(num_requests: int = 100) -> tuple[dict[str, int], Bars]:
    """The same requests at the same server, in blocks as long as the longest request and in small
    ones: how many were in at once, by block size in words, and tokens a second."""
    load = workload_prefixes(
        num_requests, prompt_len=uniform(100, 500), output_len=uniform(50, 400)
    )
    rates, at_once = [], {}
    for size in (2048, 16):
        gpu = deploy("llama-3-8b", "rtx4090", block_size=size)
        done = run(load, gpu, block_size=size)
        num_tokens = sum(len(record.token_times) for record in done.records)
        rates.append((f"blocks of {size}", num_tokens / done.makespan_s, draw.DECODE))
        most = max(step.num_running for step in done.steps)
        at_once[f"at once, at most, in blocks of {size}"] = most
    return at_once, bars(rates, "tokens/s", "output tokens a second", "Modelled.", 0)


def us_a_block(pool: Any, count: int = 200) -> float:
    """Microseconds to hand a block out and take it back. pool: one with 50 free blocks."""
    started = time.perf_counter()
    for _ in range(count):
        pool.release(pool.allocate(50))
    return (time.perf_counter() - started) / count / 50 * 1e6
