"""What the benchmarks of a model have in common: their options, the model loaded, what is
written."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..bench.plot import check_picture
from ..bench.record import about_run, check_record_path, write_record
from ..config import BACKENDS, PREFIX_CACHES, EngineConfig
from .options import add_model_options
from .running import Progress, load

if TYPE_CHECKING:
    from ..entrypoints.llm import LLM

ENGINE_NUMBERS = {
    "max_num_seqs": "requests in a step",
    "max_num_batched_tokens": "tokens in a step",
    "num_blocks": "KV blocks (default: what the memory holds)",
}


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser)
    group = parser.add_argument_group("engine")
    default = EngineConfig("")
    group.add_argument(
        "--backend", default=default.backend, help=f"{', '.join(BACKENDS)} (default: auto)"
    )
    group.add_argument(
        "--prefix-cache", default=default.prefix_cache,
        help=f"{', '.join(PREFIX_CACHES)} (default: %(default)s)",
    )  # fmt: skip
    for name, what in ENGINE_NUMBERS.items():
        number = getattr(default, name)
        shown = f" (default: {number})" if number else ""
        group.add_argument(
            "--" + name.replace("_", "-"), type=int, default=number, metavar="N", help=what + shown
        )


def add_run_options(parser: argparse.ArgumentParser, repeats: int) -> None:
    group = parser.add_argument_group("how, and what comes out")
    group.add_argument(
        "--repeats", type=int, default=repeats, metavar="N",
        help="runs, of which the median counts; one more warms up (default: %(default)s)",
    )  # fmt: skip
    group.add_argument("--threads", type=int, metavar="N", help="of torch (default: its own)")
    group.add_argument("--seed", type=int, default=0, help="of lengths and prompts (default: 0)")
    add_json_option(group)
    group.add_argument("--picture", metavar="FILE", help="draw it, as .svg or .png")


def add_json_option(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--json", nargs="?", const="-", metavar="FILE",
        help="write every figure, with machine, versions and command, to FILE; without a name, to "
        "stdout instead of the table",
    )  # fmt: skip


def check_options(args: argparse.Namespace) -> None:
    """Everything that can be told before a model is loaded. Raises ValueError."""
    for name in ("repeats", "threads"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise ValueError(f"--{name} must be at least 1, got {value}")
    check_record_path(args.json)
    if args.picture:
        check_picture(args.picture)


def settings(args: argparse.Namespace) -> dict[str, Any]:
    """The engine's, as the options give them."""
    names = ("device", "dtype", "backend", "max_model_len", "prefix_cache", *ENGINE_NUMBERS)
    return {name: getattr(args, name) for name in names if hasattr(args, name)}


def load_model(args: argparse.Namespace, **more: Any) -> LLM:
    """The model behind the engine that the options describe; `more` wins over them. torch has
    its threads before it computes anything."""
    import torch

    if args.threads:
        torch.set_num_threads(args.threads)
    own = {name: value for name, value in settings(args).items() if value is not None}
    return load(args, **own | more)


def head(args: argparse.Namespace, llm: LLM, asked: Mapping[str, Any]) -> dict[str, Any]:
    """The head of a record of runs in this process."""
    import torch

    worker = llm.engine.core.executor.worker
    dtype = str(worker.dtype).removeprefix("torch.")
    return about_run(
        f"bench {args.what}",
        {"model": args.model, **asked, **settings(args)},
        device=worker.device.type,
        dtype=dtype,
        threads=torch.get_num_threads(),
    )


def finish(args: argparse.Namespace, record: Mapping[str, Any], table: str) -> None:
    """Print and write what was found."""
    if args.json:
        write_record(args.json, record)
    if args.json != "-":
        print(table)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def telling(progress: Progress, what: str) -> Callable[[int, int], None]:
    """What a run calls after each step: new tokens so far, and in the end."""

    def tell(num_done: int, num: int) -> None:
        progress.show(f"{what}: {num_done:,} of {num:,} tokens")

    return tell


def about_repeats(repeat: int, repeats: int) -> str:
    return "warming up" if repeat < 0 else f"repeat {repeat + 1} of {repeats}"


def caption(record: Mapping[str, Any]) -> str:
    """What a picture says of its run: command, machine, versions, date."""
    machine, versions = record["machine"], record["versions"]
    where = machine["card"] if machine["device"] == "cuda" else machine["processor"]
    threads = "1 thread" if machine["threads"] == 1 else f"{machine['threads']} threads"
    return (
        f"Measured by minivllm {record['what']}: {where}, {threads}, {machine['dtype']}, "
        f"torch {versions['torch']}, {record['date'][:10]}."
    )


def short_name(model: str) -> str:
    """As a title has room for."""
    return Path(model).name


def numbers(text: str, name: str) -> Sequence[int]:
    """1,8,32. Raises ValueError that names the option."""
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise ValueError(f"{name} must be numbers above 0 with commas between, got {text!r}")
    return found
