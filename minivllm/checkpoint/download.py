"""A wheel from the Python package index, fetched by pip and never installed."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable


def download_wheel(requirement: str, folder: str, report: Callable[[int], None]) -> str:
    """Download the one wheel of `requirement` ("name==version") into `folder`; its path.

    Calls report(bytes so far) a few times a second. Everything pip writes lies in `folder`, and
    pip is stopped when this is interrupted. Raises ValueError saying what to do when there is no
    pip, or with pip's own words when it fails.
    """
    options = ("--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input", "--retries=2")
    command = [*_pip(), "download", *options, "--disable-pip-version-check", "--progress-bar=off"]
    log_file = os.path.join(folder, "pip.log")
    with open(log_file, "wb") as log:
        process = subprocess.Popen(
            [*command, "--dest", folder, requirement],
            env=os.environ | dict.fromkeys(("TMPDIR", "TEMP", "TMP"), folder),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        _wait(process, lambda: report(_num_bytes(folder)))
    wheels = [name for name in os.listdir(folder) if name.endswith(".whl")]
    if process.returncode or len(wheels) != 1:
        with open(log_file, encoding="utf-8", errors="replace") as log:
            last_words = "\n".join(log.read().splitlines()[-5:])
        raise ValueError(
            f"pip could not download {requirement}; is there a network, or a package index that "
            f"pip is set up for? pip says:\n{last_words}"
        )
    path = os.path.join(folder, wheels[0])
    report(os.path.getsize(path))
    return path


def _pip() -> list[str]:
    """A command that is pip: this interpreter's, any other, or the one that uv can run."""
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    for name in ("pip3", "pip"):
        if found := shutil.which(name):
            return [found]
    if uv := shutil.which("uv"):
        return [uv, "tool", "run", "pip"]
    raise ValueError(
        f"pip is needed to download a model, and there is none: run "
        f"`{sys.executable} -m ensurepip`, or give the path of a model that is on this machine"
    )


def _wait(process: subprocess.Popen, report: Callable[[], None]) -> None:
    """Wait until the process ends, reporting on the way; end it if that is interrupted."""
    try:
        while True:
            try:
                process.wait(timeout=0.25)
                return
            except subprocess.TimeoutExpired:
                report()
    except BaseException:
        process.kill()
        process.wait()
        raise


def _num_bytes(folder: str) -> int:
    """Of all files in the folder; one that goes away meanwhile counts as nothing."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.path.getsize(os.path.join(place, name))
            except FileNotFoundError:
                continue
    return total
