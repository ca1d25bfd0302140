"""The GGUF reader against the `gguf` package's writer, reader and dequantizer."""

from __future__ import annotations

import os
import random
import struct
import tracemalloc

import gguf
import numpy as np
import pytest

from minivllm.checkpoint.gguf import GGUFFile
from minivllm.quantization.gguf_blocks import dequantize

UINT32, INT32, STRING, ARRAY = 4, 5, 8, 9
TYPES = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
METADATA = {  # value, by the writer's name of its type
    "uint8": 250,
    "int8": -120,
    "uint16": 65_000,
    "int16": -32_000,
    "uint32": 4_000_000_000,
    "int32": -2_000_000_000,
    "float32": 0.15625,
    "bool": True,
    "string": "naïve 🦙\n",
    "uint64": 2**64 - 1,
    "int64": -(2**63),
    "float64": 0.1,
}
ARRAYS = {
    "words": ["", "a", "Ġthe", "é" * 300, "🦙"],
    "ints": [3, -1, 2**31 - 1],
    "floats": [0.5, -2.0],
    "flags": [True, False, True],
    "nested": [[1, 2, 3], [4], [5, 6]],
    "nested_words": [["a", "bc"], ["d"]],
}


def written(path, tensors, alignment=None, version=3):
    """A file by the `gguf` package: METADATA, ARRAYS and the tensors (name -> (array, type))."""
    writer = gguf.GGUFWriter(path, "llama")
    if alignment:
        writer.add_custom_alignment(alignment)
    for kind, value in METADATA.items():
        getattr(writer, f"add_{kind}")(f"test.{kind}", value)
    for name, value in ARRAYS.items():
        writer.add_array(f"test.{name}", value)
    for name, (array, kind) in tensors.items():
        kind = gguf.GGMLQuantizationType[kind]
        writer.add_tensor(name, gguf.quants.quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    content = bytearray(path.read_bytes())
    content[4:8] = struct.pack("<I", version)
    path.write_bytes(content)
    return path


def random_tensors(seed=0):
    """One of each type, sizes odd where the type allows it, a vector and a 3-D one among them."""
    rng = np.random.default_rng(seed)
    shapes = {"F32": (7,), "F16": (3, 5, 7), "BF16": (5, 9)}
    return {
        f"tensor.{kind}": (rng.normal(size=shapes.get(kind, (3, 96))).astype(np.float32), kind)
        for kind in TYPES
    }


def raw_string(text: str | bytes) -> bytes:
    text = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(text)) + text


def raw_key(name: str, kind: int, value: bytes) -> bytes:
    return raw_string(name) + struct.pack("<I", kind) + value


def raw_tensor(name: str, shape=(8,), kind=0, offset=0) -> bytes:
    """A row of the tensor table; `shape` as GGUF writes it, innermost first. kind 0: F32."""
    shape = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return raw_string(name) + shape + struct.pack("<IQ", kind, offset)


def raw_file(path, keys=(), tensors=(), data=b"", counts=None, magic=b"GGUF", version=3):
    """A file put together byte by byte, wrong where the test wants it; data at a border of 32."""
    num_tensors, num_keys = counts or (len(tensors), len(keys))
    content = magic + struct.pack("<IQQ", version, num_tensors, num_keys)
    content += b"".join(keys) + b"".join(tensors)
    path.write_bytes(content + bytes(-len(content) % 32) + data)
    return path


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [None, 16, 64])
def test_metadata_and_tensors_are_what_the_gguf_package_wrote(tmp_path, alignment, version):
    tensors = random_tensors()
    path = written(tmp_path / "a.gguf", tensors, alignment, version)
    judge = gguf.GGUFReader(path)
    with GGUFFile(path) as file:
        assert file.alignment == (alignment or 32)
        for name, value in METADATA.items():
            assert file.metadata[f"test.{name}"] == value
            assert type(file.metadata[f"test.{name}"]) is type(value)
        for name, value in ARRAYS.items():
            assert file.metadata[f"test.{name}"] == value
        assert list(file.tensors) == [t.name for t in judge.tensors] == list(tensors)
        for theirs in judge.tensors:
            ours = file.tensors[theirs.name]
            assert ours.shape == tuple(reversed(theirs.shape.tolist()))
            assert ours.shape == tensors[theirs.name][0].shape
            assert (ours.type, ours.offset) == (theirs.tensor_type.name, theirs.data_offset)
            assert ours.num_bytes == theirs.n_bytes
            assert bytes(file.data(theirs.name)) == theirs.data.tobytes()


