"""Say what this machine has, what is missing, and the command that mends it.

One line a check: `ok`, `missing` (nothing runs without it) or `optional` (most things do).
Ends with 1 when something is missing. It works before anything is installed, too:
  python3 -m minivllm doctor           in the project's folder
"""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """It has no options."""


def run(args: argparse.Namespace) -> int:
    from .checks import PROJECT, all_checks

    first_missing = None
    for check in all_checks():
        mend = f" -> {check.mend}" if check.mend else ""
        print(f"{check.status:8}  {check.name:13}  {check.found}{mend}", flush=True)
        if check.status == "missing":
            first_missing = first_missing or check
    if first_missing:
        print(f"\nmend {first_missing.name} first: {first_missing.mend}")
        return 1
    from .speed import expected_speed

    print(f"\nyour machine: {expected_speed()}")
    if (PROJECT / "lessons").is_dir():
        print(f"in {PROJECT}: python -m lessons opens the course, python -m labs lists the labs")
    else:
        print("lessons and labs: in a checkout only")
    return 0
