"""Typed values and arrays."""

import math
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.gguf import INNER_ARRAY_LIMIT, STRING_LIMIT, Array, BadHeader, ValueType
from tests.app.gguf.reading import array_of, plain, read
from tests.builder import (
    ARRAY,
    BOOL,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    STRING,
    U8,
    U16,
    U32,
    U64,
    V3,
    Layout,
    array,
    header,
    kv,
    raw_kv,
    string,
)

LAYOUTS = [Layout(byte_order, version) for byte_order in ("little", "big") for version in (1, 3)]
EXTREMES: dict[int, list[object]] = {
    U8: [0, 255],
    I8: [-128, 127],
    U16: [0, 65535, 258],
    I16: [-32768, 32767],
    U32: [0, 2**32 - 1, 66051],
    I32: [-(2**31), 2**31 - 1],
    F32: [0.0, -1.5, math.inf, 2.0**-149],
    BOOL: [True, False],
    U64: [0, 2**64 - 1],
    I64: [-(2**63), 2**63 - 1],
    F64: [1e300, -0.1, -math.inf],
    STRING: [b"", b"text", b"\xff\xfe", b"a\0b"],
}


def one(entry: bytes, layout: Layout = V3) -> object:
    return plain(read(header(0, 1, layout) + entry).metadata[0].value)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("value_type", EXTREMES)
def test_every_type_alone_and_in_an_array(value_type: int, layout: Layout) -> None:
    values = EXTREMES[value_type]
    for value in values:
        got = one(kv("x", value_type, value, layout), layout)
        assert got == value
        assert type(got) is type(value)
    got = one(kv("x", ARRAY, (value_type, values), layout), layout)
    assert got == values
    assert isinstance(got, list)
    assert [type(item) for item in got] == [type(value) for value in values]


def test_labels() -> None:
    assert [value_type.label for value_type in ValueType] == [
        "u8",
        "i8",
        "u16",
        "i16",
        "u32",
        "i32",
        "f32",
        "bool",
        "string",
        "array",
        "u64",
        "i64",
        "f64",
    ]


@pytest.mark.case(17)
def test_strings_are_raw_bytes() -> None:
    tokens = [bytes.fromhex("fffe"), bytes.fromhex("e296"), bytes.fromhex("610062")]
    assert one(kv("tokenizer.ggml.tokens", ARRAY, (STRING, tokens))) == tokens


@pytest.mark.case(20)
@pytest.mark.parametrize(("element_type", "label"), [(STRING, "string"), (U32, "u32"), (ARRAY, "array")])
def test_empty_arrays_keep_their_type(element_type: int, label: str) -> None:
    empty = array_of(read(header(0, 1) + kv("general.tags", ARRAY, (element_type, []))), b"general.tags")
    assert (len(empty), empty.element_type.label, empty.nbytes, empty[:]) == (0, label, 0, [])
    with pytest.raises(IndexError, match="index 0 is outside of an array of 0"):
        empty[0]


@pytest.mark.case(77)
def test_nested_arrays() -> None:
    nested = array_of(
        read(header(0, 1) + kv("x", ARRAY, (ARRAY, [(U32, [7]), (U32, [8, 9]), (STRING, ["a"]), (U8, [])]))), b"x"
    )
    assert plain(nested) == [[7], [8, 9], [b"a"], []]
    assert (nested.nesting, nested.nbytes) == (2, 4 * 12 + 12 + 9)
    inner = nested[-2]
    assert isinstance(inner, Array)
    assert (inner.element_type, inner.nesting, inner[0]) == (ValueType.STRING, 1, b"a")
    assert [plain(item) for item in nested[::-2]] == [[], [8, 9]]


def nest(levels: int) -> bytes:
    return V3.pack("IQ", ARRAY, 1) * (levels - 1) + array(U8, [5])


@pytest.mark.case(77)
def test_eight_levels_are_read_and_nine_are_not() -> None:
    deep = array_of(read(header(0, 1) + raw_kv("x", ARRAY, nest(8))), b"x")
    assert deep.nesting == 8
    assert plain(deep) == [[[[[[[[5]]]]]]]]
    for levels in (9, 5000):
        with pytest.raises(BadHeader, match="NESTING_LIMIT") as caught:
            read(header(0, 1) + raw_kv("x", ARRAY, nest(levels)))
        assert caught.value.key == b"x"


@pytest.mark.case(75)
@pytest.mark.parametrize(
    "value",
    [
        V3.pack("IQ", U32, 2**63),
        V3.pack("IQ", U32, 2**62),
        V3.pack("IQ", F64, 2**61),
        V3.pack("IQ", STRING, 2**31) + bytes(8),
        V3.pack("IQ", STRING, 2**61),
        V3.pack("IQ", U8, 11) + bytes(10),
        V3.pack("IQ", BOOL, 2**64 - 1) + bytes(10),
        V3.pack("IQ", ARRAY, 2**40) + bytes(90),
        array(STRING, ["a", "b"], count=3),
        array(STRING, ["a"], count=2) + V3.pack("Q", 2**63),
        array(STRING, ["a"], count=2) + V3.pack("Q", 2**64 - 1),
        array(STRING, ["a" * 30] * 200, count=201) + V3.pack("Q", 9) + bytes(8),
        array(ARRAY, [(U8, [1])], count=2) + V3.pack("IQ", U8, 2) + b"1",
    ],
)
def test_array_lengths_that_the_file_cannot_hold(value: bytes) -> None:
    data = header(0, 1) + raw_kv("x", ARRAY, value)
    with pytest.raises(BadHeader, match="past the end of the file") as caught:
        read(data)
    assert caught.value.offset is not None
    assert caught.value.offset <= len(data)


