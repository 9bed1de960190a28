"""4-bit codes that stand for sixteen fixed values: IQ4_NL, IQ4_XS, MXFP4 and NVFP4.

Layouts are those of ggml-common.h, formulas those of ggml-quants.c.
"""

from __future__ import annotations

import numpy as np

from ._blocks import Bytes, Floats, field, halves, planes, scale, write_rows


def _pair_table(values: list[int]) -> Floats:
    """What two neighbouring codes (one a byte, the first in the low byte) stand for: (4096, 2)."""
    pairs = np.arange(0x1000)
    low, high = pairs & 15, pairs >> 8
    table = np.array(values, np.float32)
    both = np.stack([table[low], table[high]], axis=1)
    both.flags.writeable = False  # threads share it
    return both


def _e8m0(e: int) -> float:
    """Half of the power of two that an E8M0 exponent stands for; no code is set apart for NaN."""
    return 2.0 ** (e - 128)


def _ue4m3(code: int) -> float:
    """Half of an unsigned E4M3 number (bias 7). The top bit is not looked at, except that 0x7F alone is 0."""
    exponent, mantissa = code >> 3 & 15, code & 7
    if code == 0x7F:
        return 0.0
    value = mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    return value / 2


_IQ4 = _pair_table([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113])
# E2M1 values doubled, to be whole numbers; their scales are halved. Code 8 is +0.
_FP4 = _pair_table([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12])
_E8M0 = np.array([_e8m0(e) for e in range(256)], np.float32)
_UE4M3 = np.array([_ue4m3(code) for code in range(256)], np.float32)


def iq4_nl(blocks: Bytes, out: Floats) -> None:
    """IQ4_NL (`block_iq4_nl`): half d, 16 bytes qs; weight = d * value[nibble].

    Low nibbles are weights 0-15, high nibbles 16-31.
    """
    _look_up(out, _IQ4, planes(field(blocks, 2, 16), 16, 4))
    scale(out, halves(blocks, 0))


def iq4_xs(blocks: Bytes, out: Floats) -> None:
    """IQ4_XS (`block_iq4_xs`): half d, uint16 scales_h, 4 bytes scales_l, 128 bytes qs.

    Sub-block s (32 weights, 16 bytes of qs, nibbles as in IQ4_NL) has a 6-bit scale: nibble s of scales_l
    (low one first) and, above it, bits 2 s … of scales_h: weight = d * (scale - 32) * value[nibble].
    """
    low = np.repeat(field(blocks, 4, 4), 2, axis=1)
    low[:, 1::2] >>= 4
    high = field(blocks, 2, 2).view("<u2") >> np.arange(0, 16, 2, dtype=np.uint16) & np.uint16(3)
    scales = (low & 15).astype(np.float32) + (high << np.uint16(4)).astype(np.float32) - np.float32(32)
    _look_up(out, _IQ4, planes(field(blocks, 8, 128), 16, 4))
    scale(out, halves(blocks, 0)[:, None] * scales)


def mxfp4(blocks: Bytes, out: Floats) -> None:
    """MXFP4 (`block_mxfp4`): one byte e, 16 bytes qs; weight = 2^(e - 128) * value[nibble].

    Nibbles as in IQ4_NL. The values are E2M1's doubled, hence 128 and not E8M0's own 127. For e = 0 and 1
    the scale is subnormal.
    """
    _look_up(out, _FP4, planes(field(blocks, 1, 16), 16, 4))
    scale(out, np.take(_E8M0, blocks[:, 0]))


def nvfp4(blocks: Bytes, out: Floats) -> None:
    """NVFP4 (`block_nvfp4`): 4 scale bytes, then 8 bytes for each of four sub-blocks of 16 weights.

    weight = scale / 2 * value[nibble], the scale an unsigned E4M3, the values E2M1's doubled. A
    sub-block's low nibbles are its weights 0-7, its high nibbles 8-15.
    """
    _look_up(out, _FP4, planes(field(blocks, 4, 32), 8, 4))
    scale(out, np.take(_UE4M3, field(blocks, 0, 4)))


def _look_up(out: Floats, table: Floats, codes: Bytes) -> None:
    """Fill `out` with the values of `codes` (one a byte, in weight order), two at each look-up."""
    write_rows(out, table, codes.reshape(-1).view("<u2"))
