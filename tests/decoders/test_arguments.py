"""What `dequantize` accepts and refuses, whatever the format."""

from __future__ import annotations

import array
import pickle
from typing import Any

import numpy as np
import pytest

from decoders import (
    BadBlockLength,
    BadBuffer,
    BlockFormat,
    DecoderError,
    GGMLType,
    UnsupportedType,
    byteswap,
    dequantize,
    info,
    unpack_ternary_2bit,
)
from decoders._blocks import CHUNK_WEIGHTS

from .helpers import DECODABLE, REMOVED, assert_same_bits, make_blocks

_RAW = make_blocks(GGMLType.Q4_0, 6, "random")
_EXPECTED = dequantize(_RAW, GGMLType.Q4_0)


@pytest.mark.case(54)
@pytest.mark.parametrize("type_", REMOVED, ids=lambda type_: type_.name)
def test_removed_types_are_known_by_name_and_refused(type_: GGMLType) -> None:
    assert info(type_) == BlockFormat(type_.name, 0, 0, decodable=False)
    with pytest.raises(UnsupportedType, match=rf"{int(type_)} \({type_.name}\)") as caught:
        dequantize(b"", type_)
    assert (caught.value.type, caught.value.name) == (int(type_), type_.name)


def test_removed_types_are_ggmls_eight() -> None:
    assert [int(type_) for type_ in REMOVED] == [4, 5, 31, 32, 33, 36, 37, 38]
    assert len(DECODABLE) == 35


@pytest.mark.parametrize("type_", [-1, 43, 133, 2**31, 2**32 - 1])
def test_unknown_ids_are_refused_by_every_function(type_: int) -> None:
    for call in (lambda: info(type_), lambda: dequantize(b"", type_), lambda: byteswap(b"", type_)):
        with pytest.raises(UnsupportedType, match=str(type_)) as caught:
            call()
        assert (caught.value.type, caught.value.name) == (type_, None)


@pytest.mark.parametrize("type_", DECODABLE, ids=lambda type_: type_.name)
def test_a_partial_block_is_refused_with_both_numbers(type_: GGMLType) -> None:
    size = info(type_).block_bytes
    if size == 1:
        assert dequantize(bytes(3), type_).size == 3
        return
    with pytest.raises(BadBlockLength, match=f"{3 * size - 1} bytes .* {size} bytes") as caught:
        dequantize(bytes(3 * size - 1), type_)
    error = caught.value
    assert (error.name, error.length, error.block, error.unit) == (type_.name, 3 * size - 1, size, "bytes")


@pytest.mark.parametrize("type_", DECODABLE, ids=lambda type_: type_.name)
def test_no_blocks_give_no_weights(type_: GGMLType) -> None:
    for empty in (b"", bytearray(), memoryview(b""), np.empty(0, np.uint8)):
        decoded = dequantize(empty, type_)
        assert decoded.dtype == np.float32
        assert decoded.shape == (0,)


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview, np.array], ids=lambda wrap: wrap.__name__)
def test_any_bytes_like_object_is_read(wrap: Any) -> None:
    assert_same_bits(dequantize(wrap(_RAW), GGMLType.Q4_0), _EXPECTED)


def test_a_view_of_wider_items_is_read_as_its_bytes() -> None:
    words = memoryview(array.array("H", _RAW.tobytes()))
    assert_same_bits(dequantize(words, GGMLType.Q4_0), _EXPECTED)


def test_a_read_only_two_dimensional_array_is_read() -> None:
    blocks = _RAW.reshape(6, 18)
    blocks.flags.writeable = False
    assert_same_bits(dequantize(blocks, GGMLType.Q4_0), _EXPECTED)


@pytest.mark.parametrize("type_", DECODABLE, ids=lambda type_: type_.name)
def test_data_may_start_at_any_address(type_: GGMLType) -> None:
    raw = make_blocks(type_, 67, "random")
    aligned = dequantize(raw, type_)
    room = np.empty(raw.size + 8, np.uint8)
    for offset in range(1, 8):
        shifted = room[offset : offset + raw.size]
        shifted[:] = raw
        assert_same_bits(dequantize(shifted, type_), aligned)


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (np.zeros(36, np.float32), "float32"),
        (np.zeros(36, np.int8), "int8"),
        (np.zeros(72, np.uint8)[::2], "strided"),
        (np.zeros((18, 4), np.uint8).T, "strided"),
        (memoryview(bytes(72))[::2], "strided"),
    ],
)
def test_data_that_would_need_a_copy_is_refused(data: Any, found: str) -> None:
    for call in (
        lambda: dequantize(data, GGMLType.Q4_0),
        lambda: byteswap(data, GGMLType.Q4_0),
        lambda: unpack_ternary_2bit(data),
    ):
        with pytest.raises(BadBuffer, match=found) as caught:
            call()
        assert caught.value.argument == "data"


