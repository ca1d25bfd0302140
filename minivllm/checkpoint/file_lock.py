"""A lock between processes, made of a file."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO


@contextmanager
def file_lock(path: str) -> Iterator[None]:
    """Hold the lock at `path`; waits for whoever has it.

    The operating system keeps the lock and takes it back when its process ends, however it ends,
    so the file itself may stay and says nothing.
    """
    with open(path, "a+b") as file:
        _acquire(file)
        yield


def _acquire(file: BinaryIO) -> None:
    if sys.platform != "win32":
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX)
        return
    import msvcrt

    file.seek(0)
    while True:
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:  # somebody else has it, and Windows cannot wait without a limit
            time.sleep(0.2)
        else:
            return
