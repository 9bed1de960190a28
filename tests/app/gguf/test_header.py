"""The header: counts, keys, alignment, dimensions."""

import pytest

from app.gguf import KEY_LIMIT, TENSOR_LIMIT, BadHeader, ValueType
from tests.app.gguf.reading import array_of, faults, plain, read, weights
from tests.builder import (
    ARRAY,
    BOOL,
    F8,
    I32,
    STRING,
    U8,
    U32,
    U64,
    V3,
    array,
    base,
    header,
    kv,
    pad,
    raw_kv,
    string,
    tensor_info,
)


def test_base_is_what_it_says() -> None:
    data = base()
    assert len(data) == 160
    read_back = read(data)
    assert (read_back.alignment, read_back.header_bytes, read_back.data_start, read_back.file_size) == (
        32,
        110,
        128,
        160,
    )
    (entry,) = read_back.metadata
    assert (entry.key, entry.type, entry.value, entry.offset) == (
        b"general.architecture",
        ValueType.STRING,
        b"llama",
        24,
    )
    (tensor,) = read_back.tensors
    assert (tensor.name, tensor.ne, tensor.type_id, tensor.type_name) == (b"w", (4, 2), 0, "F32")
    assert (tensor.file, tensor.offset, tensor.start, tensor.n_weights, tensor.n_bytes) == (0, 0, 128, 8, 32)
    assert tensor.readable
    assert read_back.warnings == ()


@pytest.mark.case(27)
@pytest.mark.parametrize("alignment", [1, 2, 8, 32, 64, 4096])
def test_alignment_moves_the_data(alignment: int) -> None:
    data = base(entries=[kv("general.alignment", U32, alignment)], alignment=alignment)
    read_back = read(data)
    assert read_back.alignment == alignment
    assert read_back.data_start == len(data) - 32
    assert read_back.data_start - read_back.header_bytes < alignment
    assert weights(data, read_back, b"w") == F8


@pytest.mark.case(68)
@pytest.mark.parametrize("value", [0, 24, 33, 3])
def test_an_alignment_that_is_no_power_of_two_is_refused(value: int) -> None:
    with pytest.raises(BadHeader, match="power of two") as caught:
        read(base(entries=[kv("general.alignment", U32, value)]))
    assert caught.value.key == b"general.alignment"
    assert caught.value.offset == 24 + len(kv("general.architecture", STRING, "llama"))


@pytest.mark.case(68)
@pytest.mark.parametrize("entry", [kv("general.alignment", U64, 32), kv("general.alignment", STRING, "32")])
def test_an_alignment_of_another_type_is_refused(entry: bytes) -> None:
    with pytest.raises(BadHeader, match="must be a u32"):
        read(base(entries=[entry]))


@pytest.mark.case(68)
def test_a_vast_alignment_puts_the_data_past_the_end() -> None:
    read_back = read(base(entries=[kv("general.alignment", U32, 2**31)]))
    assert read_back.data_start == 2**31
    assert faults(read_back) == ["tensor-past-end-of-file"]


def test_two_alignments_must_be_the_same() -> None:
    same = [kv("general.alignment", U32, 64), kv("general.alignment", U32, 64)]
    assert read(base(entries=same, alignment=64)).alignment == 64
    with pytest.raises(BadHeader, match="given twice, as 64 and as 32"):
        read(base(entries=[kv("general.alignment", U32, 64), kv("general.alignment", U32, 32)]))


@pytest.mark.case(31)
def test_a_file_may_end_after_its_keys() -> None:
    data = header(0, 1) + kv("general.architecture", STRING, "llama")
    assert len(data) == 69
    read_back = read(data)
    assert read_back.tensors == ()
    assert (read_back.header_bytes, read_back.data_start) == (69, 96)


@pytest.mark.case(31)
def test_a_file_may_have_no_keys() -> None:
    data = pad(header(1, 0) + tensor_info("w", [4, 2], 0, 0)) + F8
    read_back = read(data)
    assert len(read_back.metadata) == 0
    assert weights(data, read_back, b"w") == F8


def test_a_file_may_have_nothing() -> None:
    assert read(header(0, 0)).tensors == ()


@pytest.mark.case(69)
def test_duplicate_keys_are_kept_in_order_with_a_warning() -> None:
    read_back = read(base(entries=[kv("general.architecture", STRING, "gpt2")]))
    assert [entry.value for entry in read_back.metadata.all(b"general.architecture")] == [b"llama", b"gpt2"]
    assert read_back.metadata.get(b"general.architecture") == b"llama"
    assert [entry.value for entry in read_back.metadata] == [b"llama", b"gpt2"]
    assert read_back.metadata.keys() == (b"general.architecture",)
    assert any('"general.architecture" occurs 2 times' in warning for warning in read_back.warnings)


