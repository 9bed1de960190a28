"""The peers of the decoders: gguf-py's dequantize, and `to_float` of ggml's C library (libggml-python)."""

import ctypes
from collections.abc import Callable
from functools import cache
from importlib import resources
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

from decoders import GGMLType, info

__all__ = ["ggml_decoder", "gguf_decoder"]


class _Traits(ctypes.Structure):
    """`struct ggml_type_traits` of ggml.h."""

    _fields_ = (
        ("type_name", ctypes.c_char_p),
        ("block_weights", ctypes.c_int64),
        ("block_interleave", ctypes.c_int64),
        ("block_bytes", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", ctypes.c_void_p),
        ("from_float_ref", ctypes.c_void_p),
    )


@cache
def _library() -> ctypes.CDLL:
    (path,) = Path(str(resources.files("libggml"))).glob("lib*/libggml-base.so")
    library = ctypes.CDLL(str(path))
    library.ggml_get_type_traits.restype = ctypes.POINTER(_Traits)
    return library


def ggml_decoder(type_: GGMLType) -> Callable[[NDArray[np.uint8], NDArray[np.float32]], None] | None:
    """Ggml's own decoder: from whole blocks into an array of as many weights. None where ggml has none."""
    address = _library().ggml_get_type_traits(int(type_)).contents.to_float
    if not address and type_ is GGMLType.Q8_K:  # kept for activations: a function, but no trait
        address = ctypes.cast(_library().dequantize_row_q8_K, ctypes.c_void_p).value
    if not address:
        return None
    to_float = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(address)

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
