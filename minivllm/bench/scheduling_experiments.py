"""Experiments on who runs when: batching, step size, order."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .arrivals import fixed, lognormal, poisson, uniform
from .outcome import Outcome, column, deploy, draw_kinds, figures, run
from .plot import DECODE, PREFILL, draw_curves, draw_timeline, legend_of_phases
from .report import describe, percentile
from .workload import WorkloadRequest, workload_prefixes

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def static_batching() -> Outcome:
    """Sixteen places. A static batch ends with its longest answer; a continuous one takes the
    next request as soon as a place is free."""
    deployment = deploy("llama-3-8b", "h100")
    requests = workload_prefixes(
        64, prompt_len=uniform(100, 500), output_len=lognormal(150, 0.8, 600), seed=1
    )
    runs = {
        name: run(requests, deployment, policy=policy, max_num_seqs=16, max_num_batched_tokens=8192)
        for name, policy in (("static", "static"), ("continuous", "fcfs"))
    }
    rows = []
    for name, simulation in runs.items():
        f = figures(simulation)
        rows.append({
            "batching": name,
            "seconds": f["duration_s"],
            "output tokens/s": f["output_tokens_per_s"],
            "running": f["num_running_mean"],
            "latency p50 (s)": f["latency_p50_s"],
            "latency p99 (s)": f["latency_p99_s"],
        })  # fmt: skip

    def draw(figure: Figure) -> None:
        for axes, (name, simulation) in zip(
            figure.subplots(1, 2, sharex=True, sharey=True), runs.items()
        ):
            rate = figures(simulation)["output_tokens_per_s"]
            draw_timeline(axes, simulation.records, f"{name}: {rate:,.0f} output tokens/s")
        legend_of_phases(figure)

    return Outcome(
        "When a short answer ends, who gets its place?",
        f"{describe(deployment)}, 64 requests at once, 16 places, answers of 4 to 600 tokens.",
        rows,
        draw,
        size=(9.0, 5.0),
    )


def chunked_prefill() -> Outcome:
    """Chats stream while long prompts come in. The fewer tokens a step may have, the shorter the
    stutter of those who stream, and the longer the newcomer waits."""
    deployment = deploy("llama-3-8b", "h100")
    chats, prompts = chats_and_prompts()
    rows = []
    for budget in (128, 256, 512, 1024, 2048, 4096, 8192):
        simulation = run([*chats, *prompts], deployment, max_num_batched_tokens=budget)
        streams, newcomers = simulation.records[: len(chats)], simulation.records[len(chats) :]
        gaps = [1e3 * gap for record in streams for gap in record.itl_s]
        first = [record.ttft_s for record in newcomers]
        rows.append({
            "budget": budget,
            "ITL p50 (ms)": percentile(gaps, 50),
            "ITL p99 (ms)": percentile(gaps, 99),
            "TTFT p50 (s)": percentile(first, 50),
            "TTFT p99 (s)": percentile(first, 99),
        })  # fmt: skip

    return Outcome(
        "How large may a step be before everybody stutters?",
        f"{describe(deployment)}; 10 chats a second, whose gaps between tokens are shown, and 3 "
        f"prompts of 8,000 tokens every 2 seconds, whose first token is. Budget: tokens of a step.",
        rows,
        lambda figure: draw_budgets(figure, rows),
    )


def chats_and_prompts() -> tuple[list[WorkloadRequest], list[WorkloadRequest]]:
    """Short requests that stream 200 tokens each, and long prompts that come between."""
    chats = workload_prefixes(
        400, prompt_len=fixed(200), output_len=fixed(200), arrivals=poisson(10, random.Random(1))
    )
    prompts = workload_prefixes(
        60,
        prompt_len=fixed(8000),
        output_len=fixed(50),
        arrivals=poisson(1.5, random.Random(2)),
        seed=1,
    )
    return chats, [replace(r, request_id=f"long {r.request_id}") for r in prompts]


def draw_budgets(figure: Figure, rows: list[dict[str, Any]]) -> None:
    chats, prompts = figure.subplots(1, 2)
    for axes, what, y, scale, colours in (
        (chats, "ITL p{} (ms)", "gap between a chat's tokens (ms)", "log", (DECODE, "#80bde0")),
        (prompts, "TTFT p{} (s)", "first token of a prompt (s)", "linear", (PREFILL, "#f0a070")),
    ):
        curves = {f"p{p}": column(rows, "budget", what.format(p)) for p in (99, 50)}
        x = "tokens that a step may have"
        draw_curves(axes, curves, x=x, y=y, colours=colours, xscale="log", yscale=scale)
        budgets = [row["budget"] for row in rows]
        axes.set_xticks(budgets, [f"{budget:,}" for budget in budgets])
    prompts.set_ylim(0, None)


def cache_aware_order() -> Outcome:
    """A queue of requests that share beginnings, and a cache that does not hold them all."""
    deployment = deploy("llama-3-8b", "h100")
    num_prefixes, prefix_len = 40, 2000
    requests = workload_prefixes(
        600,
        prompt_len=fixed(prefix_len + 100),
        output_len=fixed(60),
        num_prefixes=num_prefixes,
        prefix_len=prefix_len,
        arrivals=(8.0 * (i // 100) for i in range(600)),
        seed=4,
    )
    rows = []
    for share in (0.4, 0.5, 0.6, 0.75, 1.0, 1.25):
        num_blocks = round(share * num_prefixes * prefix_len / 16)
        for policy in ("fcfs", "lpm"):
            memory = {"prefix_cache": "radix", "num_blocks": num_blocks}
            f = figures(run(requests, deployment, policy=policy, max_num_seqs=12, **memory))
            rows.append({
                "KV memory / prefixes": share,
                "policy": policy,
                "hit rate": f["hit_rate"],
                "requests/s": f["requests_per_s"],
                "TTFT p50 (s)": f["ttft_p50_s"],
                "TTFT p99 (s)": f["ttft_p99_s"],
            })  # fmt: skip

    def draw(figure: Figure) -> None:
        draw_kinds(
            figure,
            rows,
            kind="policy",
            x="KV memory / prefixes",
            label="KV memory, in sizes of all prefixes",
            ys=("hit rate", "TTFT p50 (s)"),
        )

    return Outcome(
        "If order decides what is still cached, who should go first?",
        f"{describe(deployment)}, 40 shared beginnings of 2,000 tokens, 12 places, 100 requests "
        f"come every 8 seconds.",
        rows,
        draw,
    )