@pytest.mark.parametrize("kind", TYPES)
def test_each_type_is_dequantized_bit_for_bit_as_the_gguf_package_does(tmp_path, kind):
    rng = np.random.default_rng(TYPES.index(kind))
    values = rng.normal(size=(11, 96)).astype(np.float32) * 10.0 ** rng.integers(-6, 4, (11, 1))
    path = written(tmp_path / "a.gguf", {"x": (values.astype(np.float32), kind)})
    tensor = gguf.GGUFReader(path).tensors[0]
    with GGUFFile(path) as file:
        ours = dequantize(file.data("x"), kind, file.tensors["x"].shape).numpy()
    assert ours.dtype == np.float32
    assert np.array_equal(ours, gguf.dequantize(tensor.data, tensor.tensor_type))
    assert np.abs(ours - values).max() <= 0.3 * np.abs(values).max(), "judged at all"


@pytest.mark.parametrize("kind", [k for k in TYPES if k.startswith("Q")])
def test_blocks_of_random_bytes_are_dequantized_bit_for_bit_as_well(kind):
    """Every bit of a block counts, also those that a quantizer seldom sets."""
    size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][1]
    blocks = np.random.default_rng(5).integers(0, 256, (400, size), dtype=np.uint8)
    blocks[:, 1] &= 0x3B  # the scale is finite, and so is the minimum that some types have
    blocks[:, 3] &= 0x3B if kind in ("Q4_1", "Q5_1") else 0xFF
    ours = dequantize(memoryview(blocks.tobytes()), kind, (400, 32)).numpy()
    assert np.array_equal(ours, gguf.dequantize(blocks, gguf.GGMLQuantizationType[kind]))


def test_a_type_without_blocks_of_ours_is_refused_by_name():
    with pytest.raises(ValueError, match=r"Q4_K .*Q4_1"):
        dequantize(memoryview(bytes(144)), "Q4_K", (1, 256))


@pytest.mark.slow
def test_the_real_model_is_read_and_dequantized_as_the_gguf_package_does(smollm2):
    judge = gguf.GGUFReader(smollm2)
    with GGUFFile(smollm2) as file:
        for name, field in judge.fields.items():
            if not name.startswith("GGUF."):
                assert file.metadata[name] == field.contents()
        assert len(file.tensors) == len(judge.tensors)
        for tensor in judge.tensors[::8]:  # the embedding, and all parts of a layer by turns
            info = file.tensors[tensor.name]
            ours = dequantize(file.data(tensor.name), info.type, info.shape).numpy()
            theirs = gguf.dequantize(tensor.data, tensor.tensor_type)
            assert np.array_equal(ours, theirs.reshape(ours.shape))


@pytest.mark.parametrize(("version", "step"), [(2, 5), (3, 1)])
def test_a_file_that_is_cut_anywhere_is_found_out_when_it_is_opened(tmp_path, version, step):
    path = written(tmp_path / "a.gguf", random_tensors(), version=version)
    with GGUFFile(path) as file:
        last = max(file.tensors.values(), key=lambda t: t.offset)
    end = last.offset + last.num_bytes  # after it comes only padding
    for length in range(end - 1, -1, -step):
        os.truncate(path, length)
        with pytest.raises(ValueError) as caught:
            GGUFFile(path)
        assert str(caught.value).startswith(f"{path}: ")


def test_an_error_names_the_file_the_part_and_the_byte(tmp_path):
    path = written(tmp_path / "whole.gguf", random_tensors())
    content = path.read_bytes()
    cut = tmp_path / "cut.gguf"
    for mark, section in (
        (b"GGUF", "header, byte 4:"),
        (b"test.nested", "metadata key [0-9]+ of [0-9]+, byte"),
        (b"tensor.Q4_1", "tensor [0-9]+ of 8, byte"),
    ):
        cut.write_bytes(content[: content.index(mark) + 4])
        with pytest.raises(ValueError, match=rf"cut\.gguf: {section}"):
            GGUFFile(cut)
    cut.write_bytes(content[: content.index("é".encode() * 300) + 10])
    with pytest.raises(ValueError, match=r"metadata key 'test.words', byte \d+: .* beyond the end"):
        GGUFFile(cut)
    with GGUFFile(path) as file:
        info = file.tensors["tensor.Q5_0"]
    cut.write_bytes(content[: info.offset + 3])
    missing = info.num_bytes - 3
    with pytest.raises(
        ValueError, match=rf"'tensor.Q5_0', byte {info.offset}: the file ends {missing} bytes"
    ):
        GGUFFile(cut)


