"""Ternary quantizers: bit for bit as ggml's, and the plain-order packing, both ways."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import ArrayLike, NDArray

from decoders import (
    BadBlockLength,
    BadBuffer,
    GGMLType,
    dequantize,
    pack_ternary_2bit,
    quantize_tq1_0,
    quantize_tq2_0,
    unpack_ternary_2bit,
)

from .helpers import assert_same_bits, ggml_quantize

_Pack = Callable[[ArrayLike], NDArray[np.uint8]]
_Unpack = Callable[[Any], NDArray[np.float32]]

_QUANTIZERS = {GGMLType.TQ1_0: quantize_tq1_0, GGMLType.TQ2_0: quantize_tq2_0}
_PACKERS: dict[str, tuple[_Pack, _Unpack, int]] = {
    "TQ1_0": (quantize_tq1_0, lambda blocks: dequantize(blocks, GGMLType.TQ1_0), 54),
    "TQ2_0": (quantize_tq2_0, lambda blocks: dequantize(blocks, GGMLType.TQ2_0), 66),
    "plain": (pack_ternary_2bit, unpack_ternary_2bit, 66),
}


def _weights(n: int, kind: str, seed: int) -> NDArray[np.float32]:
    """`n` blocks of weights of one kind."""
    rng = np.random.default_rng(seed)
    shape = (n, 256)
    if kind == "normal":
        weights = rng.standard_normal(shape) * 10.0 ** rng.integers(-8, 5, (n, 1))
    elif kind == "ties":  # halves of the largest magnitude, and what is next to them
        half = np.float32(0.5)
        near = [half, np.nextafter(half, np.float32(0)), np.nextafter(half, np.float32(1)), 0, 1]
        weights = rng.choice(np.array(near + [-x for x in near], np.float32), shape)
        weights = weights * np.float32(rng.choice([1, 3, 1 / 3, 0.1]))
    elif kind == "tiny":  # subnormal, where a reciprocal overflows
        weights = rng.integers(-3, 4, shape) * 2.0 ** float(rng.integers(-149, -120))
    else:
        assert kind == "huge"  # more than a half can hold
        weights = rng.uniform(-1, 1, shape) * 10.0 ** rng.integers(4, 38, (n, 1))
    return weights.astype(np.float32).reshape(-1)


@pytest.mark.parametrize("type_", _QUANTIZERS, ids=lambda type_: type_.name)
@given(
    n=st.integers(1, 5),
    kind=st.sampled_from(["normal", "ties", "tiny", "huge"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_quantizers_equal_ggmls_reference(type_: GGMLType, n: int, kind: str, seed: int) -> None:
    weights = _weights(n, kind, seed)
    with np.errstate(all="raise"):
        blocks = _QUANTIZERS[type_](weights)
    assert blocks.dtype == np.uint8
    assert blocks.tobytes() == ggml_quantize(weights, type_).tobytes()


@pytest.mark.parametrize("name", _PACKERS)
@given(
    digits=st.integers(1, 4).flatmap(lambda n: st.binary(min_size=256 * n, max_size=256 * n)),
    scale=st.floats(2**-24, 65504, width=16),
)
def test_ternary_weights_come_back_exactly(name: str, digits: bytes, scale: float) -> None:
    pack, unpack, size = _PACKERS[name]
    q = np.frombuffer(digits, np.uint8).astype(np.int8) % 3 - 1
    q[::256] = 1  # each block reaches its scale
    weights = q.astype(np.float32) * np.float32(scale)
    blocks = pack(weights)
    assert blocks.shape == (weights.size // 256 * size,)
    assert np.array_equal(unpack(blocks), weights)


@pytest.mark.parametrize("name", _PACKERS)
def test_blocks_come_back_as_they_were_packed(name: str) -> None:
    pack, unpack, _ = _PACKERS[name]
    blocks = pack(_weights(20, "normal", 1))
    assert pack(unpack(blocks)).tobytes() == blocks.tobytes()


@pytest.mark.parametrize("name", _PACKERS)
def test_zeros_and_emptiness_are_kept(name: str) -> None:
    pack, unpack, size = _PACKERS[name]
    assert_same_bits(unpack(pack(np.zeros(256))), np.zeros(256, np.float32))
    assert pack([]).shape == (0,)
    assert unpack(b"").shape == (0,)
    assert len(pack(np.zeros((2, 3, 256)))) == 6 * size


@pytest.mark.parametrize("name", _PACKERS)
def test_weights_that_cannot_be_quantized_are_refused(name: str) -> None:
    pack = _PACKERS[name][0]
    with pytest.raises(BadBlockLength, match=r"257 weights .* 256 weights") as length:
        pack(np.zeros(257))
    assert (length.value.length, length.value.block, length.value.unit) == (257, 256, "weights")
    for bad in (np.nan, np.inf, -np.inf):
        weights = np.zeros(512, np.float32)
        weights[300] = bad
        with pytest.raises(BadBuffer, match="1 NaN or infinite") as contents:
            pack(weights)
        assert contents.value.argument == "weights"


def test_plain_order_puts_four_neighbours_into_a_byte() -> None:
    weights = np.zeros(256, np.float32)
    weights[:4] = [0.5, -0.5, 0, 0.5]  # 01, 11, 00, 01 from the lowest bits up
    weights[255] = -0.5
    block = pack_ternary_2bit(weights)
    assert block[0] == 0b01_00_11_01
    assert block[63] == 0b11_00_00_00
    assert not block[1:63].any()
    assert block[64:].tobytes() == bytes([0x00, 0x38])  # 0.5


def test_plain_order_reads_the_unused_code_as_twos_complement() -> None:
    block = bytes([0b10]) + bytes(63) + bytes([0x00, 0x3C])
    assert unpack_ternary_2bit(block)[:2].tolist() == [-2, 0]


def test_plain_order_is_not_tq2_0() -> None:
    weights = _weights(1, "normal", 2)
    assert pack_ternary_2bit(weights).tobytes() != quantize_tq2_0(weights).tobytes()


def test_unpacking_fills_out_and_checks_it() -> None:
    blocks = pack_ternary_2bit(_weights(3, "normal", 3))
    out = np.empty(768, np.float32)
    assert np.shares_memory(unpack_ternary_2bit(blocks, out=out), out)
    assert_same_bits(out, unpack_ternary_2bit(blocks))
    wrong: Any = np.empty(767, np.float32)
    with pytest.raises(BadBuffer, match="767"):
        unpack_ternary_2bit(blocks, out=wrong)
    with pytest.raises(BadBlockLength, match=r"65 bytes .* 66 bytes"):
        unpack_ternary_2bit(bytes(65))


def test_odd_scales_unpack_without_a_warning() -> None:
    halves = np.arange(1 << 16, dtype="<u2").view(np.uint8).reshape(-1, 2)[::7]
    blocks = np.concatenate([np.full((len(halves), 64), 0b01_01_11_00, np.uint8), halves], axis=1)
    with np.errstate(all="raise"):
        decoded = unpack_ternary_2bit(blocks)
    d = dequantize(halves.copy(), GGMLType.F16)
    assert_same_bits(decoded[3::4].copy(), np.repeat(d, 64))
