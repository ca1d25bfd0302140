"""Continue a text, printing it as it comes.

examples:
  minivllm generate "Once upon a time"
  minivllm generate --temperature 0.8 --top-p 0.95 --seed 7 "The best thing about rain is"
  minivllm generate --stop "." --max-tokens 32 "The capital of France is"
  cat letter.txt | minivllm generate -          the prompt is read from stdin

Only the continuation goes to stdout. Ctrl-C stops it; what was written stays (exit status 130).
"""

from __future__ import annotations

import argparse
import sys

from .options import add_model_options, add_sampling_options, fitted, sampling_params
from .running import answer, load


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", help="the text to continue; - reads it from stdin")
    add_model_options(parser)
    add_sampling_options(parser)


def run(args: argparse.Namespace) -> int:
    params = sampling_params(args)  # a wrong setting is told before a model is loaded
    prompt = read_prompt(args.prompt)
    llm = load(args)
    token_ids = llm.tokenizer.encode(prompt)
    error = None
    try:
        for output in answer(llm, token_ids, fitted(params, llm.max_model_len - len(token_ids))):
            sys.stdout.write(output.outputs[0].new_text)
            sys.stdout.flush()
            error = output.outputs[0].error
    finally:
        print(flush=True)
    if error:
        print(f"minivllm: {error}", file=sys.stderr)
    return 1 if error else 0


def read_prompt(text: str) -> str:
    if text != "-":
        return text
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"the prompt on stdin is not UTF-8: byte {error.start}") from None
