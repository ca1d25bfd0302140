"""The safetensors reader against the `safetensors` package."""

from __future__ import annotations

import json
import random
import struct

import numpy as np
import pytest
import safetensors
import torch
from safetensors.torch import save_file

from minivllm.checkpoint.safetensors import SafetensorsFile

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


def saved(path, metadata=None):
    torch.manual_seed(0)
    tensors = {
        f"tensor.{name}": (10 * torch.randn(3, 5)).to(dtype) for name, dtype in DTYPES.items()
    }
    tensors |= {"scalar": torch.tensor(2.5), "empty": torch.empty(0, 4), "é": torch.ones(1, 2, 3)}
    save_file(tensors, path, metadata)
    return tensors


def raw_file(path, header, data=b"", length=None):
    header = header if isinstance(header, bytes) else json.dumps(header).encode()
    length = len(header) if length is None else length
    path.write_bytes(struct.pack("<Q", length) + header + data)
    return path


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def test_every_tensor_is_what_the_safetensors_package_wrote(tmp_path):
    tensors = saved(tmp_path / "a.safetensors", {"format": "pt"})
    with SafetensorsFile(tmp_path / "a.safetensors") as file:
        assert file.metadata == {"format": "pt"}
        assert file.tensors.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert file.tensors[name].shape == tuple(tensor.shape)
            data = bytes(file.data(name))
            assert len(data) == file.tensors[name].num_bytes
            assert data == tensor.flatten().view(torch.uint8).numpy().tobytes()
        assert {file.tensors[f"tensor.{kind}"].type for kind in DTYPES} == set(DTYPES)


def test_a_file_that_is_cut_or_grown_is_found_out_when_it_is_opened(tmp_path):
    path = tmp_path / "a.safetensors"
    saved(path)
    content = path.read_bytes()
    for length in range(len(content)):
        with open(path, "r+b") as file:
            file.truncate(length)
            file.write(content[:length])
        with pytest.raises(ValueError, match=r"a\.safetensors: "):
            SafetensorsFile(path)
    path.write_bytes(content + b"\0")
    with pytest.raises(ValueError, match=r"a\.safetensors: the tensors end at byte"):
        SafetensorsFile(path)


def test_flipped_bytes_give_what_the_safetensors_package_accepts_or_a_valueerror(tmp_path):
    """Whatever this reader takes has the same names and bytes for the other one, if it takes it;
    whatever the other one takes, this one takes."""
    path = tmp_path / "a.safetensors"
    saved(path)
    content, rng, accepted = path.read_bytes(), random.Random(3), 0
    (length,) = struct.unpack("<Q", content[:8])
    for _ in range(800):
        damaged = bytearray(content)
        damaged[rng.randrange(8 + length)] = rng.choice((0, 34, 44, 48, 57, 93, rng.randrange(256)))
        path.write_bytes(damaged)
        try:
            judge = safetensors.deserialize(bytes(damaged))
        except Exception:
            judge = None
        try:
            with SafetensorsFile(path) as file:
                ours = {name: bytes(file.data(name)) for name in file.tensors}
        except ValueError as error:
            assert str(error).startswith(f"{path}: ")
            assert judge is None
        else:
            accepted += 1
            if judge is not None:
                assert ours == {name: bytes(tensor["data"]) for name, tensor in judge}
    assert accepted > 50


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        (b"{", "no valid JSON"),
        (b"[" * 100_000, "no valid JSON"),
        (b'{"a": 1, "a": 1}', "'a' is there twice"),
        (b"[]", "no JSON object"),
        (b"\xff\xfe{}", "no valid JSON"),
        ({"__metadata__": [1]}, "__metadata__"),
        ({"a": 5}, "'a' has a bad entry"),
        ({"a": {"dtype": "F32"}}, "'a' has a bad entry"),
        ({"a": entry(dtype="F33")}, "'a' has a bad entry.*F33"),
        ({"a": entry(dtype=["F32"])}, "'a' has a bad entry"),
        ({"a": entry(offsets=(0, 8, 16))}, "'a' has a bad entry"),
        ({"a": entry(shape=(3,))}, r"'a' of F32 \[3\] does not take the bytes 0 to 8"),
        ({"a": entry(shape=(-2,), offsets=(8, 0))}, "'a'.*does not take"),
        ({"a": entry(shape=(2.0,))}, "'a'.*does not take"),
        ({"a": entry(shape=(10**400, 1.5))}, "'a'.*does not take"),
        ({"a": entry(offsets=("0", "8"))}, "'a'.*does not take"),
        ({"a": entry(), "b": entry()}, "'b' starts at byte"),
        ({"a": entry(), "b": entry(offsets=(12, 20))}, "'b' starts at byte"),
        ({"a": entry(offsets=(4, 12))}, "'a' starts at byte"),
        ({"a": entry(offsets=(0, 2**60), shape=(2**58,))}, "the tensors end at byte"),
    ],
)
def test_a_header_that_lies_is_refused_by_what_is_wrong(tmp_path, header, problem):
    path = raw_file(tmp_path / "a.safetensors", header, bytes(16))
    with pytest.raises(ValueError, match=rf"a\.safetensors: .*{problem}"):
        SafetensorsFile(path)


@pytest.mark.parametrize("length", [19, 2**32, 2**63, 2**64 - 1])
def test_a_header_longer_than_the_file_is_refused(tmp_path, length):
    with pytest.raises(ValueError, match=rf"a header of {length} bytes, but the file has 26"):
        SafetensorsFile(raw_file(tmp_path / "a.safetensors", b"{}", bytes(16), length))


def test_data_that_starts_at_an_odd_byte_is_read(tmp_path):
    header = json.dumps({"a": entry()}).encode()
    header += b" " * (1 - len(header) % 2)
    data = np.array([1.5, -2.0], dtype="<f4").tobytes()
    with SafetensorsFile(raw_file(tmp_path / "a.safetensors", header, data)) as file:
        assert file.tensors["a"].offset % 2 == 1
        assert file.data("a").cast("f").tolist() == [1.5, -2.0]
