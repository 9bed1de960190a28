"""Faults that stay with one tensor."""

import pytest

from app.gguf import Header, Tensor
from decoders import BIG_ENDIAN_TYPES, GGMLType, info
from tests.app.gguf.reading import faults, read, weights
from tests.builder import F8, Layout, base, build, floats, tensor_info

REMOVED = [4, 5, 31, 32, 33, 36, 37, 38]


def detail(tensor: Tensor) -> str:
    assert tensor.fault is not None
    assert not tensor.readable
    return tensor.fault.detail


def beside_w(ne: list[int], type_id: int, content: bytes, w_offset: int) -> tuple[bytes, Header]:
    """A tensor ``q`` at 0, and the F32 tensor ``w`` at `w_offset`."""
    infos = [tensor_info("q", ne, type_id, 0), tensor_info("w", [4, 2], 0, w_offset)]
    data = base(infos=infos, data=content.ljust(w_offset, b"\0") + F8)
    return data, read(data)


@pytest.mark.case(2)
def test_rows_run_over_all_dimensions_above_the_first() -> None:
    (tensor,) = read(base(infos=[tensor_info("e", [4, 3, 2], 0, 0)], data=floats(*range(24)))).tensors
    assert (tensor.n_rows, tensor.row_weights, tensor.shape, tensor.n_bytes) == (6, 4, (2, 3, 4), 96)


@pytest.mark.case(40)
def test_a_scalar_is_one_row_of_one_weight() -> None:
    (tensor,) = read(base(infos=[tensor_info("s", [], 0, 0)], data=floats(1.5) + bytes(28))).tensors
    assert (tensor.ne, tensor.shape, tensor.n_weights, tensor.n_rows, tensor.row_weights) == ((), (), 1, 1, 1)
    assert (tensor.n_bytes, tensor.readable) == (4, True)


def test_ones_at_the_end_of_the_dimensions_stay() -> None:
    (tensor,) = read(base(infos=[tensor_info("w", [4, 2, 1, 1], 0, 0)])).tensors
    assert (tensor.shape, tensor.n_rows) == ((1, 1, 2, 4), 2)


@pytest.mark.case(5)
def test_a_tensor_cut_short_is_unreadable() -> None:
    (tensor,) = read(base()[:-1]).tensors
    assert faults(read(base()[:-1])) == ["tensor-past-end-of-file"]
    assert "bytes 128 to 160" in detail(tensor)
    assert "ends at 159" in detail(tensor)
    assert "1 of its 32 bytes" in detail(tensor)


@pytest.mark.case(5)
def test_only_the_tensor_that_is_cut_is_unreadable() -> None:
    data = build([("a", [4, 2], 0, F8), ("b", [4, 2], 0, F8)])[:-20]
    assert faults(read(data)) == [None, "tensor-past-end-of-file"]
    assert weights(data, read(data), b"a") == F8


@pytest.mark.case(5)
def test_a_file_cut_in_its_padding_keeps_its_table() -> None:
    assert faults(read(base()[:115])) == ["tensor-past-end-of-file"]


@pytest.mark.case(28)
def test_data_may_end_at_the_end_of_the_file() -> None:
    data = base(infos=[tensor_info("w", [3], 0, 0)], data=floats(0, 1, 2))
    assert weights(data, read(data), b"w") == floats(0, 1, 2)


@pytest.mark.case(60)
@pytest.mark.parametrize(
    "info_",
    [
        tensor_info("w", [4, 2], 0, 4096),
        tensor_info("w", [4, 1_000_000], 0, 0),
        tensor_info("w", [4, 2], 0, 2**64 - 32),
        tensor_info("w", [4, 2], 0, 2**63),
    ],
)
def test_an_offset_or_a_size_past_the_end(info_: bytes) -> None:
    assert faults(read(base(infos=[info_]))) == ["tensor-past-end-of-file"]


