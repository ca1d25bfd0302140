"""Experiments on KV memory: what is found in it, and what happens when it is full."""

from __future__ import annotations

import random
import textwrap
from typing import TYPE_CHECKING, Any

from .arrivals import poisson, uniform
from .outcome import Outcome, deploy, draw_kinds, figures, run
from .plot import PREFILL, draw_bars, draw_curves
from .report import describe
from .roofline import Deployment, compute_seconds, prefill_work, swap_seconds
from .workload import workload_prefixes, workload_rag

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SWAP = "#009e73"  # neither prefill nor decode
# model, hardware, number of devices
PLACES = (
    ("smollm2-135m", "h100", 1),
    ("llama-3-8b", "h100", 1),
    ("llama-3-8b", "rtx4090", 1),
    ("qwen3-30b-a3b", "h100", 1),
    ("llama-3-70b", "h200", 8),
    ("llama-3-70b", "gb200", 4),
)


def scrambled_prompts() -> Outcome:
    """The same documents in the prompts, and the cache finds less and less of them."""
    deployment = deploy("llama-3-70b", "h200", 8)
    rows = []
    for order, label in (
        ("fixed", "parts in one order"),
        ("scrambled", "in another order each time"),
        ("stamped", "something new in front"),
    ):
        requests = workload_rag(
            200, docs=4, order=order, arrivals=poisson(8, random.Random(3)), seed=3
        )
        for cache in ("hash", "radix"):
            f = figures(run(requests, deployment, prefix_cache=cache))
            rows.append({
                "prompts": label,
                "cache": cache,
                "hit rate": f["hit_rate"],
                "TTFT p50 (ms)": 1e3 * f["ttft_p50_s"],
                "TTFT p99 (ms)": 1e3 * f["ttft_p99_s"],
            })  # fmt: skip

    def draw(figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        shown = [row for row in rows if row["cache"] == "radix"]
        labels = [textwrap.fill(row["prompts"], width=13) for row in shown]
        hits = [100 * row["hit rate"] for row in shown]
        waits = [row["TTFT p50 (ms)"] for row in shown]
        draw_bars(left, dict(zip(labels, hits)), y="prompt tokens found (%)")
        draw_bars(right, dict(zip(labels, waits)), y="time to first token, median (ms)")

    return Outcome(
        "Same documents, same questions: where did the hits go?",
        f"{describe(deployment)}, 200 questions over 4 documents of 512 tokens each, radix cache.",
        rows,
        draw,
    )


def preemption_cliff() -> Outcome:
    """More and more requests at once. As long as memory lasts that is more throughput; then
    somebody is stopped for each who goes on."""
    deployment = deploy("llama-3-8b", "rtx4090")
    requests = workload_prefixes(
        64, prompt_len=uniform(100, 300), output_len=uniform(200, 1000), seed=5
    )
    rows = []
    for places in (8, 16, 24, 32, 40, 48, 64):
        for preemption in ("recompute", "swap", "reserve"):
            f = figures(
                run(
                    requests,
                    deployment,
                    max_num_seqs=places,
                    preemption=preemption,
                    gpu_memory_utilization=0.75,
                    num_host_blocks=4000 if preemption == "swap" else 0,
                )
            )
            rows.append({
                "places": places,
                "when full": preemption,
                "output tokens/s": f["output_tokens_per_s"],
                "preemptions a request": f["num_preemptions"] / f["num_requests"],
                "TPOT p99 (ms)": 1e3 * f["tpot_p99_s"],
            })  # fmt: skip

    def draw(figure: Figure) -> None:
        draw_kinds(
            figure,
            rows,
            kind="when full",
            x="places",
            label="requests that may run at once",
            ys=("output tokens/s", "preemptions a request", "TPOT p99 (ms)"),
        )

    return Outcome(
        "How many at once, before memory is full in mid-sentence?",
        f"{describe(deployment)}, 64 requests of 100 to 300 tokens in and 200 to 1,000 out; "
        f"three quarters of the memory are for weights and KV.",
        rows,
        draw,
        size=(11.0, 4.2),
    )


def recompute_or_swap() -> Outcome:
    """What it costs to get back a token's KV: computed again, or put away and fetched. Both grow
    with the number of tokens, so length cancels, until attention's square shows."""
    rows = []
    for model, hardware, num in PLACES:
        deployment = deploy(model, hardware, num)
        pieces = deploy(model, hardware, num, copies_per_block=2 * deployment.model.num_layers)
        rows.append({
            "model and hardware": describe(deployment),
            "recompute": recompute_us(deployment, 1000),
            "at 8,000": recompute_us(deployment, 8000),
            "swap": swap_us(deployment),
            "in pieces": swap_us(pieces),
        })  # fmt: skip

    def draw(figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        draw_lengths(left)
        draw_block_sizes(right)

    return Outcome(
        "Forget, or put away?",
        "microseconds for each token; swap is out and in, in blocks of 16 tokens; in pieces: K "
        "and V of each layer by themselves.",
        rows,
        draw,
    )


def recompute_us(deployment: Deployment, num_tokens: int) -> float:
    """Microseconds a token to compute so many again, when the step has enough to do."""
    return 1e6 * compute_seconds(deployment, prefill_work(num_tokens)) / num_tokens


def swap_us(deployment: Deployment) -> float:
    """Microseconds a token to move a block to the host and back."""
    return 1e6 * 2 * swap_seconds(deployment, 1) / deployment.block_size


def draw_lengths(axes: Any) -> None:
    deployment = deploy("llama-3.1-8b", "h100")
    lengths = [2**n for n in range(9, 18)]
    draw_curves(
        axes,
        {
            "recompute": [(n, recompute_us(deployment, n)) for n in lengths],
            "swap": [(n, swap_us(deployment)) for n in lengths],
        },
        x="tokens of the request",
        y="microseconds a token",
        colours=(PREFILL, SWAP),
        xscale="log",
        ylim=(0, None),
        title="8B on an H100: by length",
    )


def draw_block_sizes(axes: Any) -> None:
    sizes = [2**n for n in range(9)]
    curves = {}
    for name, per_block in (("in pieces", 64), ("whole blocks", 1)):
        curves[f"swap, {name}"] = [
            (
                size,
                swap_us(deploy("llama-3-8b", "h100", block_size=size, copies_per_block=per_block)),
            )
            for size in sizes
        ]
    recompute = recompute_us(deploy("llama-3-8b", "h100"), 1000)
    curves["recompute"] = [(size, recompute) for size in sizes]
    draw_curves(
        axes,
        curves,
        x="tokens in a block",
        y="microseconds a token",
        colours=("#66c2a5", SWAP, PREFILL),
        xscale="log",
        yscale="log",
        title="8B on an H100: by block size",
    )
