"""Blocks of big-endian files, brought into the little-endian order that the decoders read."""

from __future__ import annotations

import numpy as np

from ._arguments import Data, byte_view, whole_blocks
from ._blocks import Bytes
from ._errors import UnsupportedType
from ._formats import info
from ._types import GGMLType

# For each type the (byte offset, size) of every number of a block that is longer than a byte. These are
# the types that llama.cpp's own endian converter writes, and the plain integers and doubles.
_NUMBERS: dict[GGMLType, tuple[tuple[int, int], ...]] = {
    GGMLType.F32: ((0, 4),),
    GGMLType.F16: ((0, 2),),
    GGMLType.BF16: ((0, 2),),
    GGMLType.F64: ((0, 8),),
    GGMLType.I8: (),
    GGMLType.I16: ((0, 2),),
    GGMLType.I32: ((0, 4),),
    GGMLType.I64: ((0, 8),),
    GGMLType.Q4_0: ((0, 2),),
    GGMLType.Q8_0: ((0, 2),),
    GGMLType.Q4_K: ((0, 2), (2, 2)),
    GGMLType.Q6_K: ((208, 2),),
    GGMLType.MXFP4: (),
    GGMLType.NVFP4: (),
}

BIG_ENDIAN_TYPES = frozenset(_NUMBERS)
"""The types that `byteswap` knows."""


def byteswap(data: Data, type: int) -> Bytes:  # noqa: A002 (the public word)
    """The little-endian blocks of a big-endian file's blocks (or the other way round).

    Parameters
    ----------
    data: bytes-like or contiguous uint8 array of whole blocks.
    type: one of BIG_ENDIAN_TYPES, or its id.

    Returns
    -------
    uint8, 1-D, a new array of the same length.

    Raises
    ------
    UnsupportedType for any type outside BIG_ENDIAN_TYPES, BadBlockLength if bytes are left over, BadBuffer
    if `data` cannot be used as it is.
    """
    block = info(type)
    if type not in _NUMBERS:
        raise UnsupportedType(type, block.name, "has no known big-endian form")
    blocks = whole_blocks(byte_view(data), block.name, block.block_bytes)
    swapped = blocks.copy()
    for at, size in _NUMBERS[GGMLType(type)]:
        number = np.s_[:, at : at + size]
        swapped[number].view(f"<u{size}")[...] = blocks[number].view(f">u{size}")
    return swapped.reshape(-1)
