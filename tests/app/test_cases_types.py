"""Cases of docs/cases.md about tensor types: how they decode, and which are refused."""

import struct

import numpy as np
import pytest

import decoders
from decoders import GGMLType
from tests.app.conftest import Face, Serve, path_of, slug
from tests.builder import F8, base, build, floats, tensor_info
from tests.decoders.helpers import ggml_dequantize

W = path_of("m", "data", "w")
Q = path_of("m", "data", "q")
W_VALUES = [float(value) for value in range(8)]


def with_w(q_type: int, ne: list[int], q_bytes: int, *, w_offset: int | None = None, q_data: bytes = b"") -> bytes:
    """``q`` of a type and a size, and ``w`` after it."""
    offset = q_bytes if w_offset is None else w_offset
    data = bytearray(offset + 32)
    data[: len(q_data)] = q_data
    data[offset:] = F8
    return base(infos=[tensor_info("q", ne, q_type, 0), tensor_info("w", [4, 2], 0, offset)], data=bytes(data))


def refused(face: Face) -> str:
    """Check that ``q`` is listed and refused and that ``w`` is served; give the detail."""
    line = face.get(path_of("m", "tensors", "q")).json
    assert line["readable"] is False
    assert line["fault"]["type"] == "/problems/unsupported-type"
    answer = face.get(Q)
    assert slug(answer) == (422, "unsupported-type")
    assert answer.json["type_id"] == line["type_id"]
    for query in ("?format=native", "?dtype=stored", "?rows=0", "?format=json", "?format=npy"):
        assert face.problem(Q + query) == (422, "unsupported-type")
    assert face.get(path_of("m", "tensors", "w")).json["readable"]
    assert face.get(W).values == W_VALUES
    detail: str = answer.json["detail"]
    return detail


@pytest.mark.case(8)
def test_mxfp4_has_its_low_nibbles_in_the_first_half_of_the_block(serve: Serve) -> None:
    face = serve(base(infos=[tensor_info("x", [32, 1], 39, 0)], data=b"\x7f" + b"\x21" * 16))
    assert face.get(path_of("m", "data", "x")).values == [0.5] * 16 + [1.0] * 16
    line = face.get(path_of("m", "tensors", "x")).json
    assert (line["type"], line["bytes"]) == ("MXFP4", 17)


@pytest.mark.case(9, 78)
@pytest.mark.parametrize("type_id", [156, 0x80000000, 0xFFFFFFFF])
def test_one_tensor_of_unknown_type_hides_nothing_else(serve: Serve, type_id: int) -> None:
    infos = [tensor_info("w", [4, 2], 0, 0), tensor_info("q", [256, 1], type_id, 32)]
    face = serve(base(infos=infos, data=F8 + bytes(512)))
    lines = {line["name"]: line for line in face.get(path_of("m", "tensors")).json["tensors"]}
    assert list(lines) == ["w", "q"]
    assert (lines["q"]["type_id"], lines["q"]["type"], lines["q"]["bytes"]) == (type_id, None, None)
    assert str(type_id) in refused(face)
    assert face.get("/v1/models").json["models"][0]["unreadable_tensors"] == 1


@pytest.mark.case(23)
@pytest.mark.parametrize(("type_id", "size"), [(40, 36), (41, 18), (42, 18), (34, 54), (35, 66)])
def test_the_newest_types_equal_ggml(serve: Serve, type_id: int, size: int) -> None:
    block = decoders.info(GGMLType(type_id))
    assert block.block_bytes == size
    data = bytearray(np.random.default_rng(type_id).integers(0, 256, size, np.uint8).tobytes())
    if type_id in (41, 42):
        data[:2] = np.float16(0.25).tobytes()
    elif type_id in (34, 35):
        data[-2:] = np.float16(0.25).tobytes()
    face = serve(build([("q", [block.block_weights], type_id, bytes(data))]))
    expected = ggml_dequantize(np.frombuffer(data, np.uint8), type_id)
    assert np.isfinite(expected).all()
    assert face.get(Q).body == expected.tobytes()


@pytest.mark.case(24)
def test_bitnet_cpps_i2_s_is_named_and_not_decoded(serve: Serve) -> None:
    face = serve(with_w(36, [128, 2], 96))
    assert "bitnet.cpp" in refused(face)
    assert face.get(path_of("m", "tensors", "q")).json["type_id"] == 36


@pytest.mark.case(29)
def test_bfloat16_is_the_upper_half_of_a_float32(serve: Serve) -> None:
    words = bytes.fromhex("803f 00c0 c07f 80ff 0100 0080")
    face = serve(base(infos=[tensor_info("b", [6], 30, 0)], data=words))
    data = path_of("m", "data", "b")
    bits = np.frombuffer(face.get(data).body, "<u4").tolist()
    assert bits == [0x3F800000, 0xC0000000, 0x7FC00000, 0xFF800000, 0x00010000, 0x80000000]
    assert face.get(f"{data}?dtype=stored").body == words
    assert face.get(f"{data}?dtype=bfloat16").body == words
    assert face.get(f"{data}?format=json").json["data"] == [1.0, -2.0, "NaN", "-Infinity", 9.1835e-41, -0.0]


