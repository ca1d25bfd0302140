"""What a run was like for those who waited and for those who pay: percentiles, goodput, a table."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .roofline import Deployment
from .simulate import Record, Simulation

PERCENTILES = (50, 95, 99)


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that so many percent lie at or below, between neighbours in proportion (as
    numpy.percentile does). nan of nothing."""
    if not values:
        return math.nan
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def meets(record: Record, slo_ttft_s: float, slo_tpot_s: float) -> bool:
    """Whether a request was served well: its first token soon enough, the others fast enough."""
    return record.ttft_s <= slo_ttft_s and record.tpot_s <= slo_tpot_s


def summarize(simulation: Simulation, slo_ttft_s: float, slo_tpot_s: float) -> dict[str, float]:
    """The figures of a run, by name, with their unit at the name's end. Times and rates are
    modelled. Rates are over the time from the first arrival to the last token. Percentiles of
    TTFT and TPOT are over requests, those of ITL over all gaps between two tokens."""
    records, steps = simulation.records, simulation.steps
    done = [r for r in records if r.error is None]
    seconds = simulation.makespan_s - min(r.arrival_time for r in records)
    num_in = sum(len(r.request.prompt_token_ids) for r in done)
    num_out = sum(len(r.token_times) for r in done)
    num_good = sum(meets(r, slo_ttft_s, slo_tpot_s) for r in done)
    figures: dict[str, float] = {
        "num_requests": len(records),
        "num_errors": len(records) - len(done),
        "num_prompt_tokens": num_in,
        "num_output_tokens": num_out,
        "duration_s": seconds,
        "requests_per_s": len(done) / seconds,
        "output_tokens_per_s": num_out / seconds,
        "total_tokens_per_s": (num_in + num_out) / seconds,
        "goodput_requests_per_s": num_good / seconds,
        "goodput_share": num_good / len(records),
        "hit_rate": sum(r.num_cached_tokens for r in done) / max(1, num_in),
        "num_preemptions": simulation.num_preemptions,
        "num_swaps": simulation.num_swaps,
        "num_evicted_blocks": simulation.num_evicted_blocks,
        "num_blocks": simulation.num_blocks,
        "kv_use_mean": time_mean(simulation, [s.kv_use for s in steps]),
        "kv_use_max": max(s.kv_use for s in steps),
        "num_running_mean": time_mean(simulation, [s.num_running for s in steps]),
        "num_waiting_max": max(s.num_waiting for s in steps),
        "num_steps": len(steps),
        "step_mean_s": sum(s.end - s.start for s in steps) / len(steps),
        "tokens_per_step": sum(s.num_tokens for s in steps) / len(steps),
    }
    for name, values in latencies(done).items():
        figures[f"{name}_mean_s"] = sum(values) / len(values) if values else math.nan
        for percent in PERCENTILES:
            figures[f"{name}_p{percent}_s"] = percentile(values, percent)
    return figures


def latencies(records: Sequence[Record]) -> dict[str, list[float]]:
    """Seconds, by what is measured."""
    return {
        "ttft": [r.ttft_s for r in records],
        "tpot": [r.tpot_s for r in records if len(r.token_times) > 1],
        "itl": [gap for r in records for gap in r.itl_s],
        "latency": [r.latency_s for r in records],
    }


def time_mean(simulation: Simulation, values: Sequence[float]) -> float:
    """The mean over busy time of what each step had."""
    lengths = [s.end - s.start for s in simulation.steps]
    return sum(v * t for v, t in zip(values, lengths)) / sum(lengths)


def headline(simulation: Simulation) -> str:
    """What was modelled, and by which constants, in lines of at most 80 columns."""
    d, c, config = simulation.deployment, simulation.deployment.constants, simulation.config
    weights_gb, kv_gb = d.weight_bytes / 1e9, simulation.num_blocks * d.block_bytes / 1e9
    return f"""modelled: {describe(d)}
  weights {d.weight_bits:g} bits, KV {d.kv_bits} bits; on each {weights_gb:.1f} and {kv_gb:.1f} GB
  {c.compute_efficiency:.0%} of peak FLOP/s, {c.memory_efficiency:.0%} of peak bandwidth, \
{c.seconds_per_step * 1e3:g} ms a step
  policy {config.policy}, prefix cache {config.prefix_cache}, preemption {config.preemption}
  at most {config.max_num_seqs} requests and {config.max_num_batched_tokens} tokens a step"""


def describe(deployment: Deployment) -> str:
    """Model and devices in a few words."""
    num, name = deployment.tensor_parallel_size, deployment.hardware.name
    return f"{deployment.model.name} on {f'{num} x ' if num > 1 else ''}{name}"


def table(figures: dict[str, float], slo_ttft_s: float, slo_tpot_s: float) -> str:
    """The figures for people, 80 columns at most."""
    f = figures
    lines = [f"{'':12}{'mean':>10}" + "".join(f"{f'p{p}':>10}" for p in PERCENTILES)]
    for name, label in (
        ("ttft", "TTFT"),
        ("tpot", "TPOT"),
        ("itl", "ITL"),
        ("latency", "end to end"),
    ):
        values = [f[f"{name}_mean_s"], *(f[f"{name}_p{p}_s"] for p in PERCENTILES)]
        lines.append(f"{label:12}" + "".join(f"{milliseconds(v):>10}" for v in values))
    slo = f"TTFT <= {slo_ttft_s:g} s, TPOT <= {slo_tpot_s * 1e3:g} ms"
    rows = (
        ("requests", f"{f['num_requests']:,.0f} in {f['duration_s']:,.1f} s"),
        ("throughput", f"{f['requests_per_s']:.2f} requests/s, "
                       f"{f['output_tokens_per_s']:,.0f} output tokens/s"),
        ("goodput", f"{f['goodput_requests_per_s']:.2f} requests/s "
                    f"({f['goodput_share']:.1%}: {slo})"),
        ("hit rate", f"{f['hit_rate']:.1%} of {f['num_prompt_tokens']:,.0f} prompt tokens"),
        ("preemptions", f"{f['num_preemptions']:,.0f}, of which {f['num_swaps']:,.0f} swapped"),
        ("KV use", f"{f['kv_use_mean']:.1%} on average, {f['kv_use_max']:.1%} at most, "
                   f"of {f['num_blocks'] - 1:,.0f} blocks"),
        ("running", f"{f['num_running_mean']:.1f} on average; "
                    f"waiting: {f['num_waiting_max']:,.0f} at most"),
        ("steps", f"{f['num_steps']:,.0f} of {milliseconds(f['step_mean_s'])} and "
                  f"{f['tokens_per_step']:,.0f} tokens"),
    )  # fmt: skip
    return "\n".join(lines + [""] + [f"{name:12}{text}" for name, text in rows])


def milliseconds(seconds: float) -> str:
    """With three digits, as ms or s."""
    if math.isnan(seconds):
        return "-"
    if seconds >= 10:
        return f"{seconds:,.1f} s"
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def rows_table(rows: Sequence[dict[str, object]]) -> str:
    """Rows of equal keys as aligned columns, numbers to the right."""
    names = list(rows[0])
    cells = [names] + [[cell(row[name]) for name in names] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(names))]
    is_text = [isinstance(rows[0][name], str) for name in names]
    return "\n".join(
        "  ".join(
            text.ljust(width) if left else text.rjust(width)
            for text, width, left in zip(line, widths, is_text)
        ).rstrip()
        for line in cells
    )


def cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