def test_data_that_is_not_bytes_at_all_is_a_type_error() -> None:
    with pytest.raises(TypeError):
        dequantize("text", GGMLType.Q4_0)  # type: ignore[arg-type]


@pytest.mark.parametrize("type_", DECODABLE, ids=lambda type_: type_.name)
def test_out_is_filled_in_place_and_nothing_beside_it(type_: GGMLType) -> None:
    raw = make_blocks(type_, 5, "random")
    expected = dequantize(raw, type_)
    room = np.full(expected.size + 2, 7, np.float32)
    decoded = dequantize(raw, type_, out=room[1:-1])
    assert np.shares_memory(decoded, room)
    assert_same_bits(room[1:-1], expected)
    assert room[0] == room[-1] == 7


def test_out_of_any_contiguous_shape_is_filled_in_order() -> None:
    out = np.empty((2, 3, 32), np.float32)
    decoded = dequantize(_RAW, GGMLType.Q4_0, out=out)
    assert decoded.shape == (192,)
    assert_same_bits(out.reshape(-1), _EXPECTED)


def test_out_may_be_at_an_odd_address() -> None:
    out = np.empty(192 * 4 + 1, np.uint8)[1:].view(np.float32)
    for type_ in DECODABLE:
        raw = make_blocks(type_, 192 * 4 // info(type_).block_weights, "edge")
        expected = dequantize(raw, type_)
        if expected.size > out.size:
            out = np.empty(expected.size * 4 + 1, np.uint8)[1:].view(np.float32)
        assert_same_bits(dequantize(raw, type_, out=out[: expected.size]).copy(), expected)


@pytest.mark.parametrize("beyond", [-1, 0, 1])
@pytest.mark.parametrize("type_", DECODABLE, ids=lambda type_: type_.name)
def test_blocks_decode_the_same_wherever_a_chunk_ends(type_: GGMLType, beyond: int) -> None:
    block = info(type_)
    n = CHUNK_WEIGHTS // block.block_weights + beyond
    raw = make_blocks(type_, n, "random")
    cut = n // 3
    parts = [dequantize(part, type_) for part in (raw[: cut * block.block_bytes], raw[cut * block.block_bytes :])]
    assert_same_bits(dequantize(raw, type_), np.concatenate(parts))


def _read_only(size: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    out = np.empty(size, np.float32)
    out.flags.writeable = False
    return out


@pytest.mark.parametrize(
    ("out", "found"),
    [
        (np.empty(191, np.float32), "191"),
        (np.empty(193, np.float32), "193"),
        (np.empty(192, np.float64), "float64"),
        (np.empty(192, ">f4" if np.little_endian else "<f4"), "f4"),
        (np.empty(384, np.float32)[::2], "strided"),
        (np.empty((32, 6), np.float32).T, "strided"),
        (_read_only(192), "read-only"),
        (bytearray(768), "bytearray"),
    ],
)
def test_an_unusable_out_is_refused(out: Any, found: str) -> None:
    with pytest.raises(BadBuffer, match=f"^out must be .*{found}") as caught:
        dequantize(_RAW, GGMLType.Q4_0, out=out)
    assert caught.value.argument == "out"


def test_out_that_overlaps_data_is_refused() -> None:
    room = np.zeros(192, np.float32)
    with pytest.raises(BadBuffer, match="shares its memory"):
        dequantize(room.view(np.uint8)[: _RAW.size], GGMLType.Q4_0, out=room)


@pytest.mark.parametrize(
    "error",
    [
        UnsupportedType(4, "Q4_2", "is gone"),
        BadBlockLength("Q4_0", 17, 18, "bytes"),
        BadBuffer("out", "float32", "float64"),
    ],
)
def test_errors_are_one_tree_of_value_errors_that_pickle(error: DecoderError) -> None:
    assert isinstance(error, DecoderError)
    assert isinstance(error, ValueError)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (str(again), vars(again)) == (str(error), vars(error))
