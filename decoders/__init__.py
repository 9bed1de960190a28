"""Decode ggml's tensor formats with numpy: raw blocks in, float32 out, bit for bit as ggml does.

The package knows nothing of files: `dequantize` takes whole blocks of one type, `info` tells their size.
"""

from ._byteswap import BIG_ENDIAN_TYPES, byteswap
from ._dequantize import dequantize
from ._errors import BadBlockLength, BadBuffer, DecoderError, UnsupportedType
from ._formats import info
from ._ternary import pack_ternary_2bit, quantize_tq1_0, quantize_tq2_0, unpack_ternary_2bit
from ._types import BlockFormat, GGMLType

__all__ = [
    "BIG_ENDIAN_TYPES",
    "BadBlockLength",
    "BadBuffer",
    "BlockFormat",
    "DecoderError",
    "GGMLType",
    "UnsupportedType",
    "byteswap",
    "dequantize",
    "info",
    "pack_ternary_2bit",
    "quantize_tq1_0",
    "quantize_tq2_0",
    "unpack_ternary_2bit",
]
