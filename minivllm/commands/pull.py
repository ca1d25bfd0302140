"""Fetch a model into the cache folder, so that later runs need no network.

examples:
  minivllm pull                                 smollm2-135m
  minivllm pull smollm2-135m
  MINIVLLM_CACHE=/data minivllm pull            into another folder

The file's SHA-256 is checked. Prints the path; a model that is there already is left alone.
"""

from __future__ import annotations

import argparse

from ..checkpoint.registry import pull
from .options import DEFAULT_MODEL


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", default=DEFAULT_MODEL, help="(default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    print(pull(args.model))
    return 0
