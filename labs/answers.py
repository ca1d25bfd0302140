"""Somebody's files of answers, which may be missing, broken or hostile, as texts."""

from __future__ import annotations

import os
import stat
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

from .manifest import LabInfo

MAX_BYTES = 1 << 18  # of one file; the engine's have at most 300 lines
MAX_ZIP_BYTES = 32 << 20
MAX_MEMBERS = 20_000

# A file's text, or the ValueError that says why there is none.
Source = str | ValueError


def read_text(path: Path, shown: str) -> str:
    """Text of a file. Raises ValueError for whatever is no readable text file."""
    if not os.path.lexists(path):
        raise ValueError(f"{shown} is missing")
    if path.is_symlink() or not path.is_file():
        raise ValueError(f"{shown} is not a plain file")
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"{shown} is larger than {MAX_BYTES:,} bytes")
    return decoded(path.read_bytes(), shown)


def decoded(data: bytes, shown: str) -> str:
    """Raises ValueError, naming the line, for what is not UTF-8."""
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ValueError(f"{shown}, line {line}: not UTF-8 text; save it as UTF-8") from error


def read_submission(path: Path, labs: Iterable[LabInfo]) -> dict[str, dict[str, Source]]:
    """What a submission, a folder or a zip file, holds of each lab: by slug, by engine file.

    Only the files that a lab asks for are looked at, wherever the labs' folders stand in it.
    Nothing is unpacked, so nothing in a zip file can be written anywhere.
    """
    read = reader_of(path)
    return {info.slug: {file: attempt(read, f"{info.folder.name}/{file}") for file in info.files}
            for info in labs}  # fmt: skip


def attempt(read: Callable[[str], str], name: str) -> Source:
    try:
        return read(name)
    except ValueError as error:
        return error
    except Exception as error:  # a zip file may be damaged in as many ways as it has bytes
        return ValueError(f"{name} cannot be read: {type(error).__name__}: {error}")


def reader_of(path: Path) -> Callable[[str], str]:
    """A function from "05_paged_blocks/kvcache/block_pool.py" to its text."""
    if path.is_dir():
        return lambda name: read_from_folder(path, name)
    try:
        if not path.is_file():
            raise ValueError("not a plain file")
        if path.stat().st_size > MAX_ZIP_BYTES:
            raise ValueError(f"larger than {MAX_ZIP_BYTES:,} bytes")
        archive = zipfile.ZipFile(path)
        members = archive.infolist()
        if len(members) > MAX_MEMBERS:
            raise ValueError(f"more than {MAX_MEMBERS:,} files in it")
    except Exception as error:  # as in attempt
        problem = ValueError(f"{path.name} is neither a folder nor a usable zip file: {error}")

        def refuse(name: str) -> str:
            raise problem

        return refuse
    return lambda name: read_from_zip(archive, members, name)


def read_from_folder(root: Path, name: str) -> str:
    """Looks at the top, in mine/ and labs/mine/, and the same one folder further down."""
    inner = sorted(p for p in root.iterdir() if p.is_dir() and not p.is_symlink())[:50]
    for start in (root, *inner):
        for place in ("", "mine", "labs/mine"):
            path = start / place / name
            if os.path.lexists(path):
                if not path.resolve().is_relative_to(root.resolve()):
                    raise ValueError(f"{name} is a link to somewhere else")
                return read_text(path, name)
    raise ValueError(f"{name} is missing")


def read_from_zip(archive: zipfile.ZipFile, members: list[zipfile.ZipInfo], name: str) -> str:
    """The member whose path ends with the name; of several, the one that stands highest."""
    found = [m for m in members if ("/" + m.filename.replace("\\", "/")).endswith("/" + name)]
    if not found:
        raise ValueError(f"{name} is missing")
    member = min(found, key=lambda m: m.filename.count("/"))
    kind = stat.S_IFMT(member.external_attr >> 16)
    if member.is_dir() or kind not in (0, stat.S_IFREG):
        raise ValueError(f"{name} is not a plain file")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        # The others are unpacked a whole piece at a time, however large it gets.
        raise ValueError(f"{name}: zip it in the usual way (deflate)")
    with archive.open(member) as file:
        data = file.read(MAX_BYTES + 1)  # whatever size the header claims
    if len(data) > MAX_BYTES:
        raise ValueError(f"{name} is larger than {MAX_BYTES:,} bytes")
    return decoded(data, name)


def submissions(folder: Path) -> list[Path]:
    """One submission for each folder and zip file in it. Raises ValueError if there is none."""
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder of submissions")
    seen = [p for p in sorted(folder.iterdir()) if not p.name.startswith(".")]
    found = [p for p in seen if p.is_dir() or p.suffix.lower() == ".zip"]
    if not found:
        raise ValueError(f"no folder and no zip file in {folder}")
    return found
