"""Cases of docs/cases.md about tensors: dimensions, rows, places in the file."""

import io
import os
import struct

import numpy as np
import pytest

from tests.app.conftest import Face, Serve, path_of, slug
from tests.builder import ARRAY, F8, I32, U32, U64, Layout, base, build, floats, header, kv, pad, tensor_info

W = path_of("m", "data", "w")
W_INFO = path_of("m", "tensors", "w")
F8_VALUES = [float(value) for value in range(8)]


def fault(face: Face, name: str) -> str | None:
    """The slug of a tensor's fault in the tensor table, where the data route must answer the same."""
    line = face.get(path_of("m", "tensors", name)).json
    if line["readable"]:
        assert "fault" not in line
        return None
    found: str = line["fault"]["type"].removeprefix("/problems/")
    answer = face.get(path_of("m", "data", name))
    assert slug(answer) == (422, found)
    assert answer.json["detail"] == line["fault"]["detail"]
    return found


@pytest.mark.case(1)
def test_ne_0_is_the_length_of_a_row(serve: Serve) -> None:
    assert len(base()) == 160
    face = serve(base())
    line = face.get(W_INFO).json
    assert (line["ne"], line["shape"], line["rows"], line["row_weights"]) == ([4, 2], [2, 4], 2, 4)
    assert face.get(f"{W}?rows=0").values == [0, 1, 2, 3]
    assert face.get(f"{W}?rows=1").values == [4, 5, 6, 7]
    assert face.problem(f"{W}?rows=2") == (400, "selection-out-of-range")


@pytest.mark.case(2)
def test_rows_of_a_3d_tensor_run_over_every_dimension_above_the_first(serve: Serve) -> None:
    face = serve(base(infos=[tensor_info("e", [4, 3, 2], 0, 0)], data=floats(*range(24))))
    data = path_of("m", "data", "e")
    assert face.get(path_of("m", "tensors", "e")).json["rows"] == 6
    assert face.get(f"{data}?rows=3:5").values == list(range(12, 20))
    assert face.problem(f"{data}?rows=6") == (400, "selection-out-of-range")
    assert face.get(f"{data}?rows=6:7").values == []
    whole = np.load(io.BytesIO(face.get(f"{data}?format=npy").body), allow_pickle=False)
    assert np.array_equal(whole, np.arange(24, dtype=np.float32).reshape(2, 3, 4))


@pytest.mark.case(16)
@pytest.mark.parametrize(
    ("ne", "values", "text"),
    [([3], [1.0, 2.0, 3.0], b"'shape': (3,)"), ([], [1.5], b"'shape': ()")],
)
def test_an_npy_of_one_dimension_or_none_has_numpys_own_header(
    serve: Serve, ne: list[int], values: list[float], text: bytes
) -> None:
    face = serve(base(infos=[tensor_info("s", ne, 0, 0)], data=floats(*values)))
    body = face.get(path_of("m", "data", "s?format=npy")).body
    start = len(body) - 4 * len(values)
    assert body.startswith(bytes.fromhex("93 4e 55 4d 50 59 01 00"))
    assert start % 64 == 0
    assert body[start - 1 : start] == b"\n"
    assert b"'descr': '<f4'" in body
    assert text in body
    loaded = np.load(io.BytesIO(body), allow_pickle=False)
    assert list(loaded.shape) == face.get(path_of("m", "tensors", "s")).json["shape"]
    assert loaded.ravel().tolist() == values


