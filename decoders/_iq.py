"""The IQ formats that look whole vectors of weights up in a codebook: IQ1, IQ2 and IQ3.

Super-blocks of 256 weights. An index picks 8 (IQ1, IQ2) or 4 (IQ3) values of a grid; IQ2 and IQ3 then give
each value a sign, IQ1 an offset of ±1/8. Layouts are those of ggml-common.h, formulas those of
ggml-quants.c. `d` is a little-endian half and the first field unless said otherwise.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import _grids
from ._blocks import Bytes, Floats, Rows, field, halves, scale, write_rows, write_scaled

_HALF, _QUARTER, _TWO = np.float32(0.5), np.float32(0.25), np.float32(2)
_EIGHT = np.uint16(8)
_BYTE = np.arange(256)[:, None]
# Every byte's two nibbles, low one first, each with 1/2 added; and its four 2-bit fields, lowest first, times 256.
_NIBBLES = (_BYTE >> np.array([0, 4]) & 15).astype(np.float32) + _HALF
_CRUMBS = ((_BYTE >> np.array([0, 2, 4, 6]) & 3) << 8).astype(np.uint16)


def iq1_s(blocks: Bytes, out: Floats) -> None:
    """IQ1_S (`block_iq1_s`): d, 32 bytes qs, 8 uint16 qh.

    Eight sub-blocks of 32 weights, four indices each: a byte of qs and, above it, three bits of the
    sub-block's qh (bits 0-11 in turn). Bits 12-14 are the scale s, bit 15 the sign of the offset:
    weight = d * (2 s + 1) * (grid ± 1/8).
    """
    qh = field(blocks, 34, 16).view("<u2")
    index = _widen(field(blocks, 2, 32)).reshape(-1, 8, 4)
    sign = qh >> np.uint16(4) & np.uint16(0x800)
    for k in range(4):
        index[:, :, k] |= (qh >> np.uint16(3 * k) & np.uint16(7)) << np.uint16(8) | sign
    write_rows(out, _grids.iq1(), index)
    scale(out, halves(blocks, 0)[:, None] * _odd(qh >> np.uint16(12) & np.uint16(7)))


def iq1_m(blocks: Bytes, out: Floats) -> None:
    """IQ1_M (`block_iq1_m`): 32 bytes qs, 16 bytes qh, 4 uint16 scales.

    Index i (8 weights) is qs[i] with nibble i of qh (low one first) above it: three bits of index, then the
    sign of the offset. The top nibbles of the four uint16, the first lowest, are the half d; their other
    bits are 16 scales s of 3 bits, one for 16 weights: weight = d * (2 s + 1) * (grid ± 1/8).
    """
    index = _widen(field(blocks, 0, 32))
    index |= _widen(_nibbles(field(blocks, 32, 16))) << _EIGHT
    write_rows(out, _grids.iq1(), index)

    packed = field(blocks, 48, 8).view("<u2")
    top = packed >> np.uint16(12) << np.array([0, 4, 8, 12], np.uint16)
    d = np.bitwise_or.reduce(top, axis=1).astype(np.uint16, copy=False).view(np.float16).astype(np.float32)
    small = packed[:, :, None] >> np.array([0, 3, 6, 9], np.uint16) & np.uint16(7)
    scale(out, d[:, None] * _odd(small.reshape(-1, 16)))


def iq2_xxs(blocks: Bytes, out: Floats) -> None:
    """IQ2_XXS (`block_iq2_xxs`): d, then for each 32 weights two uint32.

    The first is four grid indices of 8 bits. The second is four sign indices of 7 bits and, on top, the
    scale s: weight = d * (s + 1/2) / 4 * grid * sign.
    """
    words = field(blocks, 2, 64).view("<u4").reshape(-1, 8, 2)
    index = _widen(np.ascontiguousarray(words[:, :, 0]).view(np.uint8))
    second = np.ascontiguousarray(words[:, :, 1])
    index |= _sign_indices(second).reshape(index.shape) << _EIGHT
    d = halves(blocks, 0)[:, None] * ((second >> np.uint32(28)).astype(np.float32) + _HALF) * _QUARTER
    write_scaled(out, _rows(_grids.signed("iq2_xxs"), index), d)


def iq2_xs(blocks: Bytes, out: Floats) -> None:
    """IQ2_XS (`block_iq2_xs`): d, 32 uint16 qs, 8 bytes scales.

    Each uint16 is a grid index (9 bits) and a sign index (7 bits) for 8 weights. Nibble i of scales (low
    one first) is the scale s of 16 weights: weight = d * (s + 1/2) / 4 * grid * sign.
    """
    d = _nibble_scales(blocks, 66, 8) * _QUARTER
    write_scaled(out, _rows(_grids.signed("iq2_xs"), field(blocks, 2, 64).view("<u2")), d)


def iq2_s(blocks: Bytes, out: Floats) -> None:
    """IQ2_S (`block_iq2_s`): d, 32 bytes qs, 32 bytes signs, 8 bytes qh, 8 bytes scales.

    Grid index i is qs[i] with bits 2 (i % 4) … of qh[i // 4] above it; signs[i] has a bit for each of its
    8 weights. Scales and formula are those of IQ2_XS.
    """
    index = _widen(field(blocks, 2, 32))
    index |= np.take(_CRUMBS, field(blocks, 66, 8), axis=0).reshape(index.shape)
    q = _rows(_grids.rows("iq2_s"), index)
    _apply_signs(q, _grids.signs(), field(blocks, 34, 32))
    write_scaled(out, q, _nibble_scales(blocks, 74, 8) * _QUARTER)


def iq3_xxs(blocks: Bytes, out: Floats) -> None:
    """IQ3_XXS (`block_iq3_xxs`): d, 64 bytes qs, 8 uint32.

    qs are grid indices for 4 weights each. The uint32 of 32 weights is four sign indices of 7 bits and, on
    top, the scale s: weight = d * (s + 1/2) / 2 * grid * sign.
    """
    words = field(blocks, 66, 32).view("<u4")
    q = _rows(_grids.pairs("iq3_xxs"), field(blocks, 2, 64).view("<u2"))
    _apply_signs(q, _grids.indexed_signs(), _sign_indices(words))
    scales = (words >> np.uint32(28)).astype(np.float32)
    write_scaled(out, q, halves(blocks, 0)[:, None] * (scales + _HALF) * _HALF)


def iq3_s(blocks: Bytes, out: Floats) -> None:
    """IQ3_S (`block_iq3_s`): d, 64 bytes qs, 8 bytes qh, 32 bytes signs, 4 bytes scales.

    Grid index i (4 weights) is qs[i] with bit i of qh above it; signs has a bit for each weight. Nibble i
    of scales (low one first) is the scale s of 32 weights: weight = d * (2 s + 1) * grid * sign.
    """
    index = _widen(field(blocks, 2, 64)).reshape(-1)
    index |= _widen(np.unpackbits(field(blocks, 66, 8).reshape(-1), bitorder="little")) << _EIGHT
    q = _rows(_grids.rows("iq3_s"), index)
    _apply_signs(q, _grids.signs(), field(blocks, 74, 32))
    write_scaled(out, q, _nibble_scales(blocks, 106, 4) * _TWO)


def _rows(table: Rows, index: NDArray[np.integer[Any]]) -> Rows:
    """The rows of `table` that `index` names: signed bytes in weight order."""
    rows = np.empty((index.size, table.shape[1]), np.int8)
    write_rows(rows, table, index)
    return rows


def _apply_signs(q: Rows, signs: Rows, index: NDArray[np.integer[Any]]) -> None:
    """Multiply `q`, in place and in weight order, by the rows of `signs` (8 factors each)."""
    flat = q.reshape(-1)
    np.multiply(flat, _rows(signs, index).reshape(-1), out=flat)


def _widen(a: Bytes) -> NDArray[np.uint16]:
    """As 16-bit numbers, which have room for an index."""
    return a.astype(np.uint16)


def _sign_indices(words: NDArray[np.uint32]) -> NDArray[np.uint16]:
    """The four 7-bit sign indices of each uint32, lowest first."""
    # First two fields of 14 bits to each half of a uint64, then one of 7 bits to each quarter.
    wide = words.astype("<u8").reshape(-1)
    wide = wide & np.uint64(0x3FFF) | (wide & np.uint64(0x3FFF << 14)) << np.uint64(18)
    wide = wide & np.uint64(0x0000007F0000007F) | (wide & np.uint64(0x00003F8000003F80)) << np.uint64(9)
    return wide.astype("<u8", copy=False).view("<u2")


def _nibbles(a: Bytes) -> Bytes:
    """The nibbles of each row's bytes, low one first."""
    return np.stack([a & np.uint8(15), a >> np.uint8(4)], axis=-1).reshape(len(a), -1)


def _nibble_scales(blocks: Bytes, start: int, size: int) -> Floats:
    """`d` * (s + 1/2) for each nibble s of bytes start … start + size of every block, (n, 2 * size)."""
    small: Floats = np.take(_NIBBLES, field(blocks, start, size), axis=0).reshape(-1, 2 * size)
    return halves(blocks, 0)[:, None] * small


def _odd(s: NDArray[np.integer[Any]]) -> Floats:
    """2 s + 1, the odd factor that a small scale stands for."""
    return _TWO * s.astype(np.float32) + np.float32(1)
