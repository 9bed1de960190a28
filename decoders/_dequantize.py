"""The one way in: checks, then the format's decoder."""

from __future__ import annotations

from ._arguments import Data, byte_view, float_out, whole_blocks
from ._blocks import Floats, decode_in_chunks
from ._formats import decoder


def dequantize(data: Data, type: int, *, out: Floats | None = None) -> Floats:  # noqa: A002
    """Decode whole blocks of any ggml type to float32, bit for bit as ggml's `to_float` does.

    Infinities, subnormals and signed zeros included; only a NaN's sign and payload are free. F64 and the integer
    types, which ggml does not decode, are cast: F64, I32 and I64 lose what float32 cannot hold. Q8_1 and
    Q8_K are d * q.

    Besides the result it needs less than 2 MiB, whatever the size. Safe to call from many threads.

    Parameters
    ----------
    data: bytes-like or contiguous uint8 array of whole blocks, little-endian, at any address.
    type: a GGMLType or its id.
    out: optional buffer to fill: writable, contiguous float32 of n_blocks * block_weights, any shape.

    Returns
    -------
    float32, 1-D, n_blocks * block_weights numbers: a view of `out` if it was given.

    Raises
    ------
    UnsupportedType for an unknown or removed type, BadBlockLength if bytes are left over, BadBuffer if
    `data` or `out` cannot be used as it is.

    Examples
    --------
    >>> from decoders import GGMLType, dequantize
    >>> dequantize(bytes([0, 0x38, 2, 0xFD]) + bytes(30), GGMLType.Q8_0)[:3]
    array([ 1. , -1.5,  0. ], dtype=float32)
    """
    block, decode = decoder(type)
    raw = byte_view(data)
    blocks = whole_blocks(raw, block.name, block.block_bytes)
    flat = float_out(out, len(blocks) * block.block_weights, raw)
    decode_in_chunks(decode, blocks, flat.reshape(-1, block.block_weights))
    return flat
