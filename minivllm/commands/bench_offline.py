"""Throughput: so many requests, all there at once.

examples:
  minivllm bench offline
  minivllm bench offline --requests 64 --input-len 32-512 --output-len 16-192 --json out.json
  minivllm bench offline --num-blocks 200 --picture offline.svg     little memory: preemptions
  minivllm bench offline --against transformers --dtype bfloat16
  minivllm bench offline --against llamacpp --peer-python ~/llama/bin/python

Prompts are random token ids, new ones each repeat; answers are greedy and have exactly the length
that was drawn. Run nothing else beside it: with as many threads as cores, one busy program makes
all of them wait.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from ..bench.against import comparison_table
from ..bench.arrivals import parse_length
from ..bench.offline import (
    engine_figures,
    middle,
    offline_requests,
    offline_table,
    speed_figures,
)
from ..bench.plot import draw_timeline, legend_of_phases, save
from .bench_against import Both, add_peer_options
from .bench_options import (
    about_repeats,
    add_engine_options,
    add_run_options,
    caption,
    check_options,
    finish,
    head,
    load_model,
    say,
    short_name,
    telling,
)
from .running import Progress

LOAD = ("requests", "input_len", "output_len", "prefix_len", "seed", "repeats")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("load")
    group.add_argument("--requests", type=int, default=32, metavar="N", help="(default: 32)")
    group.add_argument(
        "--input-len", default="32-256", metavar="LENGTH",
        help="tokens of each prompt: 128, 32-256 or lognormal:MEAN:SIGMA:HIGH "
        "(default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--output-len", default="16-96", metavar="LENGTH", help="of each answer (default: 16-96)"
    )
    group.add_argument(
        "--prefix-len", type=int, default=0, metavar="N",
        help="tokens in front of all prompts, the same in each (default: 0)",
    )  # fmt: skip
    add_engine_options(parser)
    add_run_options(parser, repeats=3)
    add_peer_options(parser)


def run(args: argparse.Namespace) -> int:
    check_options(args)
    if args.requests < 1 or args.prefix_len < 0:
        raise ValueError("--requests must be at least 1 and --prefix-len at least 0")
    lengths = {name: parse_length(getattr(args, name)) for name in ("input_len", "output_len")}
    make_requests = partial(
        offline_requests, args.requests, **lengths, prefix_len=args.prefix_len, seed=args.seed
    )
    return compare(args, make_requests) if args.against else measure(args, make_requests)


def measure(args: argparse.Namespace, make_requests: Any) -> int:
    """This engine alone, in this process."""
    from ..bench.timed_run import serve

    llm = load_model(args)
    make_requests = partial(make_requests, vocab_size=llm.engine.vocab_size)
    runs, figures = [], []
    for repeat in range(-1, args.repeats):
        progress = Progress()
        requests = make_requests(repeat=repeat)
        timed = serve(llm.engine, requests, telling(progress, about_repeats(repeat, args.repeats)))
        progress.end()
        if repeat >= 0:
            runs.append(timed)
            figures.append(speed_figures(timed.records) | engine_figures(timed))
            rate = figures[-1]["output_tokens_per_s"]
            say(f"{about_repeats(repeat, args.repeats)}: {rate:,.1f} output tokens/s")
    found = middle(figures)
    record = head(args, llm, {name: getattr(args, name) for name in LOAD})
    record |= {"figures": found, "runs": figures}
    name = short_name(args.model)
    title = f"{name}: {args.requests} requests at once, medians of {args.repeats} runs"
    finish(args, record, f"{title}\n{describe_load(args)}\n\n{offline_table(found)}")
    if args.picture:
        draw(args, record, runs[-1].records)
    return 0


def describe_load(args: argparse.Namespace) -> str:
    shared = f"{args.prefix_len} shared and " if args.prefix_len else ""
    return f"{shared}{args.input_len} tokens in, {args.output_len} out"


def draw(args: argparse.Namespace, record: dict, records: list) -> None:
    def draw_requests(figure: Any) -> None:
        axes = figure.subplots()
        draw_timeline(axes, records, "")
        axes.set_xlabel("seconds")
        axes.set_ylim(len(records) - 0.5, -0.5)
        legend_of_phases(figure)

    title = f"{args.requests} requests at once, {short_name(args.model)}"
    save(args.picture, draw_requests, title=title, caption=caption(record), size=(8.0, 5.0))


def compare(args: argparse.Namespace, make_requests: Any) -> int:
    """Side by side with another engine, each in a process of its own."""
    both = Both(args)
    make_requests = partial(make_requests, vocab_size=both.vocab_size)
    with both.load(make_requests(repeat=0), batch_size=args.requests) as comparison:
        runs = comparison.ask(
            lambda repeat: make_requests(repeat=repeat),
            args.prefix_len,
            speed_figures,
            args.repeats,
            lambda name, repeat, scores: say(
                f"{about_repeats(repeat, args.repeats)}, {name}: "
                f"{scores['output_tokens_per_s']:,.1f} output tokens/s"
            ),
        )
        record = both.record({name: getattr(args, name) for name in LOAD}, comparison)
    title = f"{short_name(args.model)}: {args.requests} requests at once, {describe_load(args)}"
    finish(args, record | {"runs": runs}, f"{title}\n{both.note()}\n\n{comparison_table(runs)}")
    return 0
