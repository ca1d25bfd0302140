"""What deciding costs: steps of many running requests, and the prefix caches.

examples:
  minivllm bench scheduler
  minivllm bench scheduler --json scheduler.json

Nobody computes anything, so no model is needed. Figures are medians of one core; run nothing else
beside it.
"""

from __future__ import annotations

import argparse
import platform
import sys

from ..bench.control_plane import cache_costs_s, step_cost_s
from ..bench.record import check_record_path
from ..config import PREFIX_CACHES
from .bench_options import add_json_option, finish, say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--requests", type=int, default=256, metavar="N", help="running ones (default: 256)"
    )
    parser.add_argument(
        "--tokens", type=int, default=1000, metavar="N", help="of each request (default: 1000)"
    )
    parser.add_argument(
        "--cached", type=int, nargs="*", default=[1_000, 100_000], metavar="N",
        help="how many blocks are cached while a prompt is matched (default: 1000 100000)",
    )  # fmt: skip
    add_json_option(parser)


def run(args: argparse.Namespace) -> int:
    check_record_path(args.json)
    for name in ("requests", "tokens", *(["cached"] if args.cached else [])):
        value = getattr(args, name)
        if min(value if isinstance(value, list) else [value]) < 1:
            raise ValueError(f"--{name} must be at least 1")
    steps = {}
    for cache in PREFIX_CACHES:
        for with_trace in (False, True):
            say(f"a step, prefix cache {cache}{', with a trace' if with_trace else ''} ...")
            steps[cache, with_trace] = step_cost_s(
                cache, num_running=args.requests, num_tokens=args.tokens, with_trace=with_trace
            )
    caches = {}
    for cache in PREFIX_CACHES:
        for num_cached in args.cached if cache != "none" else ():
            say(f"{num_cached} blocks in a {cache} cache ...")
            caches[cache, num_cached] = cache_costs_s(cache, num_cached=num_cached)
    finish(args, record_of(args, steps, caches), tables(args, steps, caches))
    return 0


def tables(args: argparse.Namespace, steps: dict, caches: dict) -> str:
    lines = [
        f"one step of {args.requests} running requests of {args.tokens} tokens, ms",
        f"{'prefix cache':14}{'no trace':>10}{'trace':>10}",
    ]
    for cache in PREFIX_CACHES:
        lines.append(f"{cache:14}{steps[cache, False] * 1e3:10.2f}{steps[cache, True] * 1e3:10.2f}")
    lines += [
        "\na prompt of 4000 tokens, blocks of 16, us",
        f"{'prefix cache':14}{'cached blocks':>14}{'match':>10}{'one block more':>16}",
    ]
    for (cache, num_cached), cost in caches.items():
        match_us, publish_us = cost["match_s"] * 1e6, cost["publish_s"] * 1e6
        lines.append(f"{cache:14}{num_cached:14}{match_us:10.0f}{publish_us:16.1f}")
    return "\n".join(lines)


def record_of(args: argparse.Namespace, steps: dict, caches: dict) -> dict:
    machine = {"python": platform.python_version(), "machine": platform.machine()}
    return {
        "command": " ".join(sys.argv[1:]),
        "machine": machine,
        "requests": args.requests,
        "tokens": args.tokens,
        "steps": [
            {"prefix_cache": cache, "trace": with_trace, "step_s": seconds}
            for (cache, with_trace), seconds in steps.items()
        ],
        "caches": [
            {"prefix_cache": cache, "num_cached": num_cached, **cost}
            for (cache, num_cached), cost in caches.items()
        ],
    }
