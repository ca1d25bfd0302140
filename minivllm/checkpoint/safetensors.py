"""The safetensors container: a JSON header, then raw bytes. Never a tensor library.

    length of the header, 8 bytes little-endian | header | data

Format: https://github.com/huggingface/safetensors.
"""

from __future__ import annotations

import json
import os
from math import prod
from typing import Any

from .mapped_file import MappedFile, TensorInfo

_ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "I16": 2, "F16": 2,
    "BF16": 2, "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip


class SafetensorsFile(MappedFile):
    """An open safetensors file: `metadata` (dict of strings), `tensors`, `data(name)`.

    Raises ValueError naming the file, and the tensor where there is one: a header that is no
    JSON, a shape that disagrees with its size, and data that does not fill the file exactly.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        header, data_start = self._read_header()
        self.metadata = header.pop("__metadata__", {})
        self.tensors = {n: self._read_entry(n, entry, data_start) for n, entry in header.items()}
        self._check_extents(data_start)

    def _read_header(self) -> tuple[dict[str, Any], int]:
        length = int.from_bytes(self._map[:8], "little")
        end = 8 + length
        if end > len(self._map):
            raise ValueError(
                f"{self.path}: a header of {length} bytes, but the file has {len(self._map)}"
            )
        try:
            header = json.loads(self._map[8:end], object_pairs_hook=_without_duplicates)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{self.path}: the header is no valid JSON: {error}") from error
        if not isinstance(header, dict):
            raise ValueError(f"{self.path}: the header is no JSON object")
        if not isinstance(header.get("__metadata__", {}), dict):
            raise ValueError(f"{self.path}: __metadata__ is no JSON object")
        return header, end

    def _read_entry(self, name: str, entry: Any, data_start: int) -> TensorInfo:
        try:
            kind, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
            item_bytes = _ITEM_BYTES[kind]
        except (TypeError, ValueError, KeyError) as error:
            raise ValueError(f"{self.path}: tensor {name!r} has a bad entry {entry!r}") from error
        valid = all(type(n) is int and n >= 0 for n in (*shape, begin, end))
        if not valid or end - begin != prod(shape) * item_bytes:
            raise ValueError(
                f"{self.path}: tensor {name!r} of {kind} {list(shape)} does not take the bytes "
                f"{begin} to {end}"
            )
        return TensorInfo(name, shape, kind, data_start + begin, end - begin)

    def _check_extents(self, data_start: int) -> None:
        """The tensors lie end to end, from the header to the end of the file."""
        end = data_start
        for info in sorted(self.tensors.values(), key=lambda info: (info.offset, info.num_bytes)):
            if info.offset != end:
                raise ValueError(
                    f"{self.path}: tensor {info.name!r} starts at byte {info.offset}, but the data "
                    f"before it ends at {end}"
                )
            end += info.num_bytes
        if end != len(self._map):
            raise ValueError(
                f"{self.path}: the tensors end at byte {end}, the file at {len(self._map)}"
            )


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = dict(pairs)
    if len(names) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"{next(k for k in keys if keys.count(k) > 1)!r} is there twice")
    return names
