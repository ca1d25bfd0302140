"""What the judged process may do: compute. Closed before any of the learner's code runs.

Two fences: resource limits of the system (memory, size of files, processor time), and the audit
hook of `fence`.
"""

from __future__ import annotations

import importlib
import os
import sys
import sysconfig

from . import fence

MEMORY_BYTES = 1 << 30
FILE_BYTES = 1 << 20
CPU_SECONDS = 60

# What the control plane and sensible answers use: loaded once, before the fork.
MODULES = (  # noqa: SIM905
    "abc array base64 bisect collections contextlib copy dataclasses datetime decimal enum "
    "fractions functools gc hashlib heapq importlib itertools json logging math numbers operator "
    "os pathlib queue random re statistics string struct textwrap time traceback types typing "
    "weakref zlib"
).split()


def preload() -> None:
    """Import what every child needs, and nothing of the engine."""
    for name in MODULES:
        importlib.import_module(name)
    fence.preload()


def close(job: dict) -> None:
    """From here on: read the standard library and the composed engine, write into the own folder,
    and nothing else."""
    set_limits()
    library = tuple(
        os.path.realpath(sysconfig.get_path(name)) + "/" for name in ("stdlib", "platstdlib")
    )
    home, root = job["home"] + "/", job["root"] + "/"
    fence.close((*library, home, root), library, home)


def set_limits() -> None:
    """What the operating system enforces; a system without these limits has the judge's clock."""
    try:
        import resource
    except ImportError:
        return
    for name, value in (
        ("RLIMIT_AS", MEMORY_BYTES),
        ("RLIMIT_FSIZE", FILE_BYTES),
        ("RLIMIT_CPU", CPU_SECONDS),
        ("RLIMIT_NOFILE", 64),
        ("RLIMIT_CORE", 0),
        ("RLIMIT_NPROC", 0),
    ):
        if hasattr(resource, name) and (name != "RLIMIT_AS" or sys.platform == "linux"):
            _, most = resource.getrlimit(getattr(resource, name))
            limit = value if most == resource.RLIM_INFINITY else min(value, most)
            resource.setrlimit(getattr(resource, name), (limit, limit))