def test_metadata_is_a_sequence_with_names() -> None:
    metadata = read(base(entries=[kv("n", U32, 7), kv("s", STRING, "x"), kv("b", BOOL, 1)])).metadata
    assert len(metadata) == 4
    assert metadata[1].value == 7
    assert [entry.key for entry in metadata[-2:]] == [b"s", b"b"]
    assert metadata.all(b"missing") == ()
    assert metadata.get(b"missing") is None
    assert metadata.get(b"missing", 5) == 5
    assert (metadata.integer(b"n"), metadata.integer(b"s"), metadata.integer(b"b")) == (7, None, None)


@pytest.mark.case(70)
def test_an_empty_key_is_served_with_a_warning() -> None:
    read_back = read(base(entries=[kv("", U32, 1)]))
    assert read_back.metadata.get(b"") == 1
    assert any("empty key" in warning for warning in read_back.warnings)


@pytest.mark.case(70)
def test_a_key_of_70000_bytes_is_served() -> None:
    read_back = read(base(entries=[kv("k" * 70_000, U32, 1)]))
    assert read_back.metadata.get(b"k" * 70_000) == 1
    assert any("(70,000 bytes)" in warning and len(warning) < 300 for warning in read_back.warnings)


@pytest.mark.case(71)
@pytest.mark.parametrize("name", [b"w\xff", b"\n", "a\u202eb".encode(), b"", b"a\0b", b"dense/kernel:0", b"x" * 300])
def test_names_of_any_bytes_are_kept(name: bytes) -> None:
    data = base(entries=[kv(b"bad\xff", U8, 1)], infos=[tensor_info(name, [4, 2], 0, 0)])
    read_back = read(data)
    assert read_back.metadata.get(b"bad\xff") == 1
    assert weights(data, read_back, name) == F8


@pytest.mark.case(42)
def test_long_names_that_differ_at_the_end_stay_apart_and_are_flagged() -> None:
    names = [b"n" * 63 + b"1", b"n" * 63 + b"2", b"m" * 300, b"k" * 63]
    infos = [tensor_info(name, [2], 0, 32 * place) for place, name in enumerate(names)]
    read_back = read(base(infos=infos, data=bytes(104)))
    assert [t.name for t in read_back.tensors] == names
    assert sum("ggml cannot load" in warning for warning in read_back.warnings) == 3


@pytest.mark.case(64)
def test_trailing_bytes_are_ignored() -> None:
    data = base() + b"GARBAGE" * 9
    assert read(data).warnings == ()
    assert weights(data, read(data), b"w") == F8


@pytest.mark.case(64)
@pytest.mark.parametrize("entry", [raw_kv("x", BOOL, b"\2"), raw_kv("x", ARRAY, V3.pack("IQ", BOOL, 3) + b"\0\1\xff")])
def test_odd_booleans_are_true_with_a_warning(entry: bytes) -> None:
    read_back = read(base(entries=[entry]))
    assert plain(read_back.metadata.get(b"x")) in (True, [False, True, True])
    assert any("neither 0 nor 1" in warning for warning in read_back.warnings)


def test_proper_booleans_bring_no_warning() -> None:
    read_back = read(base(entries=[kv("t", BOOL, 1), kv("f", BOOL, 0), kv("a", ARRAY, (BOOL, [0, 1]))]))
    assert [plain(entry.value) for entry in read_back.metadata[1:]] == [True, False, [False, True]]
    assert read_back.warnings == ()


@pytest.mark.case(63)
@pytest.mark.parametrize(
    "info",
    [
        tensor_info("w", [4, 2, 1, 1, 1], 0, 0),
        tensor_info("w", [4, 2], 0, 0, n_dims=0xFFFFFFFF),
        tensor_info("w", [4, 2], 0, 0, n_dims=5),
    ],
)
def test_more_than_four_dimensions_are_refused(info: bytes) -> None:
    with pytest.raises(BadHeader, match="at most 4") as caught:
        read(base(infos=[info]))
    assert caught.value.tensor == b"w"
    assert caught.value.offset == base(infos=[info]).index(info) + 9


