"""What commands have in common: a model loaded, an answer that Ctrl-C stops, and a sign of life."""

from __future__ import annotations

import argparse
import logging
import math
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..config import EngineConfig
from ..outputs import RequestOutput
from ..sampling_params import SamplingParams

if TYPE_CHECKING:
    from ..entrypoints.llm import LLM


class Progress:
    """A line on stderr, for what takes more than a second or two: on a terminal it grows in
    place, else there is a new one every ten seconds."""

    def __init__(self) -> None:
        self.is_terminal = sys.stderr.isatty()
        self.pause_s = 0.2 if self.is_terminal else 10.0
        self.next_at = time.monotonic() + (1.0 if self.is_terminal else 2.0)
        self.num_shown = 0

    def show(self, text: str) -> None:
        if time.monotonic() < self.next_at:
            return
        self.next_at = time.monotonic() + self.pause_s
        self.num_shown += 1
        end = "\r" if self.is_terminal else "\n"
        print(f"{text:<79}" if self.is_terminal else text, end=end, file=sys.stderr, flush=True)

    def end(self) -> None:
        """Take the line away."""
        if self.num_shown and self.is_terminal:
            print(f"{'':79}", end="\r", file=sys.stderr, flush=True)
        self.num_shown = 0


def load(args: argparse.Namespace, **more: Any) -> LLM:
    """The model that the options name, `more` winning over them. One line on stderr says what it
    is; --verbose says more."""
    from ..checkpoint.registry import resolve
    from ..entrypoints.llm import LLM

    options = {name: getattr(args, name) for name in ("device", "dtype", "max_model_len")} | more
    EngineConfig(args.model, **options)  # a wrong setting is told before anything is fetched
    path = resolve(args.model)
    if args.verbose:  # warnings go to stderr by themselves
        log = logging.getLogger(__package__.partition(".")[0])
        log.addHandler(logging.StreamHandler())
        log.setLevel(logging.INFO)
    start = time.perf_counter()
    loading = Progress()
    loading.next_at = 0.0 if loading.is_terminal else math.inf
    loading.show(f"loading {args.model} ...")
    try:
        llm = LLM(path, **options)
    finally:
        loading.end()
    worker = llm.engine.core.executor.worker
    where = f"{worker.device} in {str(worker.dtype).removeprefix('torch.')}"
    seconds = time.perf_counter() - start
    print(f"{args.model} on {where}, ready in {seconds:.1f} s", file=sys.stderr, flush=True)
    return llm


def answer(llm: LLM, prompt: Sequence[int], params: SamplingParams) -> Iterator[RequestOutput]:
    """Reports of one request as it grows. Raises ValueError at once, not with the first report,
    if it cannot be served. Ctrl-C ends it between two steps of the engine, never inside one, so
    that the engine can go on: KeyboardInterrupt is raised then."""
    llm.engine.add_request("answer", prompt, params)
    return reports(llm)


def reports(llm: LLM) -> Iterator[RequestOutput]:
    progress = Progress()
    try:
        with interruptible() as interrupted:
            while llm.engine.has_unfinished_requests:
                outputs = llm.engine.step()
                show_reading(llm, progress)
                yield from outputs
                if interrupted():
                    raise KeyboardInterrupt
    finally:
        progress.end()
        llm.engine.abort("answer")


def show_reading(llm: LLM, progress: Progress) -> None:
    """How much of a long prompt is computed; no text comes before all of it is."""
    for request in llm.engine.core.scheduler.running[:1]:
        num, num_done = request.num_prompt_tokens, request.num_computed_tokens
        if num_done < num:
            progress.show(f"reading {num:,} tokens: {num_done:,} done")
        else:
            progress.end()


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Gives a function that says whether Ctrl-C was pressed. Pressed again, it ends the program
    wherever that stands."""
    pressed = []

    def press(signum: int, frame: object) -> None:
        pressed.append(signum)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, press)
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, before)
