"""The same files through gguf-py: what its writer writes we read, and what its reader reads we read alike."""

from pathlib import Path

import gguf
import numpy as np
import pytest

from app.gguf import Array, Value, open_model
from tests.builder import ARRAY, F8, STRING, U32, build

TYPES = [t for t in gguf.GGMLQuantizationType if t.name != "Q8_1"]


def text(value: Value) -> object:
    if isinstance(value, Array):
        return [text(item) for item in value]
    return value.decode() if isinstance(value, bytes) else value


def flat(value: object) -> object:
    """The value as the peer's reader gives it: it runs inner arrays together."""
    if isinstance(value, list) and any(isinstance(item, list) for item in value):
        return [inner for item in value for inner in item]
    return value


def compare(path: Path) -> None:
    reader = gguf.GGUFReader(path)
    with path.open("rb") as file:
        model = open_model([file.fileno()])
    fields = {key: field for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    assert {entry.key.decode(): flat(text(entry.value)) for entry in model.metadata} == {
        key: field.contents() for key, field in fields.items()
    }
    assert model.headers[0].data_start == reader.data_offset
    ours = [(t.name.decode(), t.ne, t.type_id, t.n_weights, t.n_bytes, t.start) for t in model.tensors]
    theirs = [
        (t.name, tuple(map(int, t.shape)), int(t.tensor_type), t.n_elements, t.n_bytes, t.data_offset)
        for t in reader.tensors
    ]
    assert ours == theirs
    assert all(t.readable for t in model.tensors)


@pytest.mark.parametrize("endian", list(gguf.GGUFEndian))
def test_files_of_the_writer(endian: gguf.GGUFEndian, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama", endianess=endian)
    writer.add_uint8("u8", 200)
    writer.add_int8("i8", -100)
    writer.add_uint16("u16", 60_000)
    writer.add_int16("i16", -30_000)
    writer.add_uint32("u32", 4_000_000_000)
    writer.add_int32("i32", -2_000_000_000)
    writer.add_uint64("u64", 2**63)
    writer.add_int64("i64", -(2**63))
    writer.add_float32("f32", 0.1)
    writer.add_float64("f64", 0.1)
    writer.add_bool("bool", True)
    writer.add_string("string", "größe")
    writer.add_array("strings", [f"token {n}" for n in range(1000)])
    writer.add_array("ints", list(range(-500, 500)))
    writer.add_array("floats", [0.5, -0.25])
    writer.add_array("bools", [True, False])
    writer.add_array("nested", [[1, 2], [3]])
    writer.add_custom_alignment(64)
    writer.add_tensor("a", np.arange(24, dtype=np.float32).reshape(2, 3, 4))
    writer.add_tensor("b", np.arange(5, dtype=np.float16))
    writer.add_tensor("c", np.arange(7, dtype=np.int32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with path.open("rb") as file:
        model = open_model([file.fileno()])
    content = path.read_bytes()
    a = model.find(b"a")
    order = "<" if endian is gguf.GGUFEndian.LITTLE else ">"
    assert model.byte_order == endian.name.lower()
    assert a.n_bytes == 96
    assert np.array_equal(np.frombuffer(content[a.start : a.start + 96], order + "f4"), np.arange(24))
    assert (a.shape, model.find(b"b").start % 64, model.headers[0].alignment) == ((2, 3, 4), 0, 64)
    assert text(model.metadata.get(b"nested") or 0) == [[1, 2], [3]]
    assert model.metadata.get(b"f32") == float(np.float32(0.1))
    assert text(model.metadata.get(b"string") or 0) == "größe"
    if endian is gguf.GGUFEndian.LITTLE:
        compare(path)


def test_every_type_of_the_peer_has_the_same_size(tmp_path: Path) -> None:
    tensors = []
    for kind in TYPES:
        weights, size = gguf.GGML_QUANT_SIZES[kind]
        tensors.append((kind.name, [2 * weights, 3], int(kind), bytes(6 * size)))
    path = tmp_path / "types.gguf"
    path.write_bytes(build(tensors, [("general.architecture", STRING, "llama")]) + bytes(32))
    compare(path)


@pytest.mark.parametrize("version", [2, 3])
def test_files_of_the_builder(version: int, tmp_path: Path) -> None:
    path = tmp_path / "built.gguf"
    metadata = [("general.architecture", STRING, "llama"), ("n", U32, 3), ("t", ARRAY, (STRING, ["a", "bc"]))]
    path.write_bytes(build([("w", [4, 2], 0, F8)], metadata, version=version, alignment=64))
    compare(path)
