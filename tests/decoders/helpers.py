"""What several tests of the decoders share: comparing floats by their bits, and ggml itself as the oracle."""

from __future__ import annotations

import ctypes
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoders import GGMLType, info

DECODABLE = [type_ for type_ in GGMLType if info(type_).decodable]
REMOVED = [type_ for type_ in GGMLType if not info(type_).decodable]

# Bytes of which random pairs make halves that are zero, subnormal, infinite, NaN, largest or plain.
_EDGE_BYTES = np.array([0x00, 0x80, 0x01, 0x7C, 0xFC, 0x7B, 0x7F, 0xFF, 0x03, 0x3C], np.uint8)


def assert_same_bits(actual: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    """Equal bit for bit, except that any NaN stands for any other."""
    assert actual.dtype == expected.dtype == np.float32
    assert actual.shape == expected.shape
    same = actual.view(np.uint32) == expected.view(np.uint32)
    same |= np.isnan(actual) & np.isnan(expected)
    at = np.flatnonzero(~same)
    assert at.size == 0, f"{at.size} differ, first at {at[0]}: {actual[at[0]]!r}, expected {expected[at[0]]!r}"


def make_blocks(type_: int, n: int, kind: str, seed: int = 0) -> NDArray[np.uint8]:
    """The bytes of `n` blocks: "random", of "edge" bytes only, or each block one "repeated" byte."""
    rng = np.random.default_rng(seed)
    size = info(type_).block_bytes
    if kind == "random":
        return rng.integers(0, 256, n * size, dtype=np.uint8)
    if kind == "edge":
        return rng.choice(_EDGE_BYTES, n * size)
    assert kind == "repeated"
    return np.repeat(rng.integers(0, 256, n, dtype=np.uint8), size)


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
def _ggml() -> ctypes.CDLL:
    root = resources.files("libggml")
    (path,) = Path(str(root)).glob("lib*/libggml-base.so")
    library = ctypes.CDLL(str(path))
    library.ggml_get_type_traits.restype = ctypes.POINTER(_Traits)
    return library


def ggml_block(type_: int) -> tuple[int, int]:
    """ggml's own (weights, bytes) of a block."""
    traits = _ggml().ggml_get_type_traits(int(type_)).contents
    return int(traits.block_weights), int(traits.block_bytes)


@cache
def ggml_to_float(type_: int) -> Any:
    """ggml's own `to_float`, as a function of the addresses of blocks and floats and the number of weights, or None."""
    address = _ggml().ggml_get_type_traits(int(type_)).contents.to_float
    if not address and type_ == GGMLType.Q8_K:  # kept for activations: a function, but no trait
        address = ctypes.cast(_ggml().dequantize_row_q8_K, ctypes.c_void_p).value
    if not address:
        return None
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(address)


def ggml_decodes(type_: int) -> bool:
    """Whether ggml has a decoder to compare with."""
    return ggml_to_float(type_) is not None


def ggml_dequantize(blocks: NDArray[np.uint8], type_: int) -> NDArray[np.float32]:
    """What ggml's `to_float` makes of whole blocks."""
    weights, size = ggml_block(type_)
    out = np.empty(blocks.size // size * weights, np.float32)
    if out.size:
        ggml_to_float(type_)(blocks.ctypes.data, out.ctypes.data, out.size)
    return out


def ggml_quantize(weights: NDArray[np.float32], type_: int) -> NDArray[np.uint8]:
    """What ggml's reference quantizer (`from_float_ref`) makes of whole blocks."""
    per_block, size = ggml_block(type_)
    address = _ggml().ggml_get_type_traits(int(type_)).contents.from_float_ref
    quantize = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(address)
    blocks = np.empty(weights.size // per_block * size, np.uint8)
    quantize(weights.ctypes.data, blocks.ctypes.data, weights.size)
    return blocks