def test_flipped_bytes_give_a_valid_file_or_a_valueerror_and_nothing_else(tmp_path):
    path = written(tmp_path / "whole.gguf", random_tensors())
    content = path.read_bytes()
    with GGUFFile(path) as file:
        header_end = min(t.offset for t in file.tensors.values())
    rng, refused = random.Random(7), 0
    for _ in range(1500):
        damaged = bytearray(content)
        for _ in range(rng.choice((1, 1, 2, 8))):
            damaged[rng.randrange(header_end)] = rng.choice((0, 1, 255, rng.randrange(256)))
        with open(path, "r+b") as target:
            target.write(damaged)
        try:
            with GGUFFile(path) as file:
                for info in file.tensors.values():
                    if info.num_bytes is not None:
                        assert len(file.data(info.name)) == info.num_bytes
        except ValueError as error:
            refused += 1
            assert str(error).startswith(f"{path}: ")
    assert 150 < refused < 1350, "the damage was too small, or too great, to say anything"


HUGE = (2**31, 2**32 - 1, 2**62, 2**64 - 1)


@pytest.mark.parametrize("number", HUGE)
@pytest.mark.parametrize(
    "place", ["tensors", "keys", "key", "string", "bytes", "strings", "arrays", "name", "shape"]
)
def test_a_count_that_lies_is_refused_before_memory_is_taken(tmp_path, place, number):
    u64 = struct.pack("<Q", number)
    array = {"bytes": 0, "strings": STRING, "arrays": ARRAY}.get(place, 0)
    keys = {
        "key": [u64 + bytes(40)],
        "string": [raw_key("k", STRING, u64 + bytes(40))],
    }.get(place, [raw_key("k", ARRAY, struct.pack("<I", array) + u64 + bytes(40))])
    tensors = {"name": [u64 + bytes(40)], "shape": [raw_tensor("t", (number,))]}.get(place, [])
    counts = {"tensors": (number, 0), "keys": (0, number)}.get(place)
    if tensors or counts:
        keys = []
    path = raw_file(tmp_path / "a.gguf", keys, tensors, bytes(32), counts)
    tracemalloc.start()
    with pytest.raises(ValueError, match="do not fit" if counts else r"a\.gguf: "):
        GGUFFile(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_arrays_nested_too_deep_are_refused(tmp_path):
    one = struct.pack("<IQ", ARRAY, 1)
    path = raw_file(tmp_path / "a.gguf", [raw_key("deep", ARRAY, one * 20_000)])
    with pytest.raises(ValueError, match=r"'deep'.*nested"):
        GGUFFile(path)


@pytest.mark.parametrize(
    ("kind", "value", "shown"),
    [
        (UINT32, struct.pack("<I", 0), "got 0"),
        (UINT32, struct.pack("<I", 48), "got 48"),
        (UINT32, struct.pack("<I", 33), "got 33"),
        (INT32, struct.pack("<i", -32), "got -32"),
        (INT32, struct.pack("<i", 32), "got 32"),
        (10, struct.pack("<Q", 32), "got 32"),
        (6, struct.pack("<f", 32), "got 32.0"),
        (7, b"\1", "got True"),
        (STRING, raw_string("32"), "got 32"),
        (ARRAY, struct.pack("<IQI", UINT32, 1, 32), r"got \[32\]"),
    ],
)
def test_k7_an_alignment_that_is_no_power_of_two_in_uint32_is_refused(tmp_path, kind, value, shown):
    path = raw_file(tmp_path / "a.gguf", [raw_key("general.alignment", kind, value)])
    with pytest.raises(ValueError, match=rf"'general.alignment'.*power of two.*{shown}"):
        GGUFFile(path)


@pytest.mark.parametrize("alignment", [8, 16, 32, 64])
def test_k8_a_header_that_ends_on_the_border_is_not_padded(tmp_path, alignment):
    """Every length of header between two borders, the one without padding among them."""
    seen = set()
    for length in range(alignment):
        writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
        writer.add_custom_alignment(alignment)
        writer.add_string("filling", "x" * (1 + length))
        writer.add_tensor("t", np.arange(5, dtype=np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        with GGUFFile(tmp_path / "a.gguf") as file:
            offset = file.tensors["t"].offset
            assert offset == gguf.GGUFReader(tmp_path / "a.gguf").tensors[0].data_offset
            assert file.data("t").cast("f").tolist() == [0, 1, 2, 3, 4]
        seen.add(offset)
    assert len(seen) == 2, "the border was crossed once"


def test_k10_an_unknown_tensor_type_matters_only_to_whoever_needs_that_tensor(tmp_path):
    table = [raw_tensor("known"), raw_tensor("strange", kind=999, offset=32)]
    data = struct.pack("<8f", *range(8)) + bytes(32)
    path = raw_file(tmp_path / "a.gguf", [raw_key("k", UINT32, bytes(4))], table, data)
    with GGUFFile(path) as file:
        assert file.metadata == {"k": 0}
        assert file.data("known").cast("f").tolist() == list(range(8))
        with pytest.raises(ValueError, match=r"'strange' is of unknown type 999"):
            file.data("strange")
        with pytest.raises(ValueError, match="no tensor 'other'"):
            file.data("other")


def test_k11_a_key_or_tensor_that_is_there_twice_is_an_error_with_its_name(tmp_path):
    key = raw_key("some.key", UINT32, bytes(4))
    path = raw_file(tmp_path / "a.gguf", [key, raw_key("other", UINT32, bytes(4)), key])
    with pytest.raises(ValueError, match=r"'some.key', byte 69: this key is there twice"):
        GGUFFile(path)
    tensors = [raw_tensor("twin"), raw_tensor("twin", offset=32)]
    with pytest.raises(ValueError, match=r"'twin', byte \d+: this name is there twice"):
        GGUFFile(raw_file(tmp_path / "a.gguf", (), tensors, bytes(64)))


@pytest.mark.parametrize(
    ("tensors", "problem"),
    [
        ([raw_tensor("a"), raw_tensor("b", offset=96)], "'b'.*ends 32 bytes too early"),
        ([raw_tensor("a"), raw_tensor("b", kind=999, offset=2**40)], "'b'.*too early"),
        ([raw_tensor("a", (17,))], None),
        ([raw_tensor("a", (16,)), raw_tensor("b", offset=32)], "'b'.*overlaps.*'a'"),
        ([raw_tensor("b", offset=32), raw_tensor("a", (16,))], "'b'.*overlaps.*'a'"),
        ([raw_tensor("a", offset=8)], "'a'.*offset 8 is no multiple of the alignment 32"),
        ([raw_tensor("a", (33,), kind=8)], "'a'.*33 numbers.*Q8_0 blocks of 32"),
        ([raw_tensor("a", (1,) * 5)], "'a'.*5 dimensions"),
        ([raw_tensor("a", ()), raw_tensor("b", (0,), offset=32)], None),
    ],
)
def test_tensors_that_do_not_fit_the_file_or_each_other_are_found_at_open(
    tmp_path, tensors, problem
):
    path = raw_file(tmp_path / "a.gguf", (), tensors, bytes(96))
    if problem is None:
        GGUFFile(path).close()
    else:
        with pytest.raises(ValueError, match=problem):
            GGUFFile(path)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"magic": b"GGML"}, "not a GGUF file.*GGML"),
        ({"version": 1}, "version 1 is not supported"),
        ({"version": 4}, "version 4 is not supported"),
        ({"version": 3 << 24}, "big-endian GGUF is not supported"),
        ({"keys": [raw_key("k", 13, bytes(8))]}, "'k'.*unknown type 13"),
        ({"keys": [raw_key("k", STRING, raw_string(b"ab\xff"))]}, "'k', byte 47: .*not UTF-8"),
    ],
)
def test_what_is_not_gguf_2_or_3_is_refused(tmp_path, settings, problem):
    with pytest.raises(ValueError, match=problem):
        GGUFFile(raw_file(tmp_path / "a.gguf", **settings))


