"""The K formats: super-blocks of 256 weights whose sub-blocks have small integer scales of their own.

Layouts are those of ggml-common.h, formulas and their order those of ggml-quants.c. `d` and `dmin` are
little-endian halves.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._blocks import Bytes, Floats, add_high_bits, field, halves, less, planes, subtract, write_scaled

_LOW_FOUR, _LOW_SIX, _FIFTH_AND_SIXTH = np.uint32(0x0F0F0F0F), np.uint32(0x3F3F3F3F), np.uint32(0x30303030)
_LOW_TWO_OF_8, _LOW_FOUR_OF_8 = np.uint64(0x0303030303030303), np.uint64(0x0F0F0F0F0F0F0F0F)
_FIFTH_AND_SIXTH_OF_8 = np.uint64(0x3030303030303030)
_TWO, _NIBBLES = np.uint32(2), np.array([[0], [4]], np.uint32)


def q2_k(blocks: Bytes, out: Floats) -> None:
    """Q2_K (`block_q2_K`): 16 bytes scales, 64 bytes qs, d, dmin.

    Sub-block s (16 weights) has its scale in the low and its minimum in the high nibble of scales[s];
    weight = (d * scale) * q - dmin * minimum. The 2-bit q lie in two groups of 32 bytes, plane by plane.
    """
    scales = field(blocks, 0, 16)
    write_scaled(out, planes(field(blocks, 16, 64), 32, 2), _times(halves(blocks, 80), scales & 15))
    subtract(out, _times(halves(blocks, 82), scales >> 4))


def q3_k(blocks: Bytes, out: Floats) -> None:
    """Q3_K (`block_q3_K`): 32 bytes hmask, 64 bytes qs, 12 bytes scales, d.

    Sub-block s (16 weights): weight = (d * (scale - 32)) * q. The low two bits of q are as in Q2_K; bit b
    of hmask[m] is for weight 32 b + m, and 4 is taken off where it is *not* set.

    The low four bits of scale s are a nibble of byte s % 8 (the high one from s = 8 on), the upper two are
    bits 2 (s // 4) … of byte 8 + s % 4.
    """
    q = planes(field(blocks, 32, 64), 32, 2)
    add_high_bits(q, planes(field(blocks, 0, 32), 32, 1), 2)
    write_scaled(out, less(q, 4), _times(halves(blocks, 108), _q3_scales(field(blocks, 96, 12))))


def q4_k(blocks: Bytes, out: Floats) -> None:
    """Q4_K (`block_q4_K`): d, dmin, 12 bytes scales, 128 bytes qs.

    Sub-block s (32 weights), scale and minimum as in `scales_and_minimums`:
    weight = (d * scale) * nibble - dmin * minimum. Each 32 bytes of qs hold one sub-block in their low
    nibbles and the next one in their high nibbles.
    """
    d, m = _scaled(blocks)
    write_scaled(out, planes(field(blocks, 16, 128), 32, 4), d)
    subtract(out, m)


def q5_k(blocks: Bytes, out: Floats) -> None:
    """Q5_K (`block_q5_K`): d, dmin, 12 bytes scales, 32 bytes qh, 128 bytes qs.

    As Q4_K, with a fifth bit for each weight: bit s of qh[m] is for weight m of sub-block s.
    """
    q = planes(field(blocks, 48, 128), 32, 4)
    add_high_bits(q, planes(field(blocks, 16, 32), 32, 1), 4)
    d, m = _scaled(blocks)
    write_scaled(out, q, d)
    subtract(out, m)


def q6_k(blocks: Bytes, out: Floats) -> None:
    """Q6_K (`block_q6_K`): 128 bytes ql, 64 bytes qh, 16 signed bytes scales, d.

    Sub-block s (16 weights): weight = (d * scales[s]) * (q - 32). For each half of 128 weights, 64 bytes of
    ql hold the low nibbles of q (low halves first) and 32 bytes of qh the upper two bits, plane by plane.
    """
    q = planes(field(blocks, 0, 128), 64, 4)
    add_high_bits(q, planes(field(blocks, 128, 64), 32, 2), 4)
    write_scaled(out, less(q, 32), _times(halves(blocks, 208), field(blocks, 192, 16).view(np.int8)))


def q8_k(blocks: Bytes, out: Floats) -> None:
    """Q8_K (`block_q8_K`): float32 d, 256 signed bytes, 16 int16 sums (not needed); weight = d * q."""
    d = field(blocks, 0, 4).view("<f4").astype(np.float32, copy=False)
    write_scaled(out, blocks[:, 4:260].view(np.int8), d)


def scales_and_minimums(packed: Bytes) -> Bytes:
    """The 6-bit scales and minimums of Q4_K and Q5_K (ggml's `get_scale_min_k4`).

    `packed` is contiguous, (n, 12); gives (2, n, 8): the scales, then the minimums. Sub-blocks 0-3 have their scale in
    the low six bits of bytes 0-3 and their minimum in those of bytes 4-7. Sub-blocks 4-7 have the low four bits of
    both in bytes 8-11 (scale in the low nibble) and the upper two in the top bits of bytes 0-3 and 4-7.
    """
    # Four bytes are taken together; what crosses between them is masked away.
    words = np.ascontiguousarray(packed.view(np.uint32).T)
    both = np.empty((2, len(packed), 2), np.uint32)
    np.bitwise_and(words[:2], _LOW_SIX, out=both[:, :, 0])
    upper = np.bitwise_and(words[:2] >> _TWO, _FIFTH_AND_SIXTH)
    lower = np.bitwise_and(words[2] >> _NIBBLES, _LOW_FOUR)
    np.bitwise_or(upper, lower, out=both[:, :, 1])
    return both.view(np.uint8)


def _q3_scales(packed: Bytes) -> NDArray[np.int8]:
    """The 6-bit scales of Q3_K, less 32: (n, 16). `packed` is contiguous, (n, 12)."""
    # Eight scales are taken together; what crosses between bytes is masked away.
    low = field(packed, 0, 8).view("<u8")[:, 0]
    high = field(packed, 8, 4).view("<u4")[:, 0].astype(np.uint64)
    high |= high << np.uint64(30)  # now byte s has the upper bits of scale s in bits 0 and 1, of scale s + 8 in 4 and 5
    scales = np.empty((len(packed), 2), "<u8")
    np.bitwise_or(low & _LOW_FOUR_OF_8, (high & _LOW_TWO_OF_8) << np.uint64(4), out=scales[:, 0])
    np.bitwise_or(low >> np.uint64(4) & _LOW_FOUR_OF_8, high & _FIFTH_AND_SIXTH_OF_8, out=scales[:, 1])
    return less(scales.view(np.uint8), 32)


def _scaled(blocks: Bytes) -> Floats:
    """Each d * scale and each dmin * minimum of blocks of Q4_K or Q5_K: (2, n, 8)."""
    factors = field(blocks, 0, 4).view("<f2").T.astype(np.float32)
    return _times(factors, scales_and_minimums(field(blocks, 4, 12)))


def _times(d: Floats, scales: NDArray[np.integer[Any]]) -> Floats:
    """Each super-block's `d` (…, n) times its sub-blocks' integer scales (…, n, m), as float32 of that shape."""
    return scales * np.repeat(d, scales.shape[-1]).reshape(scales.shape)
