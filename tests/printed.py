"""Commands that are printed for a reader, and the shell to type them into."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

from checkouts import environment

PROGRAM = re.compile(r"(?:\.venv/bin/)?(?:python|minivllm|make|marimo|git|source|echo)(?: |$)")


class Code(HTMLParser):
    """The texts of a page's outermost <code> and <pre>."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.depth, self.texts = 0, []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list) -> None:
        if tag in ("code", "pre"):
            self.depth += 1
            if self.depth == 1:
                self.texts.append("")

    def handle_endtag(self, tag: str) -> None:
        self.depth -= tag in ("code", "pre")

    def handle_data(self, data: str) -> None:
        if self.depth:
            self.texts[-1] += data


def commands_in(text: str) -> list[str]:
    """The lines that are commands of a shell, without the remarks behind them."""
    whole = text.replace("\\\n", " ")
    lines = [re.sub(r"\s+#.*", "", line).strip() for line in whole.splitlines()]
    return [line for line in lines if PROGRAM.match(line)]


def in_code(page: str) -> list[str]:
    return Code(page).texts


def shell(command: str, checkout: Path, typed: str = "", **env: str) -> subprocess.CompletedProcess:
    """Run in the checkout, where `python` and `minivllm` are those that run this test. typed: what
    comes on standard input."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.run(
        ["bash", "-c", command], cwd=checkout, env=environment(checkout) | {"PATH": path} | env,
        input=typed, capture_output=True, text=True,
    )  # fmt: skip
