"""Measure a part of the engine on this machine.

examples:
  minivllm bench scheduler
  minivllm bench scheduler --json > scheduler.json
  minivllm bench calibrate

"scheduler": what deciding costs, with nobody computing: a step of many running requests, and the
prefix caches with few and with many blocks. Figures are medians of one core; run nothing else
beside it. "calibrate": steps of a real model, and the four constants of this machine that predict
their time. Engines are compared side by side by `python -m minivllm.bench.peers --help`.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys

from ..bench.control_plane import cache_costs_s, step_cost_s
from ..config import PREFIX_CACHES
from .calibrating import calibrate
from .options import DEFAULT_MODEL


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=("scheduler", "calibrate"), help="what to measure")
    parser.add_argument(
        "-m", "--model", default=DEFAULT_MODEL, help="of calibrate (default: %(default)s)"
    )
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
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")


def run(args: argparse.Namespace) -> int:
    if args.what == "calibrate":
        return calibrate(args)
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
    show = print_json if args.json else print_tables
    show(args, steps, caches)
    return 0


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def print_tables(args: argparse.Namespace, steps: dict, caches: dict) -> None:
    print(f"one step of {args.requests} running requests of {args.tokens} tokens, ms")
    print(f"{'prefix cache':14}{'no trace':>10}{'trace':>10}")
    for cache in PREFIX_CACHES:
        print(f"{cache:14}{steps[cache, False] * 1e3:10.2f}{steps[cache, True] * 1e3:10.2f}")
    print("\na prompt of 4000 tokens, blocks of 16, us")
    print(f"{'prefix cache':14}{'cached blocks':>14}{'match':>10}{'one block more':>16}")
    for (cache, num_cached), cost in caches.items():
        match_us, publish_us = cost["match_s"] * 1e6, cost["publish_s"] * 1e6
        print(f"{cache:14}{num_cached:14}{match_us:10.0f}{publish_us:16.1f}")


def print_json(args: argparse.Namespace, steps: dict, caches: dict) -> None:
    machine = {"python": platform.python_version(), "machine": platform.machine()}
    step_rows = [
        {"prefix_cache": cache, "trace": with_trace, "step_s": seconds}
        for (cache, with_trace), seconds in steps.items()
    ]
    cache_rows = [
        {"prefix_cache": cache, "num_cached": num_cached, **cost}
        for (cache, num_cached), cost in caches.items()
    ]
    print(
        json.dumps(
            {
                "command": " ".join(sys.argv[1:]),
                "machine": machine,
                "requests": args.requests,
                "tokens": args.tokens,
                "steps": step_rows,
                "caches": cache_rows,
            },
            indent=1,
        )
    )
