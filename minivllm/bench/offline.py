"""Throughput: so many requests, all there at once. Who asks what, and the figures of a run."""

from __future__ import annotations

import random
from collections.abc import Sequence
from statistics import mean, median
from typing import TYPE_CHECKING

from .arrivals import Length
from .report import PERCENTILES, latencies, milliseconds, percentile
from .simulate import Record
from .workload import Texts, WorkloadRequest

if TYPE_CHECKING:
    from .timed_run import TimedRun

Figures = dict[str, float]


def offline_requests(
    num_requests: int,
    input_len: Length,
    output_len: Length,
    *,
    vocab_size: int,
    prefix_len: int = 0,
    seed: int = 0,
    repeat: int = 0,
) -> list[WorkloadRequest]:
    """Prompts of random ids: prefix_len that all share, then input_len of their own. Repeats have
    the same lengths and new ids, so that no prefix cache helps from one to the next."""
    lengths = random.Random(seed)
    texts = Texts(random.Random(f"{seed}, repeat {repeat}"), vocab_size)
    prefix = texts.new(prefix_len)
    return [
        WorkloadRequest(f"r{index}", prefix + texts.new(input_len(lengths)), output_len(lengths))
        for index in range(num_requests)
    ]


def records_of(requests: Sequence[WorkloadRequest], times: Sequence[list[float]]) -> list[Record]:
    """What a peer has answered: times[i] are the seconds at which request i got its tokens."""
    assert [len(t) for t in times] == [r.max_tokens for r in requests], "tokens are missing"
    return [Record(r, 0.0, token_times=t) for r, t in zip(requests, times)]


def speed_figures(records: Sequence[Record]) -> Figures:
    """What can be said of any engine, each figure with its unit at the end. Rates are over the
    time from the first request to the last token; percentiles are over requests."""
    seconds = max(r.token_times[-1] for r in records)
    num_in = sum(len(r.request.prompt_token_ids) for r in records)
    num_out = sum(len(r.token_times) for r in records)
    figures: Figures = {
        "duration_s": seconds,
        "requests_per_s": len(records) / seconds,
        "input_tokens_per_s": num_in / seconds,
        "output_tokens_per_s": num_out / seconds,
    }
    for name, values in latencies(records).items():
        if name != "itl" and values:
            figures[f"{name}_mean_s"] = mean(values)
            figures |= {f"{name}_p{p}_s": percentile(values, p) for p in PERCENTILES}
    return figures


def engine_figures(run: TimedRun) -> Figures:
    """What only an engine in this process can say of itself."""
    num_in = sum(len(r.request.prompt_token_ids) for r in run.records)
    lengths = [step.end - step.start for step in run.steps]
    used = sum(step.kv_use * length for step, length in zip(run.steps, lengths))
    return {
        "hit_rate": sum(r.num_cached_tokens for r in run.records) / num_in,
        "num_preemptions": sum(r.num_preemptions for r in run.records),
        "num_blocks": run.num_blocks,
        "kv_use_mean": used / sum(lengths),
        "kv_use_max": max(step.kv_use for step in run.steps),
        "num_steps": len(run.steps),
        "tokens_per_step": mean(step.work.num_tokens for step in run.steps),
        "prefill_share": run.prefill_share,
    }


def middle(runs: Sequence[Figures]) -> Figures:
    """Each figure's median over the repeats."""
    return {name: median(run[name] for run in runs) for name in runs[0]}


def offline_table(f: Figures) -> str:
    """The figures for people, 80 columns at most."""
    heads = ("mean", *(f"p{p}" for p in PERCENTILES))
    lines = [
        f"requests/s       {f['requests_per_s']:10.2f}",
        f"input tokens/s   {f['input_tokens_per_s']:10,.1f}",
        f"output tokens/s  {f['output_tokens_per_s']:10,.1f}",
        "",
        f"{'':12}" + "".join(f"{head:>10}" for head in heads),
    ]
    for name, label in (("ttft", "TTFT"), ("tpot", "TPOT"), ("latency", "end to end")):
        if f"{name}_mean_s" in f:
            cells = "".join(f"{milliseconds(f[f'{name}_{head}_s']):>10}" for head in heads)
            lines.append(f"{label:12}{cells}")
    lines += [
        "",
        f"KV use       {f['kv_use_mean']:.1%} on average, {f['kv_use_max']:.1%} at most, "
        f"of {f['num_blocks'] - 1:,.0f} blocks",
        f"preemptions  {f['num_preemptions']:,.0f}",
        f"hit rate     {f['hit_rate']:.1%} of the prompt tokens were in the prefix cache",
        f"steps        {f['num_steps']:,.0f} of {f['tokens_per_step']:,.1f} tokens on average; "
        f"prefill took {f['prefill_share']:.0%} of the time",
    ]
    return "\n".join(lines)
