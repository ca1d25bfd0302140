"""Continue a text, printing it as it comes.

examples:
  minivllm generate "Once upon a time"
  minivllm generate --temperature 0.8 --top-p 0.95 --seed 7 "The best thing about rain is"
  minivllm generate -n 3 --temperature 0.8 "My favourite colour is"
  minivllm generate --stop "." --max-tokens 32 "The capital of France is"
  cat letter.txt | minivllm generate -          the prompt is read from stdin

Only the continuation goes to stdout. Ctrl-C stops it; what was written stays (exit status 130).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace

from ..outputs import CompletionOutput, RequestOutput
from .options import add_model_options, add_sampling_options, fitted, sampling_params
from .running import answer, load


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", help="the text to continue; - reads it from stdin")
    add_model_options(parser)
    add_sampling_options(parser).add_argument(
        "-n", type=int, default=1, metavar="N",
        help="so many continuations, printed one after another when all are done; they differ "
        "where --temperature is above 0 (default: 1)",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    # A wrong setting is told before a model is loaded.
    params = replace(sampling_params(args), n=args.n)
    prompt = read_prompt(args.prompt)
    if not prompt:
        raise ValueError("the prompt is empty: give it at least a word to go on from")
    llm = load(args)
    token_ids = llm.tokenizer.encode(prompt)
    outputs = answer(llm, token_ids, fitted(params, llm.max_model_len - len(token_ids)))
    samples = write_one(outputs) if params.n == 1 else write_all(outputs)
    errors = [sample.error for sample in samples if sample.error]
    for error in errors:
        print(f"minivllm: {error}", file=sys.stderr)
    return 1 if errors else 0


def write_one(outputs: Iterator[RequestOutput]) -> tuple[CompletionOutput, ...]:
    """The text as it comes. Returns the sample as it ended."""
    try:
        for output in outputs:
            sys.stdout.write(output.outputs[0].new_text)
            sys.stdout.flush()
        return output.outputs
    finally:
        print(flush=True)


def write_all(outputs: Iterator[RequestOutput]) -> tuple[CompletionOutput, ...]:
    """Each sample when all have ended, under a line with its number. Returns them."""
    *_, last = outputs
    for sample in last.outputs:
        print(f"--- {sample.index + 1} of {len(last.outputs)}\n{sample.text}", flush=True)
    return last.outputs


def read_prompt(text: str) -> str:
    if text != "-":
        return text
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"the prompt on stdin is not UTF-8: byte {error.start}") from None
