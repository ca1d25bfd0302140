"""Builds the site into site/public: `python site/build.py`, or `make site`.

Fetches what is missing, has the tests write their tables, runs the lessons, lets mkdocs make the
pages, and puts the lessons that run in the browser beside them. `--serve` shows it afterwards.
"""

from __future__ import annotations

import argparse
import hashlib
import http.server
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
PUBLIC = HERE / "public"
BUILT = "built.txt"
TABLE_TESTS = ("test_equality.py", "test_architectures.py", "test_sampling_params.py")

sys.path[:0] = [str(HERE), str(ROOT)]

from elsewhere import TABLES  # noqa: E402
from fetch import fetch  # noqa: E402
from lesson_pages import lessons  # noqa: E402
from live import export_live  # noqa: E402
from repository import source_url  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the site into site/public.")
    parser.add_argument("--serve", action="store_true", help="then serve it on this machine")
    parser.add_argument("--port", type=int, default=8001)
    options = parser.parse_args()
    try:
        build()
    except ValueError as error:
        sys.exit(f"site: {error}")
    if options.serve:
        serve(options.port)


def build() -> None:
    start, stamp = time.perf_counter(), sources()
    fetch()
    write_tables()
    say("making the pages (each lesson is run)")
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--config-file"]
    done = subprocess.run([*command, str(HERE / "mkdocs.yml")], env=environment)
    if done.returncode:
        raise ValueError("mkdocs stopped: see above")
    say("packing Python for the browser")
    export_live([one.notebook for one in lessons() if one.in_browser], PUBLIC / "run")
    (PUBLIC / BUILT).write_text(stamp, encoding="utf-8")
    size = sum(path.stat().st_size for path in PUBLIC.rglob("*") if path.is_file())
    num_pages = sum(1 for _ in PUBLIC.rglob("*.html"))
    took = time.perf_counter() - start
    say(f"{num_pages} pages, {size / 1e6:.0f} MB, in {took:.0f} s: site/public/index.html")


def sources() -> str:
    """A digest of all that the site is made of. A built site carries that of its making."""
    found = hashlib.sha256(source_url().encode())
    folders = [ROOT / name for name in ("minivllm", "labs", "lessons", "site", "build/tables")]
    away = {"__pycache__", "mine", "public", "build", "__marimo__"}
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not away & set(path.relative_to(folder).parts):
                found.update(path.as_posix().encode() + path.read_bytes())
    return found.hexdigest()


def is_current() -> bool:
    built = PUBLIC / BUILT
    return built.exists() and built.read_text(encoding="utf-8") == sources()


def write_tables() -> None:
    """Tests write the tables that the site shows; those that are there are kept."""
    if all((ROOT / "build" / "tables" / f"{name}.md").exists() for name in TABLES):
        return
    say("running the tests that write tables (once)")
    tests = [str(ROOT / "tests" / name) for name in TABLE_TESTS]
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", *tests], cwd=ROOT)
    if done.returncode:
        raise ValueError("the tests that write the tables failed")


def serve(port: int) -> None:
    """Any server of files will do; this one is Python's."""
    handler = partial(Quiet, directory=str(PUBLIC))
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        say(f"http://127.0.0.1:{server.server_port}/ (Ctrl-C ends it)")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            say("ended")


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Says nothing of each request, and has browsers ask again for what may have changed."""

    def log_message(self, *args: object) -> None:
        pass

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-cache")
        super().end_headers()


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