@pytest.mark.case(65)
@pytest.mark.parametrize(
    "ne", [[4194305, 4194305, 211106198978564], [4, 2**30 - 1, 2**30 + 1], [2**63, 2], [4, 2**63], [2**64 - 1] * 4]
)
def test_products_of_dimensions_are_exact(ne: list[int]) -> None:
    (tensor,) = read(base(infos=[tensor_info("w", ne, 0, 0)])).tensors
    product = 1
    for n in ne:
        product *= n
    assert (tensor.n_weights, tensor.n_bytes, tensor.ne) == (product, 4 * product, tuple(ne))
    assert faults(read(base(infos=[tensor_info("w", ne, 0, 0)]))) == ["tensor-past-end-of-file"]
    assert str(4 * product) in detail(tensor)


@pytest.mark.case(9, 78)
@pytest.mark.parametrize("type_id", [156, 43, 1000, 0x80000000, 0xFFFFFFFF])
def test_an_unknown_type_hides_nothing(type_id: int) -> None:
    infos = [tensor_info("w", [4, 2], 0, 0), tensor_info("q", [256, 1], type_id, 32)]
    data = base(infos=infos, data=F8 + bytes(512))
    read_back = read(data)
    assert faults(read_back) == [None, "unsupported-type"]
    w, q = read_back.tensors
    assert (q.type_id, q.type, q.type_name, q.n_bytes, q.n_weights) == (type_id, None, None, None, 256)
    assert f"Type {type_id} is not a type of ggml" in detail(q)
    assert w.type is GGMLType.F32
    assert weights(data, read_back, b"w") == F8


@pytest.mark.case(54)
@pytest.mark.parametrize("type_id", REMOVED)
def test_removed_types_are_named_as_removed(type_id: int) -> None:
    (tensor,) = read(base(infos=[tensor_info("q", [256, 1], type_id, 0)], data=bytes(16))).tensors
    assert (tensor.type_id, tensor.n_bytes) == (type_id, None)
    assert tensor.fault is not None
    assert tensor.fault.slug == "unsupported-type"
    assert "removed" in detail(tensor)
    assert info(type_id).name in detail(tensor)
    assert (tensor.type, tensor.type_name) == (GGMLType(type_id), info(type_id).name)


@pytest.mark.case(24)
def test_bitnet_i2_s() -> None:
    data, read_back = beside_w([128, 2], 36, bytes(96), 96)
    assert faults(read_back) == ["unsupported-type", None]
    q = read_back.tensors[0]
    assert (q.type_id, q.type, q.type_name) == (36, None, "I2_S")
    assert "bitnet.cpp" in detail(q)
    assert weights(data, read_back, b"w") == F8


@pytest.mark.case(24)
def test_bitnet_tl1_and_tl2_name_their_project() -> None:
    for type_id, content in ((38, 128), (39, 128)):
        data, read_back = beside_w([256, 1], type_id, bytes(content), content)
        assert faults(read_back) == ["unsupported-type", None]
        assert "bitnet.cpp" in detail(read_back.tensors[0])
        assert weights(data, read_back, b"w") == F8


@pytest.mark.case(51)
def test_ollama_mxfp4() -> None:
    data, read_back = beside_w([32, 1], 4, b"\x7f" + b"\x21" * 16, 32)
    q = read_back.tensors[0]
    assert faults(read_back) == ["unsupported-type", None]
    assert (q.type, q.type_name, q.n_bytes) == (None, "MXFP4 (Ollama)", None)
    assert "Ollama" in detail(q)
    assert weights(data, read_back, b"w") == F8


@pytest.mark.case(53)
def test_ik_llama_types_cause_no_overlap() -> None:
    data, read_back = beside_w([256, 8], 144, bytes(1120), 1120)
    q = read_back.tensors[0]
    assert faults(read_back) == ["unsupported-type", None]
    assert (q.type, q.type_name, q.n_bytes) == (None, "IQ4_KS", None)
    assert "ik_llama.cpp" in detail(q)
    assert weights(data, read_back, b"w") == F8


