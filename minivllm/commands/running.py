"""What `generate` and `chat` have in common: loading a model, and an answer that Ctrl-C stops."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..outputs import RequestOutput
from ..sampling_params import SamplingParams

if TYPE_CHECKING:
    from ..entrypoints.llm import LLM


def load(args: argparse.Namespace) -> LLM:
    """The model that the options name. What is going on, and what was chosen, goes to stderr."""
    from ..entrypoints.llm import LLM

    log = logging.getLogger(__package__.partition(".")[0])
    log.addHandler(logging.StreamHandler())
    log.setLevel(logging.INFO)
    start = time.perf_counter()
    print(f"loading {args.model} ...", file=sys.stderr, flush=True)
    llm = LLM(args.model, device=args.device, dtype=args.dtype, max_model_len=args.max_model_len)
    print(f"ready in {time.perf_counter() - start:.1f} s", file=sys.stderr, flush=True)
    return llm


def answer(llm: LLM, prompt: Sequence[int], params: SamplingParams) -> Iterator[RequestOutput]:
    """Reports of one request as it grows. Ctrl-C ends it between two steps of the engine, never
    inside one, so that the engine can go on: KeyboardInterrupt is raised then."""
    llm.engine.add_request("answer", prompt, params)
    try:
        with interruptible() as interrupted:
            while llm.engine.has_unfinished_requests:
                yield from llm.engine.step()
                if interrupted():
                    raise KeyboardInterrupt
    finally:
        llm.engine.abort("answer")


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