@pytest.mark.case(27)
@pytest.mark.parametrize("alignment", [1, 8, 4096])
def test_the_data_begin_at_a_multiple_of_the_stated_alignment(serve: Serve, alignment: int) -> None:
    entry = kv("general.alignment", U32, alignment)
    face = serve(base(entries=[entry], alignment=alignment))
    assert face.get(f"{W}?rows=0").values == [0, 1, 2, 3]
    assert face.get(f"{W}?rows=1").values == [4, 5, 6, 7]
    end = 110 + len(entry)  # BASE without its padding and its data, and the key
    assert face.get("/v1/models/m").json["files"][0]["data_start"] == -(-end // alignment) * alignment


@pytest.mark.case(28)
def test_data_may_end_with_the_file(serve: Serve) -> None:
    face = serve(base(infos=[tensor_info("w", [3], 0, 0)], data=floats(1, 2, 3)))
    assert face.get(f"{W}?rows=0").values == [1, 2, 3]


@pytest.mark.case(40)
def test_a_scalar_is_one_row_of_one_weight(serve: Serve) -> None:
    face = serve(base(infos=[tensor_info("s", [], 0, 0)], data=floats(1.5) + bytes(28)))
    line = face.get(path_of("m", "tensors", "s")).json
    assert (line["ne"], line["shape"], line["rows"], line["row_weights"], line["weights"]) == ([], [], 1, 1, 1)
    data = path_of("m", "data", "s")
    assert face.get(data).values == face.get(f"{data}?rows=0").values == [1.5]
    assert face.get(f"{data}?format=json").json == {"shape": [], "dtype": "float32", "data": 1.5}
    assert np.load(io.BytesIO(face.get(f"{data}?format=npy").body), allow_pickle=False).shape == ()


@pytest.mark.case(41)
def test_an_original_shape_is_shown_apart_and_rows_follow_the_stored_one(serve: Serve) -> None:
    face = serve(base(entries=[kv("comfy.gguf.orig_shape.w", ARRAY, (I32, [8, 1]))]))
    line = face.get(W_INFO).json
    assert (line["original_shape"], line["shape"], line["rows"]) == ([8, 1], [2, 4], 2)
    assert face.get(f"{W}?rows=1").values == [4, 5, 6, 7]


@pytest.mark.case(41)
def test_an_original_shape_may_have_five_dimensions(serve: Serve) -> None:
    face = serve(base(entries=[kv("comfy.gguf.orig_shape.w", ARRAY, (I32, [2, 1, 2, 1, 2]))]))
    line = face.get(W_INFO).json
    assert (line["original_shape"], line["shape"], line["rows"]) == ([2, 1, 2, 1, 2], [2, 4], 2)
    assert face.get("/v1/models/m").json["warnings"] == []
    assert face.get(f"{W}?rows=1").values == [4, 5, 6, 7]


@pytest.mark.case(41)
def test_an_original_shape_of_another_size_is_reported_and_not_applied(serve: Serve) -> None:
    face = serve(base(entries=[kv("comfy.gguf.orig_shape.w", ARRAY, (I32, [9, 1]))]))
    assert "original_shape" not in face.get(W_INFO).json
    assert any("original shape" in line for line in face.get("/v1/models/m").json["warnings"])
    assert face.get(W).values == F8_VALUES


@pytest.mark.case(55)
def test_a_dimension_of_size_0_makes_an_empty_tensor(serve: Serve) -> None:
    infos = [tensor_info("t", [4, 0], 0, 0), tensor_info("u", [0, 4], 0, 0), tensor_info("q", [0, 4], 2, 0)]
    face = serve(base(infos=infos, data=b""))
    for name, shape in {"t": (0, 4), "u": (4, 0), "q": (4, 0)}.items():
        assert face.get(path_of("m", "tensors", name)).json["bytes"] == 0
        data = path_of("m", "data", name)
        assert face.get(data).values == []
        assert np.load(io.BytesIO(face.get(f"{data}?format=npy").body), allow_pickle=False).shape == shape
        assert face.get(f"{data}?format=native").body == b""
        assert np.array(face.get(f"{data}?format=json").json["data"]).size == 0


@pytest.mark.case(56)
@pytest.mark.parametrize("ne", [[31], [16, 2]])
def test_a_row_of_partial_blocks_makes_its_tensor_unreadable(serve: Serve, ne: list[int]) -> None:
    face = serve(build([("w", [4, 2], 0, F8), ("q", ne, 2, bytes(18))]))
    assert fault(face, "q") == "partial-block-row"
    assert face.get(W).values == F8_VALUES


@pytest.mark.case(59)
@pytest.mark.parametrize(
    ("offsets", "readable"),
    [((0, 64), True), ((32, 0), True), ((0, 0), False)],
    ids=["gap", "reordered", "shared"],
)
def test_odd_offsets_are_served_with_a_warning_unless_they_overlap(
    serve: Serve, offsets: tuple[int, int], readable: bool
) -> None:
    data = bytearray(96)
    for place, offset in enumerate(offsets):
        data[offset : offset + 32] = floats(*range(8 * place, 8 * place + 8))
    infos = [tensor_info(f"w{place}", [4, 2], 0, offset) for place, offset in enumerate(offsets)]
    face = serve(base(infos=infos, data=bytes(data)))
    if readable:
        assert len(face.get("/v1/models/m").json["warnings"]) == 1
    for place in range(2):
        assert fault(face, f"w{place}") == (None if readable else "tensor-overlap")
        if readable:
            assert face.get(path_of("m", "data", f"w{place}")).values == list(range(8 * place, 8 * place + 8))


@pytest.mark.case(59)
def test_a_lone_tensor_at_an_unaligned_offset_is_served_from_there(serve: Serve) -> None:
    face = serve(base(infos=[tensor_info("w", [4, 2], 0, 4)], data=floats(-1) + F8))
    assert face.get(W).values == F8_VALUES
    assert any("multiple of the alignment" in line for line in face.get("/v1/models/m").json["warnings"])


@pytest.mark.case(60)
@pytest.mark.parametrize(("ne", "offset"), [([4, 2], 4096), ([4, 1_000_000], 0), ([4, 2], 2**64 - 32)])
def test_an_offset_or_size_past_the_end_makes_its_tensor_unreadable(serve: Serve, ne: list[int], offset: int) -> None:
    face = serve(base(infos=[tensor_info("w", ne, 0, offset)]))
    assert fault(face, "w") == "tensor-past-end-of-file"
    assert face.get("/v1/models/m").json["unreadable_tensors"] == 1


@pytest.mark.case(61)
def test_a_big_endian_file_gives_little_endian_weights(serve: Serve) -> None:
    big = base(layout=Layout("big"))
    assert big[:8] == b"GGUF\0\0\0\3"
    face = serve({"m.gguf": big, "fugg.gguf": b"FUGG" + big[4:]})
    assert face.get(W).values == F8_VALUES
    assert face.get(f"{W}?dtype=stored").body == F8
    assert face.get("/v1/models/m").json["files"][0]["byte_order"] == "big"
    assert face.problem(f"{W}?format=native") == (422, "unsupported-type")
    fugg = face.get("/v1/models/fugg")
    assert slug(fugg) == (422, "unreadable-model")
    assert "FUGG" in fugg.json["detail"]


@pytest.mark.case(62)
def test_a_version_1_file_is_read_with_its_32_bit_counts(serve: Serve) -> None:
    face = serve(build([("w", [4, 2], 0, F8), ("q", [32], 8, bytes(34))], version=1))
    assert face.get(W).values == F8_VALUES
    assert face.get(path_of("m", "data", "q")).values == [0.0] * 32
    assert face.get("/v1/models/m").json["files"][0]["version"] == 1


@pytest.mark.case(62)
def test_version_2_is_read_like_version_3(serve: Serve) -> None:
    assert serve(base(version=2)).get(W).values == F8_VALUES


@pytest.mark.case(62)
@pytest.mark.parametrize(
    ("data", "named"),
    [
        (base(version=0), "version 0"),
        (base(version=1), "335544320 dimensions"),
        (base(version=4), "version 4"),
        (base(magic=b"tjgg"), "ggjt"),
        (base(magic=b"fmgg"), "ggmf"),
        (base(magic=b"lmgg"), "ggml"),
    ],
    ids=["0", "1", "4", "tjgg", "fmgg", "lmgg"],
)
def test_other_versions_and_older_magics_are_refused_by_name(serve: Serve, data: bytes, named: str) -> None:
    answer = serve(data).get("/v1/models/m")
    assert slug(answer) == (422, "unreadable-model")
    assert named in answer.json["detail"]


@pytest.mark.case(63)
@pytest.mark.parametrize(
    "info",
    [tensor_info("w", [4, 2, 1, 1, 1], 0, 0), tensor_info("w", [4, 2], 0, 0, n_dims=0xFFFFFFFF)],
    ids=["5", "absurd"],
)
def test_more_than_4_dimensions_are_refused(serve: Serve, info: bytes) -> None:
    answer = serve(base(infos=[info])).get("/v1/models/m")
    assert slug(answer) == (422, "unreadable-model")
    assert "dimensions" in answer.json["detail"]
    assert '"w"' in answer.json["detail"]


@pytest.mark.case(64)
def test_trailing_bytes_are_ignored(serve: Serve) -> None:
    assert serve(base() + (b"GARBAGE" * 9)).get(W).values == F8_VALUES


@pytest.mark.case(65)
@pytest.mark.parametrize(
    "ne",
    [[4194305, 4194305, 211106198978564], [4, 2**30 - 1, 2**30 + 1], [2**63, 2], [4, 2**63]],
)
def test_sizes_past_64_bits_are_told_exactly_and_refused(serve: Serve, ne: list[int]) -> None:
    face = serve(base(infos=[tensor_info("w", ne, 0, 0)]))
    assert fault(face, "w") == "tensor-past-end-of-file"
    line = face.get(W_INFO).json
    weights = 1
    for length in ne:
        weights *= length
    assert (line["ne"], line["weights"], line["bytes"]) == (ne, weights, 4 * weights)


@pytest.mark.case(66)
def test_the_last_row_of_a_tensor_of_more_than_4_gib_is_right(serve: Serve) -> None:
    rows = 134_217_730
    face = serve(base(infos=[tensor_info("w", [32, rows], 8, 0)], data=b""))
    path = face.root / "m.gguf"
    start = path.stat().st_size
    block = np.float16(0.5).tobytes() + bytes(range(32))
    with path.open("r+b") as file:
        os.pwrite(file.fileno(), block, start + (rows - 1) * 34)
    assert path.stat().st_size - start == 4_563_402_820
    assert face.get(f"{W}?rows=-1").values == [value / 2 for value in range(32)]
    assert face.get(f"{W}?rows={rows - 2}").values == [0.0] * 32


@pytest.mark.case(68)
@pytest.mark.parametrize("alignment", [0, 24, 33])
def test_an_alignment_that_is_no_power_of_two_is_refused(serve: Serve, alignment: int) -> None:
    answer = serve(base(entries=[kv("general.alignment", U32, alignment)])).get("/v1/models/m")
    assert slug(answer) == (422, "unreadable-model")
    assert str(alignment) in answer.json["detail"]


@pytest.mark.case(68)
def test_an_alignment_of_another_type_is_refused(serve: Serve) -> None:
    answer = serve(base(entries=[kv("general.alignment", U64, 32)])).get("/v1/models/m")
    assert slug(answer) == (422, "unreadable-model")
    assert "u64" in answer.json["detail"]


@pytest.mark.case(68)
def test_an_alignment_of_2_gib_puts_the_data_past_the_end(serve: Serve) -> None:
    face = serve(base(entries=[kv("general.alignment", U32, 2**31)]))
    assert fault(face, "w") == "tensor-past-end-of-file"


@pytest.mark.case(31)
def test_a_file_without_tensors_may_end_before_its_data(serve: Serve) -> None:
    data = header(0, 1) + kv("general.type", 8, "adapter?")
    face = serve({"m.gguf": data, "n.gguf": pad(header(1, 0) + tensor_info("w", [4, 2], 0, 0)) + F8})
    assert face.get(path_of("m", "tensors")).json["tensors"] == []
    assert face.get(path_of("m", "metadata")).json["count"] == 1
    assert face.get("/v1/models/n").json["architecture"] is None
    assert face.get(path_of("n", "data", "w")).values == F8_VALUES


@pytest.mark.case(31)
def test_the_file_of_69_bytes_is_served(serve: Serve) -> None:
    data = header(0, 1) + kv("general.architecture", 8, "llama")
    assert len(data) == 69
    face = serve(data)
    assert face.get("/v1/models/m").json["tensors"] == 0
    assert face.get("/v1/models/m").json["architecture"] == "llama"


def test_no_answer_holds_a_byte_from_outside_its_tensor(serve: Serve) -> None:
    """Always: the first and last weights of neighbours stay apart, in every form."""
    inside, outside = struct.pack("<8f", *[7.0] * 8), struct.pack("<8f", *[-1.0] * 8)
    infos = [tensor_info(name, [4, 2], 0, 32 * place) for place, name in enumerate("abc")]
    face = serve(base(infos=infos, data=outside + inside + outside))
    data = path_of("m", "data", "b")
    for query in ("", "?rows=:", "?rows=-9:9", "?rows=::-1", "?cols=-99:99", "?slice=...", "?slice=::-1,::-1"):
        assert face.get(data + query).values == [7.0] * 8
    assert face.get(f"{data}?format=native").body == inside
