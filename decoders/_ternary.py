"""Ternary weights (-1, 0 and 1 times a scale): ggml's TQ1_0 and TQ2_0, and the plain-order 2-bit packing.

All have 256 weights a block with one little-endian half d at its end. Layouts and rounding of TQ1_0 and
TQ2_0 are those of `block_tq1_0` and `block_tq2_0` in ggml-common.h and of ggml-quants.c.

The plain-order packing comes from a published description that is sometimes taken for TQ2_0's. No ggml type id
stands for it, so it has functions of its own.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._arguments import Data, byte_view, float_out, whole_blocks
from ._blocks import Bytes, Floats, decode_in_chunks, field, halves, less, planes, scale, write_rows, write_scaled
from ._errors import BadBlockLength, BadBuffer

_WEIGHTS = 256
# TQ1_0's bytes: (first byte, how many, first weight, digits a byte).
_TQ1_PARTS = ((0, 32, 0, 5), (32, 16, 160, 5), (48, 4, 240, 4))
# … and the power of 3 that brings out the digit of each weight.
_TQ1_POWERS = np.concatenate([np.repeat(3 ** np.arange(digits), size) for _, size, _, digits in _TQ1_PARTS]).astype(
    np.uint8
)
_PLAIN_BYTES = 66
_CRUMB_SHIFTS = np.array([0, 2, 4, 6], np.uint8)
# Every byte's four values of two bits in two's complement, lowest first.
_PLAIN = np.array([0, 1, -2, -1], np.float32)[np.arange(256)[:, None] >> _CRUMB_SHIFTS & 3]


def tq1_0(blocks: Bytes, out: Floats) -> None:
    """TQ1_0 (`block_tq1_0`): 48 bytes qs, 4 bytes qh, d; weight = d * (digit - 1).

    A byte holds five base-3 digits (one of qh four): digit k is the high byte of 3 * (byte * 3^k mod 256).
    Digits run across bytes: digit k of qs[m], m < 32, is weight 32 k + m; of qs[32 + m], m < 16, it is
    weight 160 + 16 k + m; of qh[m] it is weight 240 + 4 k + m.
    """
    shifted = np.empty((len(blocks), _WEIGHTS), np.uint8)
    for start, size, first, digits in _TQ1_PARTS:
        item = np.dtype((np.void, size))
        np.copyto(shifted[:, first : first + digits * size].view(item), field(blocks, start, size).view(item))
    np.multiply(shifted, _TQ1_POWERS, out=shifted)
    # The high byte of 3 x counts how many of 256/3 and 512/3 the byte x has passed.
    one, two = shifted >= np.uint8(86), shifted >= np.uint8(171)
    write_scaled(out, less(np.add(one.view(np.uint8), two.view(np.uint8)), 1), halves(blocks, 52))


def tq2_0(blocks: Bytes, out: Floats) -> None:
    """TQ2_0 (`block_tq2_0`): 64 bytes qs, d; weight = d * (q - 1).

    Two groups of 32 bytes; bits 2 k … of byte m of a group are q of weight 32 k + m of its 128. A q of 3,
    which no quantizer writes, is 2.
    """
    write_scaled(out, less(planes(field(blocks, 0, 64), 32, 2), 1), halves(blocks, 64))


def quantize_tq1_0(weights: ArrayLike) -> Bytes:
    """Quantize to TQ1_0, bit for bit as ggml's reference does.

    Parameters
    ----------
    weights: finite numbers, any shape, taken as float32 in C order; whole blocks of 256.

    Returns
    -------
    uint8, 1-D: 54 bytes for each 256 weights. d is the block's largest magnitude, as a half (a magnitude
    of 65520 or more becomes infinity, as in ggml); a weight is ±1 from d / 2 on (half away from zero).

    Raises
    ------
    BadBlockLength for a partial block, BadBuffer for NaN or infinity.
    """
    digits, d = _round(weights, "TQ1_0")
    blocks = np.empty((len(digits), 54), np.uint8)
    for start, size, first, count in _TQ1_PARTS:
        part = digits[:, first : first + count * size].reshape(len(digits), count, size)
        value = np.zeros((len(digits), size), np.uint16)
        for k in range(count):
            value += part[:, k] * np.uint16(3 ** (4 - k))
        # Scaled from 243 to 256 and rounded up, so that a multiplication by 3 brings out the next digit.
        blocks[:, start : start + size] = (value * np.uint16(256) + np.uint16(242)) // np.uint16(243)
    blocks[:, 52:] = d
    return blocks.reshape(-1)


def quantize_tq2_0(weights: ArrayLike) -> Bytes:
    """Quantize to TQ2_0, bit for bit as ggml's reference does.

    Parameters, rounding and errors are those of `quantize_tq1_0`.

    Returns
    -------
    uint8, 1-D: 66 bytes for each 256 weights.
    """
    digits, d = _round(weights, "TQ2_0")
    groups = digits.reshape(len(digits), 2, 4, 32) << _CRUMB_SHIFTS[:, None]
    blocks = np.empty((len(digits), 66), np.uint8)
    blocks[:, :64] = np.bitwise_or.reduce(groups, axis=2).reshape(len(digits), 64)
    blocks[:, 64:] = d
    return blocks.reshape(-1)


def pack_ternary_2bit(weights: ArrayLike) -> Bytes:
    """Quantize to ternary weights packed in plain order, two's complement.

    Not a ggml format: TQ2_0 (`quantize_tq2_0`) has the same size but another order and other codes.

    Parameters, rounding and errors are those of `quantize_tq1_0`.

    Returns
    -------
    uint8, 1-D: 66 bytes for each 256 weights. Weight i is bits 2 (i % 4) … of byte i // 4: 0b00 is 0, 0b01
    is +1, 0b11 is -1; after these 64 bytes comes the half d.
    """
    digits, d = _round(weights, "plain-order ternary")
    codes = (digits - np.uint8(1) & np.uint8(3)).reshape(len(digits), 64, 4) << _CRUMB_SHIFTS
    blocks = np.empty((len(digits), _PLAIN_BYTES), np.uint8)
    blocks[:, :64] = np.bitwise_or.reduce(codes, axis=2)
    blocks[:, 64:] = d
    return blocks.reshape(-1)


def unpack_ternary_2bit(data: Data, *, out: Floats | None = None) -> Floats:
    """Decode what `pack_ternary_2bit` packs.

    Parameters
    ----------
    data: bytes-like or uint8 array of whole blocks of 66 bytes.
    out: optional contiguous float32 buffer of 256 weights a block to fill.

    Returns
    -------
    float32, 1-D: d times -1, 0 or 1. The code 0b10, which the packer never writes, is -2 as two's
    complement has it.

    Raises
    ------
    BadBlockLength, BadBuffer.
    """
    raw = byte_view(data)
    blocks = whole_blocks(raw, "plain-order ternary", _PLAIN_BYTES)
    flat = float_out(out, len(blocks) * _WEIGHTS, raw)
    decode_in_chunks(_plain_order, blocks, flat.reshape(-1, _WEIGHTS))
    return flat


def _plain_order(blocks: Bytes, out: Floats) -> None:
    write_rows(out, _PLAIN, field(blocks, 0, 64))
    scale(out, halves(blocks, 64))


def _round(weights: ArrayLike, name: str) -> tuple[Bytes, NDArray[np.uint8]]:
    """Digits 0, 1, 2 (for -1, 0, 1), shape (n, 256), and the bytes of each block's half d, (n, 2)."""
    flat = np.asarray(weights, dtype=np.float32).reshape(-1)
    if flat.size % _WEIGHTS:
        raise BadBlockLength(name, flat.size, _WEIGHTS, "weights")
    if not np.isfinite(flat).all():
        raise BadBuffer("weights", "finite numbers", f"{np.count_nonzero(~np.isfinite(flat))} NaN or infinite")
    x = flat.reshape(-1, _WEIGHTS)
    with np.errstate(all="ignore"):
        d = np.abs(x).max(axis=1, initial=0)
        inverse = np.float32(1) / d
        # Without a finite inverse (d is 0, or so small that its half is 0 too) every weight is 0.
        inverse[np.isinf(inverse)] = 0
        ratio = x * inverse[:, None]
        half = d.astype("<f2")
    # |ratio| is at most 1 and a rounding error, so half away from zero is two comparisons.
    digits = np.uint8(1) + (ratio >= np.float32(0.5)) - (ratio <= np.float32(-0.5)).view(np.uint8)
    return digits, half.view(np.uint8).reshape(-1, 2)