@pytest.mark.case(30)
def test_float16_specials_are_answers_like_any_other(serve: Serve) -> None:
    halves = bytes.fromhex("007e 007c 00fc 0100 0080 ff7b")
    face = serve(base(infos=[tensor_info("h", [6], 1, 0)], data=halves))
    data = path_of("m", "data", "h")
    expected = np.frombuffer(halves, "<f2").astype(np.float32)
    assert np.array_equal(face.get(data).floats, expected, equal_nan=True)
    assert np.signbit(face.get(data).floats[4])
    assert face.get(f"{data}?dtype=stored").body == halves
    assert face.get(f"{data}?dtype=float16").body == halves
    shown = face.get(f"{data}?format=json").json["data"]
    assert shown == ["NaN", "Infinity", "-Infinity", 5.9604645e-08, -0.0, 65504.0]


@pytest.mark.case(30)
def test_zero_times_infinity_is_32_nans(serve: Serve) -> None:
    face = serve(base(infos=[tensor_info("q", [32], 2, 0)], data=b"\x00\x7c" + b"\x88" * 16))
    assert np.isnan(face.get(Q).floats).all()
    assert face.get(f"{Q}?format=json").json["data"] == ["NaN"] * 32
    assert np.isnan(np.frombuffer(face.get(f"{Q}?dtype=float16").body, "<f2")).all()
    assert face.get(Q).floats.size == 32


@pytest.mark.case(36)
@pytest.mark.parametrize(
    ("type_id", "data", "expected", "dtype"),
    [
        (24, bytes.fromhex("ff007f80"), [-1, 0, 127, -128], "int8"),
        (26, struct.pack("<i", 16777217), [16777216], "int32"),
        (27, struct.pack("<q", 2**53 + 1), [9007199254740992], "int64"),
        (28, struct.pack("<2d", 1e300, 0.1), [float("inf"), float(np.float32(0.1))], "float64"),
    ],
    ids=["I8", "I32", "I64", "F64"],
)
def test_integers_and_doubles_are_cast_to_float32_and_exact_as_stored(
    serve: Serve, type_id: int, data: bytes, expected: list[float], dtype: str
) -> None:
    face = serve(base(infos=[tensor_info("q", [len(expected)], type_id, 0)], data=data))
    assert face.get(Q).values == expected
    stored = face.get(f"{Q}?dtype=stored")
    assert stored.body == data
    assert stored.headers["x-tensor-dtype"] == dtype
    exact = np.frombuffer(data, np.dtype(dtype).newbyteorder("<")).tolist()
    assert face.get(f"{Q}?dtype=stored&format=json").json == {"shape": [len(exact)], "dtype": dtype, "data": exact}


@pytest.mark.case(51)
def test_ollamas_type_4_is_not_taken_for_mxfp4(serve: Serve) -> None:
    detail = refused(serve(with_w(4, [32, 1], 17, w_offset=32, q_data=b"\x7f" + b"\x21" * 16)))
    assert "Ollama" in detail
    assert "MXFP4" in detail


@pytest.mark.case(53)
def test_types_with_a_header_in_each_row_are_named_and_raise_no_false_alarm(serve: Serve) -> None:
    face = serve(with_w(144, [256, 8], 1120))
    assert "ik_llama.cpp" in refused(face)
    line = face.get(path_of("m", "tensors", "q")).json
    assert line["type"] == "IQ4_KS"
    assert line["bytes"] in (None, 1120)
    assert face.get("/v1/models/m").json["warnings"] == []


@pytest.mark.case(54)
@pytest.mark.parametrize("type_id", [4, 5, 31, 32, 33, 36, 37, 38])
def test_removed_types_are_listed_as_removed(serve: Serve, type_id: int) -> None:
    assert "removed from ggml" in refused(serve(with_w(type_id, [256, 1], 1024)))


@pytest.mark.parametrize("type_id", [39, 42, 38])
def test_a_shared_id_is_refused_where_the_sizes_disagree_with_ggml(serve: Serve, type_id: int) -> None:
    """The ids of forks: what follows such a tensor lies elsewhere than ggml's size of it says."""
    detail = refused(serve(with_w(type_id, [256, 2], 4096)))
    assert "llama.cpp" in detail or "bitnet.cpp" in detail


@pytest.mark.case(36)
def test_a_stored_dtype_is_for_unquantized_types_only(serve: Serve) -> None:
    face = serve(build([("q", [32], 2, bytes(18)), ("f", [2], 0, floats(1, 2))]))
    answer = face.get(f"{Q}?dtype=stored")
    assert slug(answer) == (400, "bad-parameter")
    assert "Q4_0" in answer.json["detail"]
    assert "format=native" in answer.json["detail"]
    assert face.get(f"{path_of('m', 'data', 'f')}?dtype=stored").values == [1, 2]
