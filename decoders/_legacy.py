"""Formats with one scale (and perhaps one minimum) for 32, 64 or 128 weights.

Layouts are those of ggml-common.h, formulas those of ggml-quants.c. Unless said otherwise `d` is a
little-endian half and the first field; nibble j of `qs` is the low half of byte j for weights 0-15 and the
high half of byte j - 16 for weights 16-31.
"""

from __future__ import annotations

import numpy as np

from ._blocks import (
    Bytes,
    Floats,
    add_high_bits,
    field,
    halves,
    less,
    planes,
    scale,
    subtract,
    write_rows,
    write_scaled,
)

_BYTE = np.arange(256, dtype=np.uint8)[:, None]
# Every byte's eight signs (+1 for a set bit, lowest first) and four values (two bits each, less one).
_SIGNS = np.unpackbits(_BYTE, axis=1, bitorder="little").astype(np.float32) * np.float32(2) - np.float32(1)
_CRUMBS = (_BYTE >> np.arange(0, 8, 2, dtype=np.uint8) & 3).astype(np.float32) - np.float32(1)


def q4_0(blocks: Bytes, out: Floats) -> None:
    """Q4_0 (`block_q4_0`): d, 16 bytes qs; weight = d * (nibble - 8)."""
    write_scaled(out, less(planes(field(blocks, 2, 16), 16, 4), 8), halves(blocks, 0))


def q4_1(blocks: Bytes, out: Floats) -> None:
    """Q4_1 (`block_q4_1`): d, half m, 16 bytes qs; weight = d * nibble + m."""
    write_scaled(out, planes(field(blocks, 4, 16), 16, 4), halves(blocks, 0))
    _add_minimum(out, halves(blocks, 2))


def q5_0(blocks: Bytes, out: Floats) -> None:
    """Q5_0 (`block_q5_0`): d, 4 bytes qh, 16 bytes qs; weight = d * (q - 16).

    Bit j of qh, counted from the lowest bit of its first byte, is the fifth bit of weight j.
    """
    q = _five_bits(field(blocks, 2, 4), field(blocks, 6, 16))
    write_scaled(out, less(q, 16), halves(blocks, 0))


def q5_1(blocks: Bytes, out: Floats) -> None:
    """Q5_1 (`block_q5_1`): d, half m, 4 bytes qh, 16 bytes qs; weight = d * q + m, q as in Q5_0."""
    write_scaled(out, _five_bits(field(blocks, 4, 4), field(blocks, 8, 16)), halves(blocks, 0))
    _add_minimum(out, halves(blocks, 2))


def q8_0(blocks: Bytes, out: Floats) -> None:
    """Q8_0 (`block_q8_0`): d, 32 signed bytes; weight = d * q."""
    write_scaled(out, blocks[:, 2:].view(np.int8), halves(blocks, 0))


def q8_1(blocks: Bytes, out: Floats) -> None:
    """Q8_1 (`block_q8_1`): d, half s (d times the sum of q, not needed), 32 signed bytes; weight = d * q.

    ggml uses it for activations only and has no decoder for it.
    """
    write_scaled(out, blocks[:, 4:].view(np.int8), halves(blocks, 0))


def q1_0(blocks: Bytes, out: Floats) -> None:
    """Q1_0 (`block_q1_0`): d, 16 bytes; weight j is +d if bit j % 8 of byte j // 8 is set, else -d."""
    write_rows(out, _SIGNS, field(blocks, 2, 16))
    scale(out, halves(blocks, 0))


def q2_0(blocks: Bytes, out: Floats) -> None:
    """Q2_0 (`block_q2_0`): d, 16 bytes; weight j = (q - 1) * d, q in bits 2 (j % 4) … of byte j // 4."""
    write_rows(out, _CRUMBS, field(blocks, 2, 16))
    scale(out, halves(blocks, 0))


def _five_bits(qh: Bytes, qs: Bytes) -> Bytes:
    """The 5-bit values of Q5_0 and Q5_1, in weight order."""
    q = planes(qs, 16, 4)
    add_high_bits(q, np.unpackbits(qh.reshape(-1), bitorder="little"), 4)
    return q


def _add_minimum(out: Floats, m: Floats) -> None:
    """Add each block's minimum to its weights."""
    # a - (-b) is a + b in IEEE arithmetic, signed zeros and infinities included
    subtract(out, np.negative(m))
