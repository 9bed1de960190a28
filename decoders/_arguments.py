"""Checks of what callers hand in: bytes to read, blocks to be whole, a buffer to fill."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ._blocks import Bytes, Floats
from ._errors import BadBlockLength, BadBuffer

Data: TypeAlias = bytes | bytearray | memoryview | NDArray[np.uint8]


def byte_view(data: Data) -> Bytes:
    """`data` as a 1-D uint8 array, without a copy.

    Raises BadBuffer if it is an array of another dtype or not contiguous: a copy behind the caller's back
    could be as large as the tensor.
    """
    if isinstance(data, np.ndarray):
        if data.dtype != np.uint8:
            raise BadBuffer("data", "bytes-like or a uint8 array", f"an array of {data.dtype}")
        contiguous = data.flags.c_contiguous
    else:
        data = memoryview(data)
        contiguous = data.c_contiguous
    if not contiguous:
        raise BadBuffer("data", "contiguous (np.ascontiguousarray makes a copy that is)", "a strided view")
    if isinstance(data, np.ndarray):
        return data.reshape(-1)
    return np.frombuffer(data, np.uint8) if data.nbytes else np.empty(0, np.uint8)


def whole_blocks(raw: Bytes, name: str, block_bytes: int) -> Bytes:
    """`raw` as (n, block_bytes). Raises BadBlockLength if bytes are left over."""
    if raw.size % block_bytes:
        raise BadBlockLength(name, raw.size, block_bytes, "bytes")
    return raw.reshape(-1, block_bytes)


def float_out(out: NDArray[Any] | None, weights: int, raw: Bytes) -> Floats:
    """The 1-D float32 array to fill: a view of `out`, or a new one.

    Raises BadBuffer if `out` is not a writable, contiguous float32 array of exactly `weights` numbers, or
    if it shares memory with `raw`, which would be overwritten while it is read.
    """
    if out is None:
        return np.empty(weights, np.float32)
    if not isinstance(out, np.ndarray) or out.dtype != np.float32:
        found = f"an array of {out.dtype}" if isinstance(out, np.ndarray) else type(out).__name__
        raise BadBuffer("out", "a float32 array", found)
    if out.size != weights:
        raise BadBuffer("out", f"an array of {weights} weights", f"{out.size}")
    if not out.flags.c_contiguous or not out.flags.writeable:
        found = "a read-only array" if out.flags.c_contiguous else "a strided view"
        raise BadBuffer("out", "contiguous and writable", found)
    if np.may_share_memory(out, raw):
        raise BadBuffer("out", "apart from data", "an array that shares its memory")
    return out.reshape(-1)
