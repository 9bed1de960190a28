"""The peers of the decoders: gguf-py's dequantize, and `to_float` of ggml's C library (libggml-python)."""

from collections.abc import Callable

import gguf
import numpy as np
from numpy.typing import NDArray

from decoders import GGMLType, info
from tests.decoders.helpers import ggml_to_float

__all__ = ["ggml_decoder", "gguf_decoder"]


def ggml_decoder(type_: GGMLType) -> Callable[[NDArray[np.uint8], NDArray[np.float32]], None] | None:
    """Ggml's own decoder: from whole blocks into an array of as many weights. None where ggml has none."""
    to_float = ggml_to_float(type_)
    if to_float is None:
        return None

    def decode(blocks: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
        to_float(blocks.ctypes.data, out.ctypes.data, out.size)

    return decode


def gguf_decoder(type_: GGMLType) -> Callable[[NDArray[np.uint8]], NDArray[np.float32]] | None:
    """gguf-py's decoder, which makes an array of its own. None where it has none, and for F32, which it only views."""
    if type_ is GGMLType.F32:
        return None
    try:
        peer_type = gguf.GGMLQuantizationType(int(type_))
        gguf.quants.dequantize(np.zeros(info(type_).block_bytes, np.uint8), peer_type)
    except (ValueError, NotImplementedError):
        return None
    return lambda blocks: gguf.quants.dequantize(blocks, peer_type)
