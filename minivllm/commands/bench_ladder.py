"""The ladder: one workload, from the naive loop up, and what each idea brings.

examples:
  minivllm bench ladder
  minivllm bench ladder --picture ladder.svg --json ladder.json
  minivllm bench ladder -m tiny --requests 32 --output-len 16-64

naive -> KV cache -> static batch -> paged and continuous -> prefix cache -> fused and packed ->
bfloat16. Every rung is this engine with options turned off, with the same KV memory, and must
write the same texts. Beside each gain stands the one that a roofline predicts from this machine's
peaks, which are measured as well. With the default model the naive rung takes a minute or two; a
rung of more than 30 seconds is run once. Exit status 1: a text differs for no good reason.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..bench.arrivals import parse_length
from ..bench.ladder_report import RungRow, as_record, draw_ladder, ladder_table
from ..bench.offline import engine_figures, offline_requests, speed_figures
from ..bench.plot import save
from ..bench.record import about_run
from .bench_options import (
    about_repeats,
    add_run_options,
    caption,
    check_options,
    finish,
    say,
    short_name,
    telling,
)
from .options import DEFAULT_MODEL
from .running import Progress

if TYPE_CHECKING:
    from ..bench.hardware import Hardware
    from ..bench.ladder import Ladder

LOAD = (
    "requests", "prefix_len", "input_len", "output_len", "static_batch", "max_model_len",
    "max_num_batched_tokens", "seed", "repeats",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-m", "--model", default=DEFAULT_MODEL, help="(default: %(default)s)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, mps (default: auto)")
    group = parser.add_argument_group("load")
    group.add_argument("--requests", type=int, default=16, metavar="N", help="(default: 16)")
    group.add_argument(
        "--prefix-len", type=int, default=128, metavar="N",
        help="tokens that all prompts share (default: 128)",
    )  # fmt: skip
    group.add_argument(
        "--input-len", default="8-32", metavar="LENGTH", help="tokens behind them (default: 8-32)"
    )
    group.add_argument(
        "--output-len", default="8-48", metavar="LENGTH", help="of each answer (default: 8-48)"
    )
    group.add_argument(
        "--static-batch", type=int, default=4, metavar="N",
        help="requests of a static batch; the KV memory of every rung holds so many of "
        "--max-model-len tokens (default: 4)",
    )  # fmt: skip
    group.add_argument(
        "--max-model-len", type=int, default=512, metavar="N",
        help="tokens that one request may have (default: 512)",
    )  # fmt: skip
    group.add_argument(
        "--max-num-batched-tokens", type=int, default=512, metavar="N",
        help="tokens in a step (default: 512)",
    )  # fmt: skip
    add_run_options(parser, repeats=3)


def run(args: argparse.Namespace) -> int:
    check_options(args)
    for name in ("requests", "static_batch", "max_model_len", "max_num_batched_tokens"):
        if getattr(args, name) < 1:
            raise ValueError(f"{name} must be at least 1, got {getattr(args, name)}")
    lengths = {name: parse_length(getattr(args, name)) for name in ("input_len", "output_len")}
    ladder, device = make_ladder(args)
    vocab_size = next(iter(ladder.loaded.values())).vocab_size
    requests = offline_requests(
        args.requests, **lengths, vocab_size=vocab_size, prefix_len=args.prefix_len, seed=args.seed
    )
    climb(args, ladder, requests)
    say("measuring the machine's peaks, comparing the texts ...")
    peaks = ladder.predict()
    ladder.compare_texts()
    rows = rows_of(ladder)
    record = record_of(args, device, peaks, rows)
    name = short_name(args.model)
    title = (
        f"{name}: {args.requests} requests, {args.prefix_len} shared and {args.input_len} tokens "
        f"in, {args.output_len} out"
    )
    finish(args, record, f"{title}\n{describe(peaks)}\n\n{ladder_table(rows)}")
    if args.picture:
        save(
            args.picture,
            draw_ladder(rows),
            title=f"The ladder: one workload, one idea more on each rung ({name})",
            caption=f"{title}; KV memory for {args.static_batch * args.max_model_len:,} tokens. "
            f"A step of both phases is divided by its tokens. {caption(record)}",
            size=(9.5, 5.0),
        )
    return int(any(row.is_wrong for row in rows))


def make_ladder(args: argparse.Namespace) -> tuple[Ladder, str]:
    """The rungs, loaded, and the kind of device that they are on."""
    import torch

    from ..bench.ladder import Ladder, base_config, rungs
    from ..checkpoint.registry import resolve
    from ..worker.worker import choose_device

    if args.threads:
        torch.set_num_threads(args.threads)
    device = choose_device(args.device).type
    base = base_config(
        resolve(args.model), device=args.device, batch_size=args.static_batch,
        max_model_len=args.max_model_len, max_num_batched_tokens=args.max_num_batched_tokens,
    )  # fmt: skip
    ladder = Ladder(base, rungs(args.static_batch, args.requests, device))
    say(f"loading {args.model}, once for each kind of arithmetic ...")
    ladder.load()
    return ladder, device


def climb(args: argparse.Namespace, ladder: Ladder, requests: list) -> None:
    """Every rung, repeat by repeat, so that neighbours see the same minutes of the machine."""
    say("warming up ...")
    ladder.warm_up(requests)
    for repeat in range(args.repeats):
        for result in ladder.results:
            name = f"{about_repeats(repeat, args.repeats)}, {result.rung.name}"
            progress = Progress()
            if ladder.run(result, requests, telling(progress, name)):
                last = result.runs[-1]
                progress.end()
                say(f"{name}: {last.num_new_tokens / last.wall_s:,.1f} tokens/s")


def rows_of(ladder: Ladder) -> list[RungRow]:
    from ..bench.ladder import measured_gains, roofline_gains

    results = ladder.results
    rows = []
    for result, gain, at_best in zip(results, measured_gains(results), roofline_gains(results)):
        run = result.runs[-1]
        figures = speed_figures(run.records) | engine_figures(run)
        rows.append(
            RungRow(
                name=result.rung.name,
                what=result.rung.what,
                dtype=result.config.dtype,
                tokens_per_s=result.tokens_per_s,
                seconds=result.seconds,
                seconds_of_runs=tuple(r.wall_s for r in result.runs),
                prefill_share=result.prefill_share,
                gain=gain,
                roofline_s=result.roofline_s,
                roofline_gain=at_best,
                num_requests=len(run.outputs),
                num_same=len(run.outputs) - len(result.parted),
                parted=tuple(result.parted),
                ttft_p50_s=figures["ttft_p50_s"],
                num_preemptions=int(figures["num_preemptions"]),
                hit_rate=figures["hit_rate"],
            )
        )
    return rows


def record_of(
    args: argparse.Namespace, device: str, peaks: dict[str, Hardware], rows: list[RungRow]
) -> dict[str, Any]:
    import torch

    asked = {"model": args.model, **{name: getattr(args, name) for name in LOAD}}
    record = about_run(
        "bench ladder",
        asked,
        device=device,
        dtype="float32 and bfloat16",
        threads=torch.get_num_threads(),
    )  # fmt: skip
    return record | {
        "peaks": {dtype: asdict(peak) for dtype, peak in peaks.items()},
        "rungs": as_record(rows),
    }


def describe(peaks: dict[str, Hardware]) -> str:
    """The machine's peaks, a line of at most 80 columns."""
    return "peaks: " + "; ".join(
        f"{dtype} {max(peak.flops_per_s.values()) / 1e9:,.0f} GFLOP/s, "
        f"{peak.memory_bytes_per_s / 1e9:.0f} GB/s"
        for dtype, peak in peaks.items()
    )
