"""Types with one number a block: floats and integers.

F32, F16 and BF16 become float32 exactly. F64 and the integers are cast, which loses what float32 cannot
hold: F64 rounds to nearest (and overflows to infinity), I32 and I64 round to nearest above 2^24.
"""

from __future__ import annotations

import numpy as np

from ._blocks import Bytes, Floats

_HALF_EXPONENT = np.int16(0x7C00)
_FLOAT_EXPONENT = np.int32(0x7F800000)
_SIGN_AND_HALF = np.int32(0x8FFFE000 - (1 << 32))
_REBIAS = np.float32(2.0**112)  # 2^(127 - 15): from the half's exponent bias to the float's


def f32(blocks: Bytes, out: Floats) -> None:
    """F32 (`float`): 4 bytes, an IEEE single; unchanged."""
    _cast(blocks, "<f4", out)


def f16(blocks: Bytes, out: Floats) -> None:
    """F16 (`ggml_fp16_t`): 2 bytes, an IEEE half; exact.

    numpy's own cast takes each number by itself and is three times slower. Here exponent and mantissa are
    shifted to their places in a single and multiplied by 2^112, which corrects the exponent and brings
    subnormal halves to normal singles (for which x86 needs a slow path: a tensor of nothing else takes eight times as
    long). Infinities and NaN then get back the exponent they had.
    """
    half = blocks.reshape(-1).view("<i2")
    flat = out.reshape(-1)
    bits = flat.view(np.int32)
    np.copyto(bits, half)  # extends the sign to bits 16-31, so that the shift leaves it at bit 31
    np.left_shift(bits, np.int32(13), out=bits)
    np.bitwise_and(bits, _SIGN_AND_HALF, out=bits)
    np.multiply(flat, _REBIAS, out=flat)
    if half.max() >= 0x7C00 or half.view("<u2").max() >= 0xFC00:  # any of either sign
        np.bitwise_or(bits, _FLOAT_EXPONENT, out=bits, where=np.bitwise_and(half, _HALF_EXPONENT) == _HALF_EXPONENT)


def bf16(blocks: Bytes, out: Floats) -> None:
    """BF16 (`ggml_bf16_t`): 2 bytes, the upper half of an IEEE single; exact."""
    bits = out.reshape(-1).view(np.uint32)
    # Two steps, and the second in place: one np.left_shift from 16 to 32 bits is an eighth slower on a large tensor
    # if out is not at a multiple of 64 bytes.
    np.copyto(bits, blocks.reshape(-1).view("<u2"))
    np.left_shift(bits, np.uint32(16), out=bits)


def f64(blocks: Bytes, out: Floats) -> None:
    """F64 (`double`): 8 bytes, rounded to the nearest float32."""
    _cast(blocks, "<f8", out)


def i8(blocks: Bytes, out: Floats) -> None:
    """I8 (`int8_t`): 1 byte; exact."""
    _cast(blocks, "i1", out)


def i16(blocks: Bytes, out: Floats) -> None:
    """I16 (`int16_t`): 2 bytes; exact."""
    _cast(blocks, "<i2", out)


def i32(blocks: Bytes, out: Floats) -> None:
    """I32 (`int32_t`): 4 bytes, rounded to the nearest float32."""
    _cast(blocks, "<i4", out)


def i64(blocks: Bytes, out: Floats) -> None:
    """I64 (`int64_t`): 8 bytes, rounded to the nearest float32."""
    _cast(blocks, "<i8", out)


def _cast(blocks: Bytes, dtype: str, out: Floats) -> None:
    np.copyto(out.reshape(-1), blocks.reshape(-1).view(dtype), casting="unsafe")
