"""What the command line looks like: plain lines, in colour where there is a terminal and rich.

The text is the same with and without; what a colour means stands in words beside it.
"""

from __future__ import annotations

import sys

# What a line is, and how rich shows it.
STYLES = {
    "title": "bold", "part": "bold", "passed": "green", "failed": "bold red", "next": "bold cyan",
    "command": "cyan", "quiet": "dim", "": "",
}  # fmt: skip


def say(text: str = "", kind: str = "") -> None:
    """Print lines of one kind of STYLES."""
    try:
        from rich.console import Console
        from rich.text import Text
    except ImportError:
        print(text, flush=True)
        return
    console = Console(highlight=False, soft_wrap=True, emoji=False, markup=False)
    console.print(Text(text, style=STYLES[kind]))
    sys.stdout.flush()
