"""Blocks small enough to decode by hand, and the types that ggml itself never decodes."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoders import GGMLType, dequantize
from decoders._k import scales_and_minimums

from .helpers import assert_same_bits, make_blocks


def _floats(values: list[float]) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.array(values, np.float32)


def test_q8_0_is_scale_times_signed_byte() -> None:
    block = struct.pack("<e32b", 0.5, 2, -3, 127, -128, *[0] * 28)
    assert_same_bits(dequantize(block, GGMLType.Q8_0), _floats([1, -1.5, 63.5, -64] + [0] * 28))


def test_q4_0_has_its_low_nibbles_first() -> None:
    block = struct.pack("<e16B", 2, 0x9F, *[0x88] * 15)
    expected = np.zeros(32, np.float32)
    expected[0], expected[16] = 14, 2
    assert_same_bits(dequantize(block, GGMLType.Q4_0), expected)


def test_q4_1_rounds_once_when_it_adds_the_minimum() -> None:
    block = struct.pack("<2e16B", 1, 2**-24, 15, *[0] * 15)
    assert_same_bits(dequantize(block, GGMLType.Q4_1), _floats([15] + [2**-24] * 31))


@pytest.mark.case(30)
def test_infinite_scale_times_zero_is_nan() -> None:
    block = bytes([0x00, 0x7C]) + bytes([0x88] * 16)
    assert np.isnan(dequantize(block, GGMLType.Q4_0)).all()


@pytest.mark.case(8)
def test_mxfp4_low_nibbles_are_the_first_half_of_the_block() -> None:
    decoded = dequantize(bytes([0x7F] + [0x21] * 16), GGMLType.MXFP4)
    assert_same_bits(decoded, _floats([0.5] * 16 + [1] * 16))


@pytest.mark.parametrize(("e", "scale"), [(0, 2.0**-128), (1, 2.0**-127), (2, 2.0**-126), (255, 2.0**127)])
def test_mxfp4_scale_at_the_ends_of_its_range(e: int, scale: float) -> None:
    decoded = dequantize(bytes([e] + [0x81] * 16), GGMLType.MXFP4)
    assert_same_bits(decoded, _floats([scale] * 16 + [0] * 16))


def test_6_bit_scales_and_minimums_are_put_together() -> None:
    packed = np.array([[193, 2, 3, 63, 68, 5, 6, 7, 90, 0, 0, 0]], np.uint8)
    scales, minimums = scales_and_minimums(packed)
    assert (scales[0, 0], minimums[0, 0]) == (1, 4)
    assert (scales[0, 4], minimums[0, 4]) == (58, 21)


@given(st.lists(st.tuples(st.integers(0, 63), st.integers(0, 63)), min_size=8, max_size=8))
def test_6_bit_scales_and_minimums_come_back_as_packed(pairs: list[tuple[int, int]]) -> None:
    packed = np.zeros((1, 12), np.uint8)
    for s, (scale, minimum) in enumerate(pairs):
        if s < 4:
            packed[0, s] |= scale
            packed[0, s + 4] |= minimum
        else:
            packed[0, s + 4] |= scale & 15 | (minimum & 15) << 4
            packed[0, s - 4] |= scale >> 4 << 6
            packed[0, s] |= minimum >> 4 << 6
    scales, minimums = scales_and_minimums(packed)
    assert list(zip(scales[0].tolist(), minimums[0].tolist(), strict=True)) == pairs


def test_q8_1_skips_its_sum() -> None:
    block = struct.pack("<2e32b", -0.25, 99, *range(-16, 16))
    assert_same_bits(dequantize(block, GGMLType.Q8_1), _floats([-0.25 * q for q in range(-16, 16)]))


@pytest.mark.parametrize("n", [1, 2, 255, 4097])
def test_q8_1_decodes_as_q8_0_without_the_sum(n: int) -> None:
    raw = make_blocks(GGMLType.Q8_1, n, "edge").reshape(n, 36)
    without = np.ascontiguousarray(np.delete(raw, [2, 3], axis=1))
    assert_same_bits(dequantize(raw, GGMLType.Q8_1), dequantize(without, GGMLType.Q8_0))


def test_f32_keeps_every_bit() -> None:
    raw = make_blocks(GGMLType.F32, 5000, "edge")
    assert_same_bits(dequantize(raw, GGMLType.F32), raw.view("<f4").astype(np.float32))


@pytest.mark.case(30)
def test_f16_specials() -> None:
    raw = bytes.fromhex("007e 007c 00fc 0100 0080 ff7b")
    expected = _floats([np.nan, np.inf, -np.inf, 2**-24, -0.0, 65504])
    assert_same_bits(dequantize(raw, GGMLType.F16), expected)


@pytest.mark.case(29)
def test_bf16_specials() -> None:
    decoded = dequantize(bytes.fromhex("803f 00c0 c07f 80ff 0100 0080"), GGMLType.BF16)
    bits = [0x3F800000, 0xC0000000, 0x7FC00000, 0xFF800000, 0x00010000, 0x80000000]
    assert decoded.view(np.uint32).tolist() == bits


@pytest.mark.case(36)
@pytest.mark.parametrize(
    ("type_", "raw", "expected"),
    [
        (GGMLType.I8, bytes.fromhex("ff007f80"), [-1, 0, 127, -128]),
        (GGMLType.I16, struct.pack("<3h", -32768, 32767, 1), [-32768, 32767, 1]),
        (GGMLType.I32, struct.pack("<2i", 16777217, -(2**31)), [16777216, -(2**31)]),
        (GGMLType.I64, struct.pack("<2q", 2**53 + 1, -(2**63)), [2**53, -(2**63)]),
        (GGMLType.F64, struct.pack("<4d", 1e300, 0.1, -0.0, 1e-300), [np.inf, np.float32(0.1), -0.0, 0]),
    ],
)
def test_plain_numbers_are_rounded_to_float32(type_: GGMLType, raw: bytes, expected: list[float]) -> None:
    assert_same_bits(dequantize(raw, type_), _floats(expected))
