"""Serve a made-up load on a modelled GPU: the real scheduler and caches under a virtual clock.

examples:
  minivllm simulate --hardware h200 --model llama-3-70b --tensor-parallel-size 8 \\
      --rate 20 --requests 1000 --prefixes 50 --prefix-len 500 \\
      --prefix-cache radix --policy lpm
  minivllm simulate --hardware rtx4090 --rate 0 --picture run.svg
  minivllm simulate --workload chat --requests 400 --rate 2
  minivllm simulate --workload-file traffic.jsonl --json
  minivllm simulate --experiment preemption-cliff --picture cliff.png

No GPU is needed or used. All times are modelled: a step takes the larger of its arithmetic and
its memory traffic, each at a stated efficiency, and a fixed cost for the step and each request.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import textwrap
from contextlib import ExitStack
from functools import partial

from ..bench.experiments import EXPERIMENTS
from ..bench.hardware import HARDWARE, find_hardware
from ..bench.model_shapes import MODELS, find_model
from ..bench.plot import check_picture, save_run
from ..bench.report import headline, rows_table, summarize, table
from ..bench.roofline import Constants, Deployment
from ..bench.simulate import simulate_workload
from ..config import POLICIES, PREEMPTIONS, PREFIX_CACHES, EngineConfig
from .running import Progress
from .simulated_load import add_load_options, make_load, refuse_unused

ENGINE_NUMBERS = {  # option: default, what it is
    "block_size": (16, "tokens in a KV block"),
    "max_num_seqs": (256, "requests in a step"),
    "max_num_batched_tokens": (2048, "tokens in a step"),
    "long_prefill_token_threshold": (0, "tokens of one request in a step; 0: no limit"),
    "num_blocks": (None, "KV blocks (default: what fits beside the weights)"),
    "num_host_blocks": (0, "KV blocks in host memory, for --preemption swap"),
    "max_model_len": (None, "tokens of prompt and answer together (default: the model's)"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_machine_options(parser)
    add_load_options(parser)
    add_engine_options(parser)
    group = parser.add_argument_group("what comes out")
    group.add_argument("--slo-ttft", type=float, default=1.0, help="seconds (default: %(default)s)")
    group.add_argument("--slo-tpot", type=float, default=0.05, help="likewise, for each token")
    group.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    group.add_argument("--trace", metavar="FILE", help="write each step's messages, as JSON lines")
    group.add_argument("--picture", metavar="FILE", help="draw it, as .svg or .png")
    group.add_argument(
        "--experiment",
        metavar="NAME",
        help=f"run one of these instead, with its own settings: {', '.join(EXPERIMENTS)}",
    )


def add_machine_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is modelled")
    group.add_argument("--hardware", default="h100", help=f"{', '.join(HARDWARE)} (default: h100)")
    group.add_argument(
        "-m", "--model", default="llama-3-8b", help=f"{', '.join(MODELS)} (default: llama-3-8b)"
    )
    group.add_argument("--tensor-parallel-size", type=int, default=1, metavar="N", help="devices")
    group.add_argument("--weight-bits", type=float, default=16, metavar="BITS")
    group.add_argument("--kv-bits", type=int, default=16, metavar="BITS")
    group.add_argument(
        "--compute-bits", type=int, default=16, metavar="BITS", help="of the numbers multiplied"
    )
    peaks = Constants()
    for name in ("compute_efficiency", "memory_efficiency"):
        what = name.partition("_")[0]
        group.add_argument(
            option(name), type=float, default=getattr(peaks, name), metavar="SHARE",
            help=f"of the {what} peak that is reached (default: %(default)s)",
        )  # fmt: skip


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("engine")
    default = EngineConfig("")
    for name, choices in (
        ("prefix_cache", PREFIX_CACHES),
        ("policy", POLICIES),
        ("preemption", PREEMPTIONS),
    ):
        group.add_argument(
            option(name), choices=choices, default=getattr(default, name), metavar="NAME",
            help=f"{', '.join(choices)} (default: %(default)s)",
        )  # fmt: skip
    for name, (number, help_text) in ENGINE_NUMBERS.items():
        shown = "" if number is None else " (default: %(default)s)"
        group.add_argument(
            option(name), type=int, default=number, metavar="N", help=help_text + shown
        )


def option(name: str) -> str:
    return "--" + name.replace("_", "-")


def run(args: argparse.Namespace) -> int:
    if args.picture:
        check_picture(args.picture)
    return run_experiment(args) if args.experiment else run_load(args)


def run_experiment(args: argparse.Namespace) -> int:
    if args.experiment not in EXPERIMENTS:
        raise ValueError(
            f"unknown experiment {args.experiment!r}: known are {', '.join(EXPERIMENTS)}"
        )
    own = {"experiment", "json", "picture", "command", "run", "parser", "version"}
    others = vars(args).keys() - own
    refuse_unused(args, sorted(others), "--experiment, which has its own settings")
    print(f"running {args.experiment} ...", file=sys.stderr, flush=True)
    outcome = EXPERIMENTS[args.experiment]()
    if args.json:
        print(json.dumps({"modelled": True, "title": outcome.title, "rows": outcome.rows}))
    else:
        caption = textwrap.indent(textwrap.fill(outcome.caption, width=77), "  ")
        print(f"modelled: {outcome.title}\n{caption}\n\n{rows_table(outcome.rows)}")
    if args.picture:
        outcome.save(args.picture)
    return 0


def show(progress: Progress, num_done: int, num: int, now: float) -> None:
    progress.show(f"{num_done:,} of {num:,} requests served, {now:,.1f} modelled seconds")


def run_load(args: argparse.Namespace) -> int:
    deployment = Deployment(
        model=find_model(args.model),
        hardware=find_hardware(args.hardware),
        tensor_parallel_size=args.tensor_parallel_size,
        weight_bits=args.weight_bits,
        kv_bits=args.kv_bits,
        compute_bits=args.compute_bits,
        block_size=args.block_size,
        constants=Constants(args.compute_efficiency, args.memory_efficiency),
    )
    names = ("prefix_cache", "policy", "preemption", *ENGINE_NUMBERS)
    config = EngineConfig(args.model, **{name: getattr(args, name) for name in names})
    requests = make_load(args, deployment.model.vocab_size)
    with ExitStack() as files:
        trace = args.trace and files.enter_context(open(args.trace, "w", encoding="utf-8")).write
        progress = Progress()
        simulation = simulate_workload(
            requests, deployment, config, trace=trace or None, progress=partial(show, progress)
        )
        progress.end()
    figures = summarize(simulation, args.slo_ttft, args.slo_tpot)
    if args.json:
        known = {k: None if math.isnan(v) else v for k, v in figures.items()}
        print(json.dumps({"modelled": True, **known}))
    else:
        print(f"{headline(simulation)}\n\n{table(figures, args.slo_ttft, args.slo_tpot)}")
    if args.picture:
        save_run(args.picture, simulation)
    return 0
