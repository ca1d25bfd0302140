"""Latency: a batch of a fixed size, its first token, and each one after it.

examples:
  minivllm bench latency
  minivllm bench latency --batch 1,4,16 --input-len 512 --output-len 64 --picture latency.svg
  minivllm bench latency --batch 1 --against transformers --dtype bfloat16

Prompts are random token ids, new ones each repeat; answers are greedy. "per token" is the time
from one token to the next while the whole batch decodes.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING, Any

from ..bench.against import comparison_table
from ..bench.latency import latency_figures, latency_requests, latency_table
from ..bench.offline import middle
from ..bench.plot import DECODE, PREFILL, save
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
    numbers,
    say,
    short_name,
    telling,
)
from .running import Progress

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOAD = ("batch", "input_len", "output_len", "seed", "repeats")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("load")
    group.add_argument(
        "--batch", default="1,8,32", metavar="N,N", help="requests at once (default: 1,8,32)"
    )
    group.add_argument("--input-len", type=int, default=128, metavar="N", help="(default: 128)")
    group.add_argument("--output-len", type=int, default=32, metavar="N", help="(default: 32)")
    add_engine_options(parser)
    add_run_options(parser, repeats=5)
    add_peer_options(parser)


def run(args: argparse.Namespace) -> int:
    check_options(args)
    sizes = numbers(args.batch, "--batch")
    if args.input_len < 1 or args.output_len < 2:
        raise ValueError("--input-len must be at least 1 and --output-len at least 2")
    make_requests = partial(
        latency_requests, input_len=args.input_len, output_len=args.output_len, seed=args.seed
    )
    return compare(args, sizes, make_requests) if args.against else measure(
        args, sizes, make_requests
    )  # fmt: skip


def measure(args: argparse.Namespace, sizes: list[int], make_requests: Any) -> int:
    """This engine alone, in this process."""
    from ..bench.timed_run import serve

    room = {"max_num_seqs": max(args.max_num_seqs, *sizes)}
    if args.max_model_len is None:
        room["max_model_len"] = args.input_len + args.output_len
    llm = load_model(args, **room)
    make_requests = partial(make_requests, vocab_size=llm.engine.vocab_size)
    by_batch, runs = {}, {}
    for size in sizes:
        runs[size] = []
        for repeat in range(-1, args.repeats):
            progress = Progress()
            tell = telling(progress, f"batch {size}, {about_repeats(repeat, args.repeats)}")
            timed = serve(llm.engine, make_requests(size, repeat=repeat), tell)
            progress.end()
            if repeat >= 0:
                runs[size].append(latency_figures(timed.records))
        by_batch[size] = middle(runs[size])
        say(f"batch {size}: {by_batch[size]['per_token_s'] * 1e3:.2f} ms a token")
    record = head(args, llm, {name: getattr(args, name) for name in LOAD})
    record |= {"figures": by_batch, "runs": runs}
    title = f"{short_name(args.model)}: {args.input_len} tokens in, {args.output_len} out, "
    finish(args, record, f"{title}medians of {args.repeats} runs\n\n{latency_table(by_batch)}")
    if args.picture:
        save(
            args.picture,
            partial(draw, by_batch=by_batch),
            title=f"{short_name(args.model)}: what a batch waits for",
            caption=caption(record),
        )
    return 0


def draw(figure: Figure, by_batch: dict[int, dict[str, float]]) -> None:
    """Two panels over the batch size: the first token, and each one after it."""
    panels = (
        ("ttft_s", "time to first token (ms)", PREFILL),
        ("per_token_s", "time per token after it (ms)", DECODE),
    )
    for axes, (name, label, colour) in zip(figure.subplots(1, 2), panels):
        sizes = list(by_batch)
        values = [by_batch[size][name] * 1e3 for size in sizes]
        axes.plot(sizes, values, "o-", color=colour, markersize=5)
        for size, value in zip(sizes, values):
            axes.annotate(f"{value:.3g}", (size, value), (0, 6), textcoords="offset points",
                          ha="center", fontsize=8)  # fmt: skip
        axes.set(xlabel="requests at once", title=label, xscale="log", ylim=(0, 1.15 * max(values)))
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.minorticks_off()
        axes.grid(axis="y", color="#eeeeee")


def compare(args: argparse.Namespace, sizes: list[int], make_requests: Any) -> int:
    """Side by side with another engine, each in a process of its own."""
    both = Both(args)
    make_requests = partial(make_requests, vocab_size=both.vocab_size)
    runs, tables = {}, []
    with both.load(make_requests(1, repeat=0), batch_size=max(sizes)) as comparison:
        for size in sizes:
            runs[size] = comparison.ask(
                lambda repeat, size=size: make_requests(size, repeat=repeat),
                0,
                latency_figures,
                args.repeats,
                lambda name, repeat, scores, size=size: say(
                    f"batch {size}, {about_repeats(repeat, args.repeats)}, {name}: "
                    f"{scores['per_token_s'] * 1e3:.2f} ms a token"
                ),
            )
            tables.append(f"batch of {size}\n{comparison_table(runs[size])}")
        record = both.record({name: getattr(args, name) for name in LOAD}, comparison)
    title = f"{short_name(args.model)}: {args.input_len} tokens in, {args.output_len} out"
    finish(args, record | {"runs": runs}, "\n\n".join([f"{title}\n{both.note()}", *tables]))
    return 0
