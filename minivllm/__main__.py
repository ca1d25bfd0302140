"""The command line. A failure is one line on stderr, and the exit status tells the truth.

0: done. 1: the work itself failed. 2: something asked for cannot be had, and the line says what to
change. 130: interrupted. MINIVLLM_DEBUG=1 shows the traceback instead of the line.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from typing import NoReturn

COMMANDS = ("generate", "chat", "pull", "simulate", "bench", "doctor")
PIPE_CLOSED = 141  # as a shell reports a program that the closing of its output ended


class Parser(argparse.ArgumentParser):
    """argparse, but an error is one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"minivllm: {message} (see {self.prog} --help)\n")


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="minivllm",
        description="One readable LLM serving engine. Each command has its own --help.",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in COMMANDS:
        module = importlib.import_module(f".commands.{name}", __package__)
        command = commands.add_parser(
            name,
            help=module.__doc__.partition("\n")[0],
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns its exit status."""
    try:
        args = make_parser().parse_args(argv)
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
        print(f"minivllm: {one_line(error)}", file=sys.stderr)
        return 2


def one_line(error: Exception) -> str:
    """The error in one line, with what helps where the message alone does not."""
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, ImportError):
        return f"{text}; `minivllm doctor` says how to mend that"
    return text


if __name__ == "__main__":
    sys.exit(main())
