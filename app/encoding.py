"""Encodings: from items of a window to bytes of a body. What conversion there is, happens here."""

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["DTYPES", "as_bytes", "converted", "npy_header"]

# What one answered weight is, by the name in `dtype=`. numpy has no bfloat16: its bits travel as uint16.
DTYPES: dict[str, np.dtype[Any]] = {
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
    "bfloat16": np.dtype("<u2"),
}


def converted(items: NDArray[Any], dtype: np.dtype[Any], dtype_name: str) -> NDArray[Any]:
    """Items as ``dtype``, rounded to nearest even; the same array where nothing is to be done."""
    if items.dtype == dtype:
        return items
    if dtype_name == "bfloat16":
        return _to_bfloat16(items)
    with np.errstate(all="ignore"):  # to float16, overflow to infinity is what rounding means
        return items.astype(dtype)


def as_bytes(items: NDArray[Any]) -> memoryview:
    """The bytes of contiguous items, not copied."""
    return np.ascontiguousarray(items).view(np.uint8).data


def npy_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """What an .npy file (format 1.0) has before its items, padded to a multiple of 64 bytes."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    )
    return header.getvalue()


def _to_bfloat16(items: NDArray[Any]) -> NDArray[Any]:
    """The upper halves of float32 bits, rounded to nearest, ties to even; a NaN stays one."""
    bits = items.view(np.uint32)
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)
    # Rounding could carry a NaN's bits into infinity: NaNs are cut instead, and made quiet.
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(items), quiet, rounded).astype("<u2")
