"""The options that several commands share, and what they become."""

from __future__ import annotations

import argparse
from dataclasses import replace
from types import ModuleType

from ..config import DEVICES, DTYPES
from ..sampling_params import SamplingParams

DEFAULT_MODEL = "smollm2-135m"
DEFAULT_MAX_TOKENS = 512


def add_command(
    commands: argparse._SubParsersAction, name: str, module: ModuleType
) -> argparse.ArgumentParser:
    """A command's parser: the module's docstring is its help, and the module adds its options.
    The parsed arguments hold the parser too, which says what is wrong with them."""
    parser = commands.add_parser(
        name,
        help=module.__doc__.partition("\n")[0],
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_arguments(parser)
    parser.set_defaults(parser=parser)
    return parser


def add_model_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("model")
    group.add_argument(
        "-m",
        "--model",
        default=DEFAULT_MODEL,
        help="a name, a .gguf file, a Hugging Face checkpoint folder or a name of the Hugging Face "
        "Hub (default: %(default)s)",
    )
    group.add_argument("--device", default="auto", help=f"{', '.join(DEVICES)} (default: auto)")
    group.add_argument("--dtype", default="auto", help=f"{', '.join(DTYPES)} (default: auto)")
    group.add_argument(
        "--max-model-len", type=int, help="most tokens of prompt and answer (default: the model's)"
    )
    group.add_argument("--verbose", action="store_true", help="say more while it loads")


def add_sampling_options(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    group = parser.add_argument_group("sampling")
    group.add_argument(
        "--max-tokens",
        type=int,
        help=f"most new tokens (default: {DEFAULT_MAX_TOKENS}, or what still fits)",
    )
    group.add_argument(
        "--temperature",
        type=float,
        default=0.0,
        help="0 takes the likeliest token each time, so the answer is always the same; "
        "1 draws as the model would (default: 0)",
    )
    group.add_argument("--top-k", type=int, default=0, help="draw among the K likeliest; 0: all")
    group.add_argument(
        "--top-p", type=float, default=1.0, help="draw among the likeliest that hold P together"
    )
    group.add_argument(
        "--min-p", type=float, default=0.0, help="leave out what is under P times the likeliest"
    )
    group.add_argument("--seed", type=int, help="the same seed draws the same tokens")
    group.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="end here; may be given again"
    )
    return group


def sampling_params(args: argparse.Namespace) -> SamplingParams:
    """Raises ValueError for a value that makes no sense."""
    if args.max_tokens is not None and args.max_tokens < 1:
        raise ValueError(f"--max-tokens {args.max_tokens} asks for nothing: at least 1")
    return SamplingParams(
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        min_p=args.min_p,
        seed=args.seed,
        max_tokens=args.max_tokens,
        stop=tuple(args.stop),
    )


def fitted(params: SamplingParams, room: int) -> SamplingParams:
    """The params with the default length, or what `room` tokens leave of it, where none was
    asked for. A length that was asked for is left alone, and refused if it does not fit."""
    if params.max_tokens is not None:
        return params
    return replace(params, max_tokens=max(1, min(DEFAULT_MAX_TOKENS, room)))
