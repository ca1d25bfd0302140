"""Starts and ends the judged processes. On Linux a zygote forks each in milliseconds; elsewhere
each is a Python of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from typing import IO

from .compose import Composed
from .manifest import ROOT

# -I and -S: no environment variable, no site-packages and no current folder on the path.
PYTHON = (sys.executable, "-I", "-S", "-c")
START = "import sys; sys.path.insert(0, {root!r}); from labs import child; sys.path.pop(0); child."
MAX_SHOWN = 4_000  # bytes of what was printed that are kept
CAN_FORK = sys.platform == "linux"
CAN_PASS_FILES = sys.platform != "win32"


class Child:
    """One judged process, its channel, its own folder and what it printed."""

    def __init__(self, children: Children, composed: Composed) -> None:
        self.children = children
        self.home = os.path.realpath(tempfile.mkdtemp(prefix="lab-"))
        self.output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (end closes it)
        self.socket, theirs = socket.socketpair()
        job = {"package": composed.package, "root": os.path.realpath(composed.root),
               "home": self.home}  # fmt: skip
        with theirs:
            self.pid, self.process = children.start(job, theirs, self.output.fileno())
        self.status: int | None = None  # not ended yet

    def printed(self) -> str:
        """The end of what the process wrote to its standard output and error."""
        size = os.fstat(self.output.fileno()).st_size
        start = max(0, size - MAX_SHOWN)
        data = os.pread(self.output.fileno(), MAX_SHOWN, start)
        return ("..." if start else "") + data.decode(errors="replace")

    def end(self) -> int:
        """Kill it if it still runs; returns its exit status, or minus the signal that ended it."""
        if self.status is not None:
            return self.status
        self.socket.close()
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.status = self.children.wait(self.pid, self.process)
        self.output.close()
        shutil.rmtree(self.home, ignore_errors=True)
        return self.status


class Children:
    """Where judged processes come from. Close it when the last is done."""

    def __init__(self) -> None:
        self.control: socket.socket | None = None
        self.process: subprocess.Popen | None = None

    def __enter__(self) -> Children:
        return self

    def __exit__(self, *_: object) -> None:
        if self.control is not None:
            self.control.close()
            self.process.wait()

    def start(
        self, job: dict, channel: socket.socket, output: int
    ) -> tuple[int, subprocess.Popen | None]:
        if not CAN_PASS_FILES:
            raise ValueError(
                "labs run your code in a process of its own, which needs Linux or macOS: use WSL. "
                "Or, without limits, python -m labs check --direct"
            )
        if not CAN_FORK:
            return self._start_alone(job, channel, output)
        reply = self._request(job, [channel.fileno(), output])
        return reply["pid"], None

    def wait(self, pid: int, process: subprocess.Popen | None) -> int:
        if process is not None:
            return process.wait()
        return self._request({"wait": pid})["status"]

    def _request(self, message: dict, fds: tuple | list = ()) -> dict:
        if self.control is None:
            self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                self.process = run_python(f"zygote({theirs.fileno()})", theirs.fileno())
        socket.send_fds(self.control, [json.dumps(message).encode()], list(fds))
        reply = self.control.recv(1 << 16)
        if not reply:
            raise RuntimeError("the process that starts the others has ended")
        return json.loads(reply)

    def _start_alone(
        self, job: dict, channel: socket.socket, output: int
    ) -> tuple[int, subprocess.Popen]:
        code = f"single({channel.fileno()}, {output}, {json.dumps(job)!r})"
        process = run_python(code, channel.fileno(), output)
        return process.pid, process


def run_python(code: str, *fds: int) -> subprocess.Popen:
    """A Python that knows the standard library and the child's code, and gets these files only."""
    return subprocess.Popen(
        [*PYTHON, START.format(root=str(ROOT)) + code],
        pass_fds=fds,
        stdin=subprocess.DEVNULL,
        env={"PATH": "/usr/bin:/bin"},
        start_new_session=True,
        cwd="/",
    )