@pytest.mark.case(74)
@pytest.mark.parametrize(
    "data",
    [
        header(0, 2**62),
        header(2**64 - 1, 0),
        header(2**62, 1) + kv("general.architecture", STRING, "llama"),
        header(0, 1) + V3.pack("Q", 2**63),
        header(0, 1) + V3.pack("Q", 2**64 - 1) + bytes(90),
        header(0, 1) + V3.pack("Q", 33 + 24) + bytes(32),
        header(1, 0) + V3.pack("Q", 2**63) + bytes(90),
        header(0, 2) + kv("a", U8, 1),
        header(2, 0) + tensor_info("w", [1], 0, 0),
    ],
)
def test_counts_and_lengths_that_the_file_cannot_hold(data: bytes) -> None:
    with pytest.raises(BadHeader, match=f"past the end of the file at {len(data)}") as caught:
        read(data)
    assert caught.value.offset is not None
    assert caught.value.offset <= len(data)


@pytest.mark.case(74)
def test_a_string_of_the_bytes_that_are_left_and_one_more() -> None:
    text = string("x" * 10)
    assert read(header(0, 1) + raw_kv("s", STRING, text)).metadata.get(b"s") == b"x" * 10
    with pytest.raises(BadHeader) as caught:
        read(header(0, 1) + raw_kv("s", STRING, V3.pack("Q", 11) + b"x" * 10))
    assert caught.value.key == b"s"


def test_limits_on_keys_and_tensors_are_named() -> None:
    with pytest.raises(BadHeader, match="KEY_LIMIT"):
        read(header(0, KEY_LIMIT + 1), 1 << 30)
    with pytest.raises(BadHeader, match="TENSOR_LIMIT"):
        read(header(TENSOR_LIMIT + 1, 0), 1 << 30)


@pytest.mark.case(76)
@pytest.mark.parametrize("type_id", [13, 0x80000000, 0xFFFFFFFF])
def test_an_unknown_value_type_is_refused_with_key_and_offset(type_id: int) -> None:
    data = header(0, 1) + raw_kv("x", type_id, bytes(4))
    with pytest.raises(BadHeader, match=f"value type {type_id} is unknown") as caught:
        read(data)
    assert (caught.value.key, caught.value.offset) == (b"x", 33)


@pytest.mark.case(76)
def test_an_unknown_type_inside_an_array_is_refused() -> None:
    data = header(0, 1) + raw_kv("x", ARRAY, V3.pack("IQ", 13, 1) + b"\7")
    with pytest.raises(BadHeader, match="value type 13 is unknown") as caught:
        read(data)
    assert (caught.value.key, caught.value.offset) == (b"x", 37)


@pytest.mark.case(41)
def test_an_original_shape_is_shown_beside_the_stored_one() -> None:
    key = "comfy.gguf.orig_shape.w"
    (tensor,) = read(base(entries=[kv(key, ARRAY, (I32, [8, 1]))])).tensors
    assert (tensor.ne, tensor.original_shape) == ((4, 2), (8, 1))
    (untouched,) = read(base()).tensors
    assert untouched.original_shape is None


@pytest.mark.case(41)
@pytest.mark.parametrize(
    "entry",
    [
        kv("comfy.gguf.orig_shape.w", ARRAY, (I32, [2, 8, 1])),
        kv("comfy.gguf.orig_shape.w", ARRAY, (I32, [-8, -1])),
        kv("comfy.gguf.orig_shape.w", STRING, "8, 1"),
        kv("comfy.gguf.orig_shape.w", ARRAY, (STRING, ["8"])),
        kv("comfy.gguf.orig_shape.w", ARRAY, (U8, [1] * 33)),
    ],
)
def test_an_original_shape_that_does_not_fit_is_reported_and_not_applied(entry: bytes) -> None:
    read_back = read(base(entries=[entry]))
    assert read_back.tensors[0].original_shape is None
    assert any("original shape" in warning for warning in read_back.warnings)


def test_warnings_are_bounded_in_number_and_length() -> None:
    infos = [tensor_info(b"\n" * 500 + b"%d" % n, [1], 0, 64 * n + 1) for n in range(100)]
    warnings = read(base(infos=infos, data=bytes(64 * 100))).warnings
    assert len(warnings) < 25
    assert all(len(warning) < 600 and "\n" not in warning for warning in warnings)
    assert any(warning.startswith("And 95 more") for warning in warnings)


def test_the_data_is_not_read() -> None:
    data = pad(header(1, 0) + tensor_info("w", [1 << 30], 0, 0))
    read_back = read(data, len(data) + (4 << 30))
    assert faults(read_back) == [None]
    assert read_back.memory_bytes < 10_000


def test_an_array_outlives_the_file() -> None:
    read_back = read(base(entries=[kv("a", ARRAY, (STRING, ["x", "yy"])), raw_kv("n", ARRAY, array(U8, [3, 4]))]))
    assert list(array_of(read_back, b"a")) == [b"x", b"yy"]
    assert list(array_of(read_back, b"n")) == [3, 4]