def test_a_file_that_changed_is_read_anew(tmp_path):
    """Of the same name, size and time as the one before; and a damaged one is still refused."""
    tensors, path = random_tensors(), tmp_path / "a.gguf"
    with GGUFFile(written(path, tensors)) as file:
        before = file.tensors
    stat, content = path.stat(), path.read_bytes()
    path.write_bytes(content.replace(b"tensor.F32", b"tensor.F3x"))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with GGUFFile(path) as file:
        assert "tensor.F3x" in file.tensors and "tensor.F32" in before
        assert bytes(file.data("tensor.F3x"))
    path.write_bytes(b"GGUX" + content[4:])
    with pytest.raises(ValueError, match="not a GGUF file"):
        GGUFFile(path)
    path.write_bytes(content)
    with GGUFFile(path) as file:
        assert file.tensors == before


def test_an_empty_file_is_refused_by_its_name(tmp_path):
    (tmp_path / "a.gguf").touch()
    with pytest.raises(ValueError, match=r"a\.gguf: the file is empty"):
        GGUFFile(tmp_path / "a.gguf")


def test_data_is_the_mapped_file_itself_and_outlives_close(tmp_path):
    path = written(tmp_path / "a.gguf", random_tensors())
    file = GGUFFile(path)
    view = file.data("tensor.F32")
    assert view.readonly
    before = bytes(view)
    file.close()
    file.close()
    assert bytes(view) == before
