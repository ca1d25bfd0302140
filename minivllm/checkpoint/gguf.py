"""The GGUF container: header, metadata, table of tensors, raw bytes. Never numbers from blocks.

    "GGUF" | version | tensor count | metadata count | metadata | tensor table | padding | data

Little-endian throughout. Layout: docs/gguf.md of ggml, versions 2 and 3. All that the file says
of itself is checked when it is opened, and no length is believed before the bytes are seen to
be there: a damaged file gives a ValueError that names the file, the part and the byte.
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import Any, NoReturn

from .mapped_file import MappedFile, TensorInfo

DEFAULT_ALIGNMENT = 32

# Metadata types by id: the number types as `struct` writes them, then string and array.
_NUMBERS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_UINT32, _STRING, _ARRAY = 4, 8, 9

# Tensor types by id: name, numbers in a block, bytes of a block.
_TENSOR_TYPES = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    30: ("BF16", 1, 2),
}

_START = 1 << 23  # bytes that are compared to tell a file from the one that was read last
_MAX_NESTING = 4  # arrays within arrays
_MAX_DIMENSIONS = 4


class GGUFFile(MappedFile):
    """An open GGUF file.

    `metadata` maps each key to an int, float, bool, str or list; `tensors` maps each name to its
    TensorInfo. Raises ValueError for a file that is damaged, cut short, or not GGUF 2 or 3. A
    tensor of an unknown type is an error only in `data`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        start = zlib.crc32(memoryview(self._map)[:_START])
        changed = os.stat(self.path).st_mtime_ns
        self.metadata, self.alignment, self.tensors = _read_once(
            self.path, len(self._map), changed, start
        )


@lru_cache(maxsize=1)
def _read_once(path: str, *_: int) -> tuple[dict[str, Any], int, dict[str, TensorInfo]]:
    """What stands before the data: metadata, alignment, tensors. A model is opened for its
    configuration, its tokenizer and its weights, and has a hundred thousand strings: while its
    size, time and first bytes stay what they were, it is not read again."""
    reader = _Reader(path, MappedFile(path)._map)
    num_tensors, num_keys = _read_header(reader)
    metadata, alignment = _read_metadata(reader, num_keys)
    tensors = _read_tensor_table(reader, num_tensors, alignment)
    _check_extents(reader, tensors)
    return metadata, alignment, tensors


class _Reader:
    """Takes values off the file, one after another; knows where it is, for the errors."""

    def __init__(self, path: str, data: mmap.mmap) -> None:
        self.path = path
        self.data = data
        self.position = 0
        self.section = "header"

    def fail(self, problem: str, position: int | None = None) -> NoReturn:
        where = self.position if position is None else position
        raise ValueError(f"{self.path}: {self.section}, byte {where}: {problem}")

    def need(self, num_bytes: int, what: str) -> None:
        left = len(self.data) - self.position
        if num_bytes > left:
            self.fail(f"{what} needs {num_bytes} bytes, but the file ends after {left} more")

    def number(self, code: str, what: str) -> Any:
        return self.numbers(code, 1, what)[0]

    def numbers(self, code: str, count: int, what: str) -> tuple:
        size = count * struct.calcsize("<" + code)
        self.need(size, what)
        values = struct.unpack_from(f"<{count}{code}", self.data, self.position)
        self.position += size
        return values

    def string(self, what: str) -> str:
        return self.strings(1, what)[0]

    def strings(self, count: int, what: str) -> list[str]:
        """One loop without a call per string: a vocabulary has a hundred thousand of them."""
        data, position, length_at = self.data, self.position, struct.Struct("<Q").unpack_from
        last_start = len(data) - 8
        texts = []
        for _ in range(count):
            if position > last_start:
                self.fail(f"{what}: the file ends inside a string's length", position)
            start = position + 8
            end = start + length_at(data, position)[0]
            if end > len(data):
                self.fail(f"{what}: a string of {end - start} bytes, beyond the end", position)
            try:
                texts.append(data[start:end].decode())
            except UnicodeDecodeError as error:
                self.fail(f"{what}: not UTF-8 ({error.reason})", start + error.start)
            position = end
        self.position = position
        return texts


def _read_header(reader: _Reader) -> tuple[int, int]:
    """Check magic and version; the number of tensors and of metadata keys."""
    reader.need(4, "the magic")
    magic = reader.data[:4]
    if magic != b"GGUF":
        reader.fail(f"this is not a GGUF file: it starts with {magic!r}")
    reader.position = 4
    version = reader.number("I", "the version")
    if version not in (2, 3):
        big_endian = version in (2 << 24, 3 << 24)
        kind = "big-endian GGUF" if big_endian else f"GGUF version {version}"
        reader.fail(f"{kind} is not supported (supported: little-endian versions 2 and 3)", 4)
    num_tensors, num_keys = reader.numbers("Q", 2, "the counts")
    # No key takes under 13 bytes, no tensor under 24.
    if 13 * num_keys + 24 * num_tensors > len(reader.data):
        reader.fail(f"{num_keys} metadata keys and {num_tensors} tensors do not fit in the file")
    return num_tensors, num_keys