@pytest.mark.case(8, 23)
@pytest.mark.parametrize(
    ("type_id", "ne"), [(39, [32, 2]), (40, [64]), (41, [128]), (42, [64, 3]), (34, [256]), (35, [256])]
)
def test_new_types_are_served_where_the_size_agrees(type_id: int, ne: list[int]) -> None:
    block = info(type_id)
    size = ne[0] * (ne[1] if len(ne) > 1 else 1) // block.block_weights * block.block_bytes
    _, read_back = beside_w(ne, type_id, b"\x01" * size, -(-size // 32) * 32)
    assert faults(read_back) == [None, None]
    assert (read_back.tensors[0].type, read_back.tensors[0].n_bytes) == (GGMLType(type_id), size)
    alone = base(infos=[tensor_info("q", ne, type_id, 0)], data=b"\x01" * size)
    assert faults(read(alone)) == [None]
    cut = read(alone[:-1])
    assert faults(cut) == ["tensor-past-end-of-file"]
    assert ("uses type" in detail(cut.tensors[0])) == (type_id in (39, 42))


def test_an_earlier_q2_0_of_another_project_is_told_apart_by_its_size() -> None:
    _, read_back = beside_w([256, 8], 42, bytes(16 * 34), 16 * 34)
    q = read_back.tensors[0]
    assert faults(read_back) == ["unsupported-type", None]
    assert (q.type, q.type_name) == (None, "Q2_0 (PrismML)")
    assert "PrismML" in detail(q)
    assert "would take 576 bytes" in detail(q)


def test_the_space_of_another_projects_type_is_no_gap() -> None:
    _, read_back = beside_w([32, 8], 39, bytes(256), 256)
    assert faults(read_back) == ["unsupported-type", None]
    assert read_back.warnings == ()


def test_an_empty_tensor_of_an_ambiguous_type_is_served() -> None:
    _, read_back = beside_w([32, 0], 39, b"", 64)
    assert faults(read_back) == [None, None]


@pytest.mark.case(55)
@pytest.mark.parametrize(
    ("ne", "type_id", "rows"), [([4, 0], 0, 0), ([0, 4], 0, 4), ([0, 4], 2, 4), ([0], 2, 1), ([0, 3, 0], 0, 0)]
)
def test_empty_tensors_take_no_bytes_and_are_readable(ne: list[int], type_id: int, rows: int) -> None:
    infos = [tensor_info("t", ne, type_id, 0), tensor_info("u", ne, type_id, 0), tensor_info("w", [4, 2], 0, 0)]
    read_back = read(base(infos=infos))
    assert faults(read_back) == [None, None, None]
    tensor = read_back.tensors[0]
    assert (tensor.n_bytes, tensor.n_weights, tensor.n_rows, tensor.row_weights) == (0, 0, rows, ne[0])


@pytest.mark.case(55)
def test_an_empty_tensor_may_lie_past_the_end() -> None:
    assert faults(read(base(infos=[tensor_info("t", [4, 0], 0, 1 << 40)], data=b""))) == [None]


@pytest.mark.case(56)
@pytest.mark.parametrize("ne", [[31], [16, 2], [], [33, 32]])
def test_a_row_of_part_blocks_is_unreadable(ne: list[int]) -> None:
    data, read_back = beside_w(ne, 2, bytes(32), 32)
    assert faults(read_back) == ["partial-block-row", None]
    assert "Q4_0 blocks of 32 weights" in detail(read_back.tensors[0])
    assert weights(data, read_back, b"w") == F8


def two(first: int, second: int, size: int = 96) -> Header:
    infos = [tensor_info("a", [4, 2], 0, first), tensor_info("b", [4, 2], 0, second)]
    return read(base(infos=infos, data=bytes(size)))


@pytest.mark.case(59)
def test_a_gap_is_served_with_a_warning() -> None:
    read_back = two(0, 64)
    assert faults(read_back) == [None, None]
    assert read_back.warnings == ('32 bytes before tensor "b" at offset 64 belong to no tensor.',)


@pytest.mark.case(59)
def test_another_order_is_served_with_a_warning() -> None:
    read_back = two(32, 0)
    assert faults(read_back) == [None, None]
    assert [t.start - read_back.data_start for t in read_back.tensors] == [32, 0]
    assert len(read_back.warnings) == 1
    assert "not in the order of the table" in read_back.warnings[0]


@pytest.mark.case(59)
def test_two_tensors_at_one_offset_are_both_unreadable() -> None:
    read_back = two(0, 0)
    assert faults(read_back) == ["tensor-overlap", "tensor-overlap"]
    assert "2 tensors begin at byte" in detail(read_back.tensors[0])


@pytest.mark.case(59)
def test_of_two_that_overlap_the_later_is_served() -> None:
    assert faults(two(0, 16)) == ["tensor-overlap", None]
    assert faults(two(16, 0)) == [None, "tensor-overlap"]
    assert 'tensor "b" begins at' in detail(two(0, 16).tensors[0])


@pytest.mark.case(59)
def test_an_unaligned_offset_is_served_with_a_warning() -> None:
    data = base(infos=[tensor_info("w", [4, 2], 0, 4)], data=b"####" + F8)
    read_back = read(data)
    assert weights(data, read_back, b"w") == F8
    assert any("not a multiple of the alignment 32" in warning for warning in read_back.warnings)


def test_a_tensor_over_several_others_is_the_only_one_that_suffers() -> None:
    infos = [tensor_info("big", [4, 8], 0, 0), tensor_info("x", [8], 0, 32), tensor_info("y", [8], 0, 64)]
    assert faults(read(base(infos=infos, data=bytes(128)))) == ["tensor-overlap", None, None]


def test_a_tensor_past_the_end_leaves_the_ones_that_it_claims() -> None:
    infos = [tensor_info("vast", [4, 2**40], 0, 0), tensor_info("x", [8], 0, 32)]
    assert faults(read(base(infos=infos, data=bytes(64)))) == ["tensor-past-end-of-file", None]


def test_a_known_tensor_that_runs_into_an_unknown_one_is_unreadable() -> None:
    infos = [tensor_info("w", [4, 2], 0, 0), tensor_info("q", [4], 999, 16)]
    assert faults(read(base(infos=infos, data=bytes(64)))) == ["tensor-overlap", "unsupported-type"]


@pytest.mark.case(43)
def test_duplicate_names_are_listed_with_a_warning() -> None:
    data = base(infos=[tensor_info("w", [4, 2], 0, 0), tensor_info("w", [4, 2], 0, 32)], data=F8 + F8)
    read_back = read(data)
    assert [t.name for t in read_back.tensors] == [b"w", b"w"]
    assert faults(read_back) == [None, None]
    assert any('2 tensors are named "w"' in warning for warning in read_back.warnings)


@pytest.mark.case(61)
@pytest.mark.parametrize("type_", [t for t in GGMLType if info(t).decodable])
def test_big_endian_files_serve_the_types_that_have_a_known_order(type_: GGMLType) -> None:
    block = info(type_)
    data = build([("q", [block.block_weights], int(type_), bytes(block.block_bytes))], byte_order="big")
    (tensor,) = read(data).tensors
    assert (tensor.type, tensor.n_bytes, tensor.big_endian) == (type_, block.block_bytes, True)
    if type_ in BIG_ENDIAN_TYPES:
        assert tensor.readable
    else:
        assert tensor.fault is not None
        assert tensor.fault.slug == "unsupported-type"
        assert "big-endian" in detail(tensor)
        assert block.name in detail(tensor)
    little = build([("q", [block.block_weights], int(type_), bytes(block.block_bytes))])
    assert read(little).tensors[0].readable


@pytest.mark.case(61)
def test_big_endian_layout_of_the_table() -> None:
    layout = Layout("big", 3)
    infos = [tensor_info("a", [4, 2], 0, 0, layout), tensor_info("b", [3], 1, 32, layout)]
    read_back = read(base(infos=infos, data=bytes(38), layout=layout))
    assert [(t.ne, t.type, t.offset) for t in read_back.tensors] == [
        ((4, 2), GGMLType.F32, 0),
        ((3,), GGMLType.F16, 32),
    ]


@pytest.mark.case(66)
def test_sizes_above_4_gib() -> None:
    data = base(infos=[tensor_info("q", [32, 134_217_730], 8, 0)], data=b"")
    read_back = read(data, len(data) + 4_563_402_820)
    assert (read_back.tensors[0].n_bytes, faults(read_back)) == (4_563_402_820, [None])
    assert faults(read(data, len(data) + 4_563_402_819)) == ["tensor-past-end-of-file"]
