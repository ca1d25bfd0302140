"""A file of named tensors, mapped into memory: where each lies, never what its bytes mean."""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a file. `shape` is row-major: the outermost dimension comes first."""

    name: str
    shape: tuple[int, ...]
    type: str  # "F32", "BF16", "Q4_1", ...
    offset: int  # of its first byte in the file
    num_bytes: int | None  # None: of a type whose size is not known here


class MappedFile:
    """Maps `path` for reading; a subclass fills `tensors` from the header.

    Opening takes milliseconds at any size: pages are read from the disk when they are touched.
    Raises ValueError for an empty file and OSError for one that cannot be opened.
    """

    tensors: dict[str, TensorInfo]

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        with open(self.path, "rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise ValueError(f"{self.path}: the file is empty")
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def data(self, name: str) -> memoryview:
        """The bytes of one tensor, without a copy. Raises ValueError naming the tensor when the
        file has none of this name, or when its type is not known."""
        info = self.tensors.get(name)
        if info is None:
            raise ValueError(f"{self.path}: there is no tensor {name!r}")
        if info.num_bytes is None:
            raise ValueError(f"{self.path}: tensor {name!r} is of unknown {info.type}")
        return memoryview(self._map)[info.offset : info.offset + info.num_bytes]

    def close(self) -> None:
        """Give up the mapping. It lasts until the last memoryview from `data` is gone."""
        self._map = None

    def __enter__(self) -> MappedFile:
        return self

    def __exit__(self, *_) -> None:
        self.close()
