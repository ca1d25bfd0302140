"""The options that say who asks what in a simulation, and what they become."""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Iterable, Iterator

from ..bench.arrivals import all_at_once, bursts, parse_length
from ..bench.workload import (
    WorkloadRequest,
    read_workload,
    workload_agents,
    workload_chat,
    workload_prefixes,
    workload_rag,
)

WORKLOADS = {
    "prefixes": "unrelated prompts, or behind one of --prefixes beginnings",
    "rag": "questions over shared documents",
    "scrambled": "the same documents in another order each time",
    "chat": "conversations of five turns",
    "agents": "a plan, then four calls that share its past",
}
NUM_TURNS, NUM_BRANCHES = 5, 4
LOAD = ("requests", "rate", "burst")
TEXT = ("input_len", "output_len", "prefixes", "prefix_len")  # of the workload "prefixes" only


def add_load_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "load", "\n".join(f"{name}: {text}" for name, text in WORKLOADS.items())
    )
    group.add_argument(
        "--workload", choices=WORKLOADS, default="prefixes", metavar="NAME",
        help=f"{', '.join(WORKLOADS)} (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--workload-file",
        metavar="FILE",
        help="recorded traffic instead: a JSON object a line, with arrival_time (seconds), "
        "prompt_tokens, output_tokens, and perhaps prefix, prefix_tokens, tenant, priority",
    )
    group.add_argument("--requests", type=int, default=200, metavar="N", help="(default: 200)")
    group.add_argument(
        "--rate", type=float, default=10.0,
        help="new requests, conversations or tasks a second, at random times; 0: all at once "
        "(default: %(default)s)",
    )  # fmt: skip
    group.add_argument("--burst", type=int, default=1, metavar="N", help="so many come together")
    group.add_argument(
        "--input-len", default="1000", metavar="LENGTH",
        help="prompt tokens: 1000, 500-1500 or lognormal:MEAN:SIGMA:HIGH (default: %(default)s)",
    )  # fmt: skip
    group.add_argument("--output-len", default="200", metavar="LENGTH", help="likewise")
    group.add_argument("--prefixes", type=int, default=0, metavar="N", help="shared beginnings")
    group.add_argument(
        "--prefix-len", type=int, default=500, metavar="N", help="tokens of each (default: 500)"
    )
    group.add_argument("--seed", type=int, default=0, help="the same seed asks the same")


def refuse_unused(args: argparse.Namespace, names: Iterable[str], because: str) -> None:
    """Raises ValueError naming the first of these options that was set all the same."""
    for name in names:
        if getattr(args, name) != args.parser.get_default(name):
            raise ValueError(f"--{name.replace('_', '-')} has no effect with {because}")


def make_load(args: argparse.Namespace, vocab_size: int) -> list[WorkloadRequest]:
    """The requests that the options ask for. Raises ValueError where they make no sense."""
    if args.workload_file:
        refuse_unused(args, ("workload", *LOAD, *TEXT), "--workload-file")
        return read_file(args.workload_file, args.seed)
    if args.workload != "prefixes":
        refuse_unused(args, TEXT, f"--workload {args.workload}")
    for name, low in (("requests", 1), ("burst", 1), ("prefixes", 0), ("prefix_len", 0)):
        if getattr(args, name) < low:
            option = "--" + name.replace("_", "-")
            raise ValueError(f"{option} must be at least {low}, got {getattr(args, name)}")
    arrivals, seed = make_arrivals(args), args.seed
    if args.workload == "prefixes":
        return workload_prefixes(
            args.requests,
            prompt_len=parse_length(args.input_len),
            output_len=parse_length(args.output_len),
            num_prefixes=args.prefixes,
            prefix_len=args.prefix_len if args.prefixes else 0,
            arrivals=arrivals,
            seed=seed,
        )
    if args.workload == "chat":
        num = -(-args.requests // NUM_TURNS)
        return workload_chat(num, NUM_TURNS, vocab_size=vocab_size, arrivals=arrivals, seed=seed)
    if args.workload == "agents":
        num = -(-args.requests // (1 + NUM_BRANCHES))
        return workload_agents(
            num, NUM_BRANCHES, vocab_size=vocab_size, arrivals=arrivals, seed=seed
        )
    order = "fixed" if args.workload == "rag" else "scrambled"
    return workload_rag(args.requests, order=order, arrivals=arrivals, seed=seed)


def read_file(path: str, seed: int) -> list[WorkloadRequest]:
    try:
        with open(path, encoding="utf-8") as lines:
            return read_workload(lines, seed)
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a text file in UTF-8") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def make_arrivals(args: argparse.Namespace) -> Iterator[float]:
    if not 0 <= args.rate < math.inf:
        raise ValueError(f"--rate must be 0 (all at once) or more, got {args.rate:g}")
    if args.rate == 0:
        return all_at_once()
    return bursts(args.rate, args.burst, random.Random(f"arrivals {args.seed}"))
