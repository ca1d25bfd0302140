"""The lessons, open for editing: marimo's server as a child of ours, gone when we are.

It listens on this machine only and asks for a key, since whoever reaches it runs code as you. The
key goes to it in a file that only you can read: a command line can be read by everybody.
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlencode

import psutil

from ..bookmark import HOME_ADDRESS

HOST = "127.0.0.1"
LESSONS = Path(__file__).parents[1]
START_S = 90.0  # a slow machine's first start


class Notebooks:
    """One marimo server over a folder of notebooks."""

    def __init__(self, folder: Path = LESSONS, port: int = 0, home: str = "") -> None:
        """port: the one to take if it is free; else, and for 0, any free one. home: an address
        for the lessons to link back to."""
        self.folder, self.wanted_port, self.home = folder, port, home
        self.key = secrets.token_urlsafe(24)
        self.port = 0
        self.process: subprocess.Popen | None = None
        self._files = tempfile.TemporaryDirectory(prefix="minivllm-lessons-")

    def start(self) -> None:
        """Returns when it answers. Raises ValueError, with what marimo said, if it does not."""
        scratch = Path(self._files.name)  # a folder that only its owner may enter
        key_file, log_file = scratch / "key", scratch / "log"
        key_file.write_text(self.key)
        self.port = free_port(self.port or self.wanted_port)
        command = [sys.executable, "-m", "marimo", "--quiet", "edit", str(self.folder.resolve())]
        command += ["--headless", "--host", HOST, "--port", str(self.port), "--no-sandbox"]
        command += ["--token-password-file", str(key_file), "--skip-update-check"]
        # It watches this process and ends itself when we were killed before we could end it. A
        # session of its own: Ctrl-C in the terminal is ours to hear, and we stop it in order.
        told = {"MARIMO_ANCESTOR_PID": str(os.getpid()), HOME_ADDRESS: self.home}
        with log_file.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | told,
                start_new_session=True,
            )
        give_up = time.monotonic() + START_S
        while not self.answers():
            if self.process.poll() is not None or time.monotonic() > give_up:
                self.stop()
                said = log_file.read_text(errors="replace").strip()[-2000:]
                raise ValueError(
                    f"marimo, which shows the lessons, did not start. It said:\n{said}"
                )
            time.sleep(0.1)
        key_file.unlink()

    def answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{HOST}:{self.port}/health", timeout=5) as reply:
                return reply.status == 200
        except (urllib.error.URLError, OSError):
            return False

    def ensure(self) -> None:
        """Start it again if it ended."""
        if self.process is None or self.process.poll() is not None:
            self.start()

    def address(self, file: str, host: str = HOST) -> str:
        """Where a browser opens one notebook. It holds the key."""
        query = urlencode({"file": file, "access_token": self.key})
        return f"http://{host}:{self.port}/?{query}"

    def stop(self) -> None:
        """End the server, its notebooks, and what those started."""
        if self.process is None or self.process.poll() is not None:
            return
        family = psutil.Process(self.process.pid).children(recursive=True)
        self.process.terminate()
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        _, left = psutil.wait_procs(family, timeout=1)
        for process in left:
            process.kill()
        psutil.wait_procs(left, timeout=5)


def free_port(wanted: int = 0) -> int:
    """`wanted` if nobody listens there, else another that is free."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            if os.name == "posix":  # as servers do: one that has just ended is no hindrance
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return probe.getsockname()[1]
    raise OSError("no free port on this machine")
