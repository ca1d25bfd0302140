"""Talk to a model. It hears the whole conversation each time.

in the conversation:
  /stats      how fast the last answer came
  /reset      forget what was said
  /help       these lines
  /quit       leave (as Ctrl-D does)
  //word      says "/word" to the model
  Ctrl-C      stops the answer, not the program

examples:
  minivllm chat
  minivllm chat --temperature 0.7 --top-p 0.9
  minivllm chat --system "You answer in one short sentence."
  echo "What is the capital of France?" | minivllm chat       answers each line of stdin, then ends
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from ..outputs import RequestOutput
from ..sampling_params import SamplingParams
from ..tokenizer.chat_template import render_chat
from .options import add_model_options, add_sampling_options, fitted, sampling_params
from .running import answer, load

if TYPE_CHECKING:
    from ..entrypoints.llm import LLM

HELP = __doc__.partition("\n\n")[2].partition("\n\nexamples")[0]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--system", metavar="TEXT", help="how the model shall behave")
    add_model_options(parser)
    add_sampling_options(parser)


def run(args: argparse.Namespace) -> int:
    params = sampling_params(args)  # a wrong setting is told before a model is loaded
    chat = Chat(load(args), params, args.system)
    at_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if at_terminal:
        print(HELP)
    for line in typed_lines(at_terminal):
        is_command = line.startswith("/") and not line.startswith("//")
        if line.lower() == "/quit":
            break
        try:
            if is_command:
                print(chat.command(line), flush=True)
            else:
                chat.answer(line[1:] if line.startswith("//") else line)
        except ValueError as error:
            if not (is_command or at_terminal):
                raise
            print(f"minivllm: {error}", file=sys.stderr)
    return 0


def typed_lines(at_terminal: bool) -> Iterator[str]:
    """The lines of stdin that say something, until it ends."""
    if at_terminal:
        with suppress(ImportError):  # not on every platform: arrow keys then do nothing
            importlib.import_module("readline")
    while True:
        try:
            line = input("\n> " if at_terminal else "").strip()
        except EOFError:
            if at_terminal:
                print()
            return
        except KeyboardInterrupt:
            if not at_terminal:
                raise
            print("\n(/quit or Ctrl-D leaves)")
            continue
        if line:
            yield line


class Chat:
    """One conversation: its messages, the last answer's times, and how it is kept short enough."""

    def __init__(self, llm: LLM, params: SamplingParams, system: str | None = None) -> None:
        self.llm = llm
        self.params = params
        self.start = [{"role": "system", "content": system}] if system else []
        self.messages = list(self.start)
        self.last: RequestOutput | None = None

    def command(self, line: str) -> str:
        """What a line that starts with / gives to print. Raises ValueError for an unknown one."""
        name = line.split()[0].lower()
        if name == "/reset":
            self.messages, self.last = list(self.start), None
            return "(the conversation is forgotten)"
        if name == "/stats":
            return stats(self.last) if self.last else "(no answer yet)"
        if name == "/help":
            return HELP
        raise ValueError(f"no command {line.split()[0]!r}: /stats, /reset, /help or /quit")

    def answer(self, question: str) -> None:
        """Print the model's answer as it comes, and remember what was said. Raises ValueError,
        and forgets the question, when that cannot be answered."""
        before = list(self.messages)
        self.messages.append({"role": "user", "content": question})
        try:
            text = self.write_answer()
        except ValueError:
            self.messages = before
            raise
        self.messages.append({"role": "assistant", "content": text})

    def write_answer(self) -> str:
        prompt = self.shortened()
        params = fitted(self.params, self.llm.max_model_len - len(prompt))
        outputs = answer(self.llm, prompt, params)
        text = ""
        try:
            for output in outputs:
                self.last, text = output, output.outputs[0].text
                sys.stdout.write(output.outputs[0].new_text)
                sys.stdout.flush()
                if output.outputs[0].error:
                    raise ValueError(output.outputs[0].error)
        except KeyboardInterrupt:
            sys.stdout.write(" (stopped)")
        finally:
            print(flush=True)
        return text

    def shortened(self) -> list[int]:
        """The conversation as token ids. While an answer no longer fits behind it, the oldest
        question and its answer go, and that is said."""
        room = self.params.max_tokens or self.llm.max_model_len // 4
        first = len(self.start)
        gone = 0
        while True:
            prompt = render_chat(self.llm.tokenizer, self.messages)
            if len(prompt) + room <= self.llm.max_model_len or len(self.messages) <= first + 1:
                break
            del self.messages[first : first + 2]
            gone += 1
        if gone:
            print(f"(the oldest {gone} of the exchanges no longer fit: forgotten)", file=sys.stderr)
        return prompt


def stats(output: RequestOutput) -> str:
    """How long the first token took, and how fast the others came."""
    metrics, num_new = output.metrics, len(output.outputs[0].token_ids)
    text = f"{len(output.prompt_token_ids)} tokens in, {num_new} out"
    if metrics.ttft_s is None:
        return text
    text += f"; first token after {metrics.ttft_s:.2f} s (TTFT)"
    seconds = metrics.last_token_time - metrics.first_token_time
    return f"{text}, then {(num_new - 1) / seconds:.1f} tokens/s" if seconds > 0 else text
