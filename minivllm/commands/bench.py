"""Measure the engine, or a part of it, on this machine.

examples:
  minivllm bench offline                      throughput: many requests at once
  minivllm bench latency                      how long a batch of a fixed size waits
  minivllm bench ladder --picture ladder.svg  from the naive loop up, what each idea brings
  minivllm bench offline --against transformers

Each has its own --help. Run nothing else beside them.
"""

from __future__ import annotations

import argparse

from . import bench_ladder, bench_latency, bench_offline, bench_scheduler, calibrating
from .options import add_command

KINDS = {
    "offline": bench_offline,
    "latency": bench_latency,
    "ladder": bench_ladder,
    "scheduler": bench_scheduler,
    "calibrate": calibrating,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    for name, module in KINDS.items():
        add_command(kinds, name, module).set_defaults(measure=module.run)


def run(args: argparse.Namespace) -> int:
    return args.measure(args)
