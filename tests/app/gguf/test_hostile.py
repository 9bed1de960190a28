"""Damaged files: only a `GGUFError` comes out, and the memory stays near the size of the file."""

import os
import random
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.gguf import GGUFError, Header, read_header
from tests.app.gguf.reading import file_of, plain, read
from tests.builder import (
    ARRAY,
    BOOL,
    F8,
    F64,
    I16,
    STRING,
    U8,
    U32,
    V3,
    ByteOrder,
    array,
    build,
    header,
    kv,
    raw_kv,
    tensor_info,
)

METADATA: list[tuple[str, int, object]] = [
    ("general.architecture", STRING, "llama"),
    ("general.alignment", U32, 32),
    ("flag", BOOL, 1),
    ("tokens", ARRAY, (STRING, [f"token {n}" for n in range(70)])),
    ("scores", ARRAY, (F64, [0.5, -1.0])),
    ("nested", ARRAY, (ARRAY, [(I16, [1, 2]), (STRING, ["x", ""])])),
    ("comfy.gguf.orig_shape.w", ARRAY, (U32, [2, 2, 2])),
]
TENSORS = [("w", [4, 2], 0, F8), ("q", [32, 2], 2, bytes(36)), ("m", [32], 39, bytes(17)), ("s", [], 0, bytes(4))]
ORDERS: tuple[ByteOrder, ...] = ("little", "big")
SEEDS = [build(TENSORS, METADATA, version=version, byte_order=order) for version in (1, 2, 3) for order in ORDERS]


def use(header_: Header) -> None:
    """Touch everything that a caller could."""
    for entry in header_.metadata:
        plain(entry.value)
    for tensor in header_.tensors:
        assert tensor.readable == (tensor.fault is None)
        assert tensor.n_rows * tensor.row_weights == tensor.n_weights
        if tensor.readable:
            assert tensor.n_bytes is not None
            assert tensor.n_bytes == 0 or tensor.start + tensor.n_bytes <= header_.file_size
    assert len(header_.warnings) < 60
    assert all(len(line) < 2000 and line.isprintable() for line in header_.warnings)


def survives(data: bytes) -> None:
    try:
        read_back = read(data)
    except GGUFError as error:
        message = str(error)
    else:
        message = ""
        use(read_back)
    assert message == "" or (message.isprintable() and len(message) < 1000)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_undamaged_files_are_whole(seed: bytes) -> None:
    read_back = read(seed)
    assert all(t.readable for t in read_back.tensors)
    assert read_back.warnings == ()
    use(read_back)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_truncation(seed: bytes) -> None:
    for length in range(0, len(seed), 3):
        survives(seed[:length])


@settings(deadline=None)
@given(st.sampled_from(SEEDS), st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=1, max_size=8))
def test_flipped_bytes(seed: bytes, changes: list[tuple[int, int]]) -> None:
    data = bytearray(seed)
    for place, value in changes:
        data[place % len(data)] = value
    survives(bytes(data))


@settings(deadline=None)
@given(
    st.sampled_from(SEEDS),
    st.integers(0, 2**16),
    st.sampled_from([b"\xff" * 8, bytes(8), b"\xff\xff\xff\x7f", b"\0\0\0\0\0\0\0\x80", b"\x7f" + bytes(7)]),
)
def test_counts_overwritten(seed: bytes, place: int, value: bytes) -> None:
    place %= len(seed)
    survives(seed[:place] + value + seed[place + len(value) :])


@settings(deadline=None)
@given(st.sampled_from(SEEDS), st.integers(0, 2**16), st.binary(max_size=40), st.integers(0, 40))
def test_bytes_cut_out_and_put_in(seed: bytes, place: int, added: bytes, removed: int) -> None:
    place %= len(seed)
    survives(seed[:place] + added + seed[place + removed :])


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_anything_after_the_magic(rest: bytes) -> None:
    survives(b"GGUF\3\0\0\0" + rest)


def test_memory_of_damaged_files_is_bounded() -> None:
    chance = random.Random(7)
    tracemalloc.start()
    try:
        for _ in range(400):
            data = bytearray(chance.choice(SEEDS))
            for _ in range(chance.randint(1, 6)):
                data[chance.randrange(len(data))] = chance.choice((0, 1, 127, 128, 255))
            survives(bytes(data))
        assert tracemalloc.get_traced_memory()[1] < 2 << 20
    finally:
        tracemalloc.stop()


HUGE = 2**62
LIES = {
    "entries": header(0, HUGE),
    "tensors": header(HUGE, 0),
    "entries in a hole": header(0, 60_000_000),
    "key": header(0, 1) + V3.pack("Q", HUGE),
    "string": header(0, 1) + raw_kv("x", STRING, V3.pack("Q", 1 << 33)),
    "numbers": header(0, 1) + raw_kv("x", ARRAY, V3.pack("IQ", U8, 1 << 33)),
    "strings": header(0, 1) + raw_kv("x", ARRAY, V3.pack("IQ", STRING, 1 << 30)),
    "arrays": header(0, 1) + raw_kv("x", ARRAY, V3.pack("IQ", ARRAY, 1 << 29)),
    "long string in strings": header(0, 1) + raw_kv("x", ARRAY, array(STRING, ["a"], count=2) + V3.pack("Q", 1 << 33)),
    "long array in arrays": header(0, 1)
    + raw_kv("x", ARRAY, array(ARRAY, [(U8, [1])], count=2) + V3.pack("IQ", F64, 1 << 30)),
    "name": header(1, 0) + V3.pack("Q", 1 << 33),
}


@pytest.mark.case(74, 75)
@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("size", [None, 16 << 30])
def test_a_lie_costs_nothing_even_when_a_hole_makes_it_true(lie: str, size: int | None) -> None:
    with file_of(LIES[lie], size) as fd:
        tracemalloc.start()
        try:
            with pytest.raises(GGUFError):
                read_header(fd)
            assert tracemalloc.get_traced_memory()[1] < 1 << 20
        finally:
            tracemalloc.stop()


@pytest.mark.case(69, 70)
def test_many_keys_tensors_and_arrays_are_no_trouble() -> None:
    keys = b"".join(kv("same", U8, 1) for _ in range(20_000))
    tensors = b"".join(tensor_info(b"t%d" % (n % 50), [32], 2, n) for n in range(20_000))
    read_back = read(header(20_000, 20_000) + keys + tensors, 1 << 24)
    assert len(read_back.metadata.all(b"same")) == 20_000
    assert len(read_back.tensors) == 20_000
    use(read_back)


def test_nested_arrays_of_many_tiny_arrays_read_in_one_go() -> None:
    inner = array(ARRAY, [(STRING, ["a"])] * 2000)
    value = V3.pack("IQ", ARRAY, 20) + inner * 20
    read_back = read(header(0, 1) + raw_kv("x", ARRAY, value))
    assert plain(read_back.metadata.get(b"x")) == [[[b"a"]] * 2000] * 20


def test_a_file_that_shrinks_while_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.gguf._cursor.os.preadv", lambda *_: 0)
    with pytest.raises(GGUFError, match="shrank to 0 bytes"):
        read(SEEDS[0])


def test_short_reads_are_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.preadv
    monkeypatch.setattr("app.gguf._cursor.os.preadv", lambda fd, views, at: whole(fd, [views[0][:7]], at))
    use(read(SEEDS[0]))


def test_an_error_of_the_system_passes_through() -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        read_header(2**20)
