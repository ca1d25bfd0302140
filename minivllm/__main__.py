"""The command line. A failure is one line on stderr, and the exit status tells the truth.

0: done. 1: the work itself failed. 2: something asked for cannot be had, and the line says what to
change. 130: interrupted. MINIVLLM_DEBUG=1 shows the traceback instead of the line.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import re
import sys
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Any, NoReturn

from .commands.options import add_command

COMMANDS = ("generate", "chat", "pull", "simulate", "bench", "doctor")
PIPE_CLOSED = 141  # as a shell reports a program that the closing of its output ended


class Parser(argparse.ArgumentParser):
    """argparse, but an error is one line, and an unknown option is the first thing to be told:
    argparse would take its value for an argument, and find fault with that."""

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:
        args = sys.argv[1:] if args is None else args
        for name in self.options_in(args):
            known = self._option_string_actions
            if not any(option.startswith(name) for option in known) and name[:2] not in known:
                likely = difflib.get_close_matches(name, known, n=1)
                meant = f" (did you mean {likely[0]}?)" if likely else ""
                self.error(f"unrecognized option {name}{meant}")
        return super().parse_known_args(args, namespace)

    def options_in(self, args: Sequence[str]) -> Iterable[str]:
        """The names of the options among the words; what follows a command is not ours."""
        words = takewhile(lambda word: word != "--", args)
        if self._subparsers:
            words = takewhile(is_option, words)
        return (word.partition("=")[0] for word in words if is_option(word))

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"minivllm: {message}; see `{self.prog} --help`\n")


def is_option(word: str) -> bool:
    """-m and --model, but neither -1 nor a lone dash nor a text that begins with one."""
    return re.fullmatch(r"--?[^\W\d][^\s=]*(=.*)?", word, re.DOTALL) is not None


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="minivllm",
        description="One readable LLM serving engine. Each command has its own --help.",
    )
    parser.add_argument("--version", action="store_true", help="print the version, and that is all")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name in COMMANDS:
        module = importlib.import_module(f".commands.{name}", __package__)
        add_command(commands, name, module).set_defaults(run=module.run)
    return parser


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The words as a command and its options. Raises SystemExit, with the line said, where they
    are none."""
    parser = make_parser()
    args, left_over = parser.parse_known_args(argv)
    if args.version:
        args.run = print_version
    elif args.command is None:
        parser.print_help(sys.stderr)
        parser.exit(2)
    elif left_over and "prompt" in args:
        prompt = " ".join([args.prompt, *left_over])
        args.parser.error(f'quote the prompt: {args.parser.prog} "{prompt}"')
    elif left_over:
        args.parser.error(f"unexpected: {' '.join(left_over)}")
    return args


def print_version(args: argparse.Namespace) -> int:
    from importlib.metadata import PackageNotFoundError, version

    try:
        print(f"minivllm {version('minivllm')}")
    except PackageNotFoundError:
        print("minivllm, run from its folder and not installed")
    return 0


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns its exit status."""
    args = argparse.Namespace()
    try:
        args = parse(argv)
        status = args.run(args)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        print("minivllm: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Python flushes stdout once more on its way out; that must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except (ValueError, OSError, ImportError) as error:
        if os.environ.get("MINIVLLM_DEBUG") == "1":
            raise
        print(f"minivllm: {in_options(one_line(error), vars(args))}", file=sys.stderr)
        return 2


def one_line(error: Exception) -> str:
    """The error in one line, with what helps where the message alone does not."""
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, ImportError):
        return f"{text}; `minivllm doctor` says how to mend that"
    return text


def in_options(text: str, names: Iterable[str]) -> str:
    """An error of the engine, with its settings named as this command's options name them:
    "max_tokens" becomes "--max-tokens" and "dtype='int3'" "--dtype int3"."""
    for name in names:
        option = "--" + name.replace("_", "-")
        text = re.sub(rf"(?<![\w/.-]){name}=(['\"]?)(\S*?)\1(?=\s|$)", rf"{option} \2", text)
        if "_" in name:
            text = re.sub(rf"(?<![\w/.-]){name}\b", option, text)
    return text


if __name__ == "__main__":
    sys.exit(main())
