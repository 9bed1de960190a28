"""Blocks of big-endian files."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from decoders import BIG_ENDIAN_TYPES, BadBlockLength, GGMLType, UnsupportedType, byteswap, dequantize, info

from .helpers import assert_same_bits, make_blocks

# Each block as struct describes it; numbers are taken as integers, so that a NaN keeps its payload.
_LAYOUTS = {
    GGMLType.F32: "I",
    GGMLType.F16: "H",
    GGMLType.BF16: "H",
    GGMLType.F64: "Q",
    GGMLType.I8: "B",
    GGMLType.I16: "H",
    GGMLType.I32: "I",
    GGMLType.I64: "Q",
    GGMLType.Q4_0: "H16s",
    GGMLType.Q8_0: "H32s",
    GGMLType.Q4_K: "HH140s",
    GGMLType.Q6_K: "208sH",
    GGMLType.MXFP4: "17s",
    GGMLType.NVFP4: "36s",
}


def test_the_types_are_those_that_big_endian_files_have() -> None:
    assert frozenset(_LAYOUTS) == BIG_ENDIAN_TYPES


@pytest.mark.parametrize("n", [0, 1, 300])
@pytest.mark.parametrize("type_", _LAYOUTS, ids=lambda type_: type_.name)
def test_big_endian_blocks_become_little_endian(type_: GGMLType, n: int) -> None:
    little = make_blocks(type_, n, "random").tobytes()
    size, layout = info(type_).block_bytes, _LAYOUTS[type_]
    big = b"".join(
        struct.pack(">" + layout, *struct.unpack("<" + layout, little[at : at + size]))
        for at in range(0, len(little), size)
    )
    swapped = byteswap(big, type_)
    assert swapped.dtype == np.uint8
    assert swapped.shape == (n * size,)
    assert swapped.tobytes() == little
    assert_same_bits(dequantize(swapped, type_), dequantize(little, type_))


def test_a_big_endian_float_has_its_value() -> None:
    assert dequantize(byteswap(struct.pack(">2f", 1.5, -2), GGMLType.F32), GGMLType.F32).tolist() == [1.5, -2]


@pytest.mark.parametrize("type_", _LAYOUTS, ids=lambda type_: type_.name)
def test_the_input_stays_as_it_is(type_: GGMLType) -> None:
    raw = make_blocks(type_, 3, "random")
    before = raw.copy()
    assert not np.shares_memory(byteswap(raw, type_), raw)
    assert np.array_equal(raw, before)


@pytest.mark.parametrize("type_", sorted(set(GGMLType) - set(_LAYOUTS)), ids=lambda type_: type_.name)
def test_other_types_are_refused_by_name(type_: GGMLType) -> None:
    with pytest.raises(UnsupportedType, match=type_.name) as caught:
        byteswap(b"", type_)
    assert caught.value.type == type_


def test_a_partial_block_is_refused() -> None:
    with pytest.raises(BadBlockLength, match=r"19 bytes .* 18 bytes"):
        byteswap(bytes(19), GGMLType.Q4_0)
