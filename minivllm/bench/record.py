"""What a measurement must say of itself to be believed: machine, versions, command, date."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PACKAGES = ("minivllm", "torch", "numpy", "numba", "transformers", "triton")
ROOT = Path(__file__).parents[2]


def about_run(
    what: str, settings: Mapping[str, Any], *, device: str, dtype: str, threads: int
) -> dict[str, Any]:
    """The head of a record: everything but the figures. No host name, no path of the machine
    but those in the command."""
    return {
        "what": what,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": " ".join(["minivllm", *sys.argv[1:]]),
        "machine": machine() | {"threads": threads, "device": device, "dtype": dtype},
        "versions": versions(),
        "settings": dict(settings),
    }


def machine() -> dict[str, Any]:
    import torch

    found = {
        "processor": processor(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
    }
    if torch.cuda.is_available():
        found["card"] = torch.cuda.get_device_name()
    if hasattr(os, "sysconf"):
        num_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        found["memory_gib"] = round(num_bytes / 2**30, 1)
    return found


def processor() -> str:
    """Its name as it calls itself, where the system tells."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    if (ROOT / ".git").exists():
        asked = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
        try:
            said = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
        except OSError:  # no git here
            said = ""
        if said:
            found["commit"] = said.strip()
    return found


def check_record_path(path: str | None) -> None:
    """Raises ValueError where the record could not be written: told before the measurement."""
    if path and path != "-" and not Path(path).parent.is_dir():
        raise ValueError(f"{str(Path(path).parent)!r}, where the JSON shall go, is no folder")


def write_record(path: str, record: Mapping[str, Any]) -> None:
    """To a file; to stdout where the path is "-"."""
    text = json.dumps(record, indent=1)
    if path == "-":
        print(text)
    else:
        Path(path).write_text(text + "\n", encoding="utf-8")
