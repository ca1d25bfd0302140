"""This engine and another, each in a process and an environment of its own, taking turns."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from .offline import Figures, middle, records_of
from .peers import Peer, PeerSpec, Rules, Scores, Tell, ratio, take_turns
from .report import milliseconds
from .simulate import Record
from .workload import WorkloadRequest

OURS = "minivllm"
# What a user calls a peer -> its engine in peer_engines.py, the package that it must find.
PEERS = {
    "llamacpp": ("llamacpp", "llama_cpp"),
    "vllm": ("vllm", "vllm"),
    "transformers": ("hf", "transformers"),
}

# A question: the requests of a repeat, how many ids their prompts share, and what to make of it.
MakeRequests = Callable[[int], Sequence[WorkloadRequest]]
Judge = Callable[[Sequence[Record]], Figures]


def check_peer(name: str, python: str, model: str) -> None:
    """Raises ValueError, with what to change, where the peer cannot be had: its interpreter is
    not one or has not its package, or there is no .gguf file for llama.cpp."""
    _, package = PEERS[name]
    code = f"import importlib.util as u, sys; sys.exit(u.find_spec({package!r}) is None)"
    try:
        found = subprocess.run([python, "-c", code], capture_output=True, check=False).returncode
    except OSError as error:
        raise ValueError(f"--peer-python {python} does not run: {error.strerror}") from error
    if found != 0:
        raise ValueError(
            f"{python} has no package {package}: install it there, or name the Python of an "
            f"environment that has it by --peer-python"
        )
    if name == "llamacpp" and Path(model).suffix != ".gguf":
        raise ValueError(f"llamacpp reads .gguf files, not {model}: name one by --peer-model")


def peer_spec(
    name: str, python: str, model: str, *, dtype: str, batch_size: int, max_model_len: int
) -> PeerSpec:
    """The peer with room for batch_size requests of max_model_len tokens. llama.cpp computes in
    the file's own types, the others in dtype."""
    engine, _ = PEERS[name]
    options = {
        "llamacpp": {"slots": batch_size, "max_model_len": max_model_len},
        "vllm": {"dtype": dtype, "max_num_seqs": batch_size, "max_model_len": max_model_len},
        "hf": {"dtype": dtype, "batch": batch_size},
    }[engine]
    return PeerSpec(name, python, engine, model, options)


def readable(spec: PeerSpec, folder: str) -> PeerSpec:
    """The spec with a checkpoint that its engine reads: a .gguf file is written into the folder
    anew for those that do not."""
    if spec.engine not in ("hf", "vllm") or Path(spec.model).suffix != ".gguf":
        return spec
    import torch

    from .peer_checkpoint import write_checkpoint

    model = Path(folder, "checkpoint")
    model.mkdir()
    write_checkpoint(spec.model, model, getattr(torch, str(spec.options["dtype"])))
    return replace(spec, model=str(model))


class Comparison:
    """Both engines, loaded. A context: on leaving it their processes end."""

    def __init__(self, specs: Sequence[PeerSpec], threads: int, rules: Rules) -> None:
        self.specs, self.threads, self.rules = specs, threads, rules
        self._stack = ExitStack()
        self.peers: list[Peer] = []

    def __enter__(self) -> Comparison:
        with self._stack as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            for spec in self.specs:  # one after the other: neither disturbs the other's loading
                peer = Peer(readable(spec, folder), self.threads, folder)
                stack.callback(peer.close)
                self.peers.append(peer)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def ask(
        self, make_requests: MakeRequests, shared: int, judge: Judge, repeats: int, tell: Tell
    ) -> dict[str, list[Scores]]:
        """One question, repeats times, A B A B. Returns every repeat's scores by engine."""

        def ask(peer: Peer, repeat: int) -> Scores:
            requests = make_requests(repeat)
            asked = [(list(r.prompt_token_ids), r.max_tokens) for r in requests]
            return judge(records_of(requests, peer.ask(asked, shared)["times"]))

        return take_turns(self.peers, ask, repeats, self.rules, tell)

    def about(self) -> dict[str, dict[str, object]]:
        """Of each engine: how it was started, how long it loaded, how much memory it took."""
        return {
            peer.name: {
                "engine": spec.engine,
                "options": dict(spec.options),
                "load_s": peer.load["load_s"],
                "peak_rss_mib": peer.rss_mib,
            }
            for spec, peer in zip(self.specs, self.peers)
        }


def comparison_table(runs: Mapping[str, list[Scores]]) -> str:
    """Each figure's median of both, and the median of the repeats' ratios, 80 columns at most."""
    (ours, own), (theirs, other) = runs.items()
    lines = [f"{'':22}{ours:>14}{theirs:>14}{'ratio':>9}"]
    middles = middle(own), middle(other)
    for name in own[0]:
        if name == "foreign":
            continue
        cells = "".join(f"{figure(name, m[name]):>14}" for m in middles)
        is_zero = any(run[name] == 0 for run in (*own, *other))
        lines.append(f"{name:22}{cells}{'-' if is_zero else f'{ratio(own, other, name):.2f}':>9}")
    return "\n".join(lines)


def figure(name: str, value: float) -> str:
    if name.endswith("_per_s"):
        return f"{value:,.1f}"
    return milliseconds(value) if name.endswith("_s") else f"{value:,.2f}"