@pytest.mark.case(75)
def test_a_lying_string_in_an_array_is_named_by_its_index() -> None:
    value = array(STRING, ["token"] * 100, count=102) + V3.pack("Q", 2**40) + bytes(50)
    with pytest.raises(BadHeader, match="element 100, a string of 1099511627776 bytes") as caught:
        read(header(0, 1) + raw_kv("x", ARRAY, value))
    assert caught.value.key == b"x"
    assert caught.value.offset == 24 + 9 + 4 + 12 + 100 * 13


def test_limits_on_elements_are_named() -> None:
    with pytest.raises(BadHeader, match="STRING_LIMIT"):
        read(header(0, 1) + raw_kv("x", ARRAY, V3.pack("IQ", STRING, STRING_LIMIT + 1)), 1 << 30)
    with pytest.raises(BadHeader, match="INNER_ARRAY_LIMIT"):
        read(header(0, 1) + raw_kv("x", ARRAY, V3.pack("IQ", ARRAY, INNER_ARRAY_LIMIT + 1)), 1 << 30)
    with pytest.raises(BadHeader, match="HEADER_LIMIT"):
        read(header(0, 1) + raw_kv("x", ARRAY, V3.pack("IQ", U8, 300 << 20)), 1 << 30)


def test_the_limit_on_strings_counts_all_arrays() -> None:
    half = raw_kv("x", ARRAY, array(STRING, [], count=0))
    entries = half + raw_kv("y", ARRAY, V3.pack("IQ", STRING, STRING_LIMIT + 1))
    with pytest.raises(BadHeader, match="STRING_LIMIT") as caught:
        read(header(0, 2) + entries, 1 << 30)
    assert caught.value.key == b"y"


@settings(deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=300), st.sampled_from(LAYOUTS), st.data())
def test_string_arrays_index_as_lists(items: list[bytes], layout: Layout, data: st.DataObject) -> None:
    strings = array_of(read(header(0, 1, layout) + kv("x", ARRAY, (STRING, items), layout)), b"x")
    assert list(strings) == items
    assert strings.nbytes == sum(len(string(item, layout)) for item in items)
    cut = data.draw(st.slices(len(items)))
    assert strings[cut] == items[cut]
    if items:
        place = data.draw(st.integers(-len(items), len(items) - 1))
        assert strings[place] == items[place]
    for outside in (len(items), -len(items) - 1):
        with pytest.raises(IndexError):
            strings[outside]


@settings(deadline=None)
@given(
    st.sampled_from([(U8, "B"), (I16, "h"), (U32, "I"), (I64, "q"), (F32, "f"), (F64, "d")]),
    st.binary(max_size=64),
    st.sampled_from(LAYOUTS),
    st.data(),
)
def test_number_arrays_index_as_lists(
    kind: tuple[int, str], content: bytes, layout: Layout, data: st.DataObject
) -> None:
    element_type, code = kind
    count = len(content) // struct.calcsize("<" + code)
    content = content[: count * struct.calcsize("<" + code)]
    items = list(struct.unpack(("<" if layout.byte_order == "little" else ">") + code * count, content))
    value = layout.pack("IW", element_type, count) + content
    numbers = array_of(read(header(0, 1, layout) + raw_kv("x", ARRAY, value, layout)), b"x")
    assert len(numbers) == count
    assert repr(list(numbers)) == repr(items)
    cut = data.draw(st.slices(count))
    assert repr(numbers[cut]) == repr(items[cut])


def test_strings_of_all_sizes_cross_the_reads() -> None:
    items = [b"s" * n for n in (0, 1, 70_000, 3, 200_000, 5, 1_000_000)] * 3 + [b"t"] * 1000
    strings = array_of(read(header(0, 1) + kv("x", ARRAY, (STRING, items))), b"x")
    assert list(strings) == items
    assert strings[-1] == b"t"


@pytest.mark.case(7)
def test_a_large_vocabulary_is_indexed_and_not_built() -> None:
    count = 262_144
    tokens = array(STRING, [b"t%06d" % n for n in range(count)])
    scores = array(F32, [0.0] * count)
    read_back = read(header(0, 2) + raw_kv("tokens", ARRAY, tokens) + raw_kv("scores", ARRAY, scores))
    strings = array_of(read_back, b"tokens")
    assert (len(strings), strings[0], strings[131_071], strings[-1]) == (count, b"t000000", b"t131071", b"t262143")
    assert strings[100:103] == [b"t000100", b"t000101", b"t000102"]
    assert strings[::65_536] == [b"t000000", b"t065536", b"t131072", b"t196608"]
    assert array_of(read_back, b"scores")[-2:] == [0.0, 0.0]
    assert read_back.memory_bytes < 1.05 * (len(tokens) + len(scores))