def _read_metadata(reader: _Reader, num_keys: int) -> tuple[dict[str, Any], int]:
    """All keys with their values, and the alignment."""
    metadata: dict[str, Any] = {}
    alignment = DEFAULT_ALIGNMENT
    for index in range(num_keys):
        reader.section = f"metadata key {index + 1} of {num_keys}"
        key_at = reader.position
        key = reader.string("a key")
        reader.section = f"metadata key {key!r}"
        if key in metadata:
            reader.fail("this key is there twice", key_at)
        type_id = reader.number("I", "a value's type")
        value_at = reader.position
        metadata[key] = _read_value(reader, type_id)
        if key == "general.alignment":
            alignment = metadata[key]
            if type_id != _UINT32 or alignment == 0 or alignment & (alignment - 1):
                reader.fail(f"must be a power of two stored as uint32, got {alignment}", value_at)
    return metadata, alignment


def _read_value(reader: _Reader, type_id: int, nesting: int = 0) -> Any:
    if type_id in _NUMBERS:
        return reader.number(_NUMBERS[type_id], "a number")
    if type_id == _STRING:
        return reader.string("a string")
    if type_id != _ARRAY:
        reader.fail(f"unknown type {type_id} of a value")
    if nesting == _MAX_NESTING:
        reader.fail(f"arrays are nested more than {_MAX_NESTING} deep")
    item_type, count = reader.number("I", "an array's type"), reader.number("Q", "its length")
    if item_type in _NUMBERS:
        return list(reader.numbers(_NUMBERS[item_type], count, f"an array of {count}"))
    if item_type == _STRING:
        return reader.strings(count, f"an array of {count} strings")
    return [_read_value(reader, item_type, nesting + 1) for _ in range(count)]


def _read_tensor_table(reader: _Reader, count: int, alignment: int) -> dict[str, TensorInfo]:
    """Where each tensor lies. Offsets in the table count from the aligned end of the table."""
    tensors: dict[str, TensorInfo] = {}
    for index in range(count):
        reader.section = f"tensor {index + 1} of {count}"
        name_at = reader.position
        name = reader.string("a name")
        reader.section = f"tensor {name!r}"
        if name in tensors:
            reader.fail("this name is there twice", name_at)
        num_dimensions = reader.number("I", "the number of dimensions")
        if num_dimensions > _MAX_DIMENSIONS:
            reader.fail(f"{num_dimensions} dimensions (at most {_MAX_DIMENSIONS} are allowed)")
        shape = reader.numbers("Q", num_dimensions, "the shape")[::-1]
        type_name, num_bytes = _type_and_size(reader, reader.number("I", "the type"), shape)
        offset = reader.number("Q", "the offset")
        if offset % alignment:
            reader.fail(f"offset {offset} is no multiple of the alignment {alignment}")
        tensors[name] = TensorInfo(name, shape, type_name, offset, num_bytes)
    data_start = reader.position + -reader.position % alignment
    return {name: replace(info, offset=data_start + info.offset) for name, info in tensors.items()}


def _type_and_size(reader: _Reader, type_id: int, shape: tuple[int, ...]) -> tuple[str, int | None]:
    """The name of a type and the bytes of a tensor of this shape; None if the type is unknown."""
    if type_id not in _TENSOR_TYPES:
        return f"type {type_id}", None
    name, block_size, block_bytes = _TENSOR_TYPES[type_id]
    row_length = shape[-1] if shape else 1
    if row_length % block_size:
        reader.fail(f"rows of {row_length} numbers are no whole {name} blocks of {block_size}")
    return name, prod(shape) // block_size * block_bytes


def _check_extents(reader: _Reader, tensors: dict[str, TensorInfo]) -> None:
    """Each tensor lies inside the file, and no two share a byte."""
    previous = None
    for info in sorted(tensors.values(), key=lambda info: info.offset):
        reader.section = f"data of tensor {info.name!r}"
        num_bytes = info.num_bytes or 0
        missing = info.offset + num_bytes - len(reader.data)
        if missing > 0:
            reader.fail(f"the file ends {missing} bytes too early", info.offset)
        if previous and num_bytes and info.offset < previous.offset + previous.num_bytes:
            reader.fail(f"overlaps the data of tensor {previous.name!r}", info.offset)
        if num_bytes:
            previous = info
