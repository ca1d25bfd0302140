"""`--against`: the options that name another engine, and both of them loaded side by side."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..bench.against import OURS, PEERS, Comparison, check_peer, peer_spec
from ..bench.peers import PeerSpec, Rules
from ..bench.record import about_run
from .bench_options import say, settings

if TYPE_CHECKING:
    from ..bench.workload import WorkloadRequest


def add_peer_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "beside another engine",
        "Both are loaded in processes of their own and take turns, A B A B; ratios are medians of "
        "the repeats' own.",
    )
    group.add_argument("--against", choices=PEERS, metavar="PEER", help=", ".join(PEERS))
    group.add_argument(
        "--peer-python", default=sys.executable, metavar="PATH",
        help="the Python of the environment that has it (default: this one)",
    )  # fmt: skip
    group.add_argument(
        "--peer-model", metavar="PATH",
        help="its checkpoint (default: ours; a .gguf file is dequantized for those that do not "
        "read it)",
    )  # fmt: skip


class Both:
    """What the options say of the two engines. Raises ValueError, before anything is loaded,
    where they ask for what cannot be had."""

    def __init__(self, args: argparse.Namespace) -> None:
        from ..checkpoint.model_config import read_model_config
        from ..checkpoint.registry import resolve
        from ..worker.worker import choose_device, choose_dtype

        if args.picture:
            raise ValueError("--picture draws this engine alone: leave --against away")
        self.args = args
        self.path = resolve(args.model)
        self.peer_path = args.peer_model or self.path
        check_peer(args.against, args.peer_python, self.peer_path)
        config = read_model_config(self.path)
        self.vocab_size = config.vocab_size
        self.device = choose_device(args.device)
        self.dtype = str(choose_dtype(args.dtype, self.device, config.dtype)).partition(".")[2]

    @property
    def threads(self) -> int:
        import torch

        return self.args.threads or torch.get_num_threads()

    def load(self, requests: Sequence[WorkloadRequest], batch_size: int) -> Comparison:
        """Both, with room for batch_size requests as long as the longest of these."""
        args = self.args
        longest = max(len(r.prompt_token_ids) + r.max_tokens for r in requests)
        own = {n: v for n, v in settings(args).items() if v is not None} | {"dtype": self.dtype}
        own.setdefault("max_model_len", longest)
        own["max_num_seqs"] = max(own["max_num_seqs"], batch_size)
        specs = [
            PeerSpec(OURS, sys.executable, "minivllm", self.path, own),
            peer_spec(
                args.against, args.peer_python, self.peer_path,
                dtype=self.dtype, batch_size=batch_size, max_model_len=longest,
            ),
        ]  # fmt: skip
        say(f"loading {OURS} and {args.against} ...")
        return Comparison(specs, self.threads, Rules())

    def record(self, asked: Mapping[str, Any], comparison: Comparison) -> dict[str, Any]:
        args = self.args
        asked = {"model": args.model, "against": args.against, **asked, **settings(args)}
        about = about_run(
            f"bench {args.what}", asked,
            device=self.device.type, dtype=self.dtype, threads=self.threads,
        )  # fmt: skip
        return about | {"engines": comparison.about()}

    def note(self) -> str:
        """What a table is of, a line of at most 80 columns."""
        own = "the file's types" if self.args.against == "llamacpp" else self.dtype
        return (
            f"{OURS} in {self.dtype}, {self.args.against} in {own}, {self.threads} threads, "
            f"medians of {self.args.repeats}"
        )
