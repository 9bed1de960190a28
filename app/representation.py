"""Representations: in which form weights are answered, how long that is, and the headers that say so.

Everything here is known before a window is read: what can be refused is refused, and HEAD needs nothing more.
"""

import base64
import hashlib
import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from app.errors import BadRequest, TooLarge, Unreadable
from app.gguf import Tensor
from app.json_text import array_text, empty_array_text
from app.names import text
from app.parameters import FormatName, WeightsQuery
from app.selection import Selection, select_all, select_nd, select_rows
from app.snapshot import Snapshot
from app.windows import STORED_DTYPES, Source, source

__all__ = ["Representation", "represent"]

_MEDIA_TYPES: dict[FormatName, str] = {
    "raw": "application/octet-stream",
    "npy": "application/x-npy",
    "json": "application/json",
    "native": "application/octet-stream",
}
_SUFFIXES: dict[FormatName, str] = {"raw": "bin", "npy": "npy", "json": "json", "native": "native.bin"}
_DTYPES: dict[str, np.dtype[Any]] = {
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
    "bfloat16": np.dtype("<u2"),
}
_JSON_END = b"}\n"
# Characters of a file name before its suffix: file systems take 255 bytes, proxies headers of a few KiB.
_LONGEST_FILE_NAME = 200

# From an array of items, and the position of its first in the answer, to the bytes of the body.
Encode = Callable[[NDArray[Any], int], "bytes | memoryview"]


@dataclass(frozen=True, slots=True)
class Representation:
    """An answer before its body: ``prefix``, then the encoded items of ``selection``, then ``suffix``.

    ``length`` is the body's length in bytes; None for JSON, whose text is as long as its numbers happen to be.
    ``copies_nothing``: contiguous items are encoded by looking at them as bytes.
    """

    source: Source
    selection: Selection
    media_type: str
    etag: str
    encode: Encode
    prefix: bytes
    suffix: bytes
    length: int | None
    copies_nothing: bool
    headers: dict[str, str]


def represent(snapshot: Snapshot, tensor: Tensor, query: WeightsQuery, *, json_limit: int) -> Representation:
    """Check a query against a tensor and say what its answer is.

    Raises
    ------
    Unreadable
        With the slug of the tensor's fault.
    BadRequest
        ``bad-selection``, ``selection-out-of-range``, or ``bad-parameter`` for parameters that do not go together.
    TooLarge
        ``response-too-large``: JSON above ``json_limit`` decoded bytes.
    """
    if tensor.fault is not None:
        raise Unreadable(tensor.fault.slug, tensor.fault.detail, tensor=text(tensor.name), type_id=tensor.type_id)
    if query.format == "native":
        return _native(snapshot, tensor, query)
    selection = _select(tensor, query)
    dtype_name, item_dtype, weights = _weights(snapshot, tensor, query)
    shape = selection.shape
    if query.format == "json":
        _check_json_size(shape, item_dtype, json_limit)
        return _finish(
            weights,
            selection,
            query,
            dtype_name,
            encode=lambda items, start: array_text(_converted(items, item_dtype, dtype_name), start, shape),
            prefix=b'{"shape":%s,"dtype":"%s","data":' % (_shape_text(shape).encode(), dtype_name.encode())
            + (b"" if selection.n_items else empty_array_text(shape)),
            suffix=_JSON_END,
            length=None,
            copies_nothing=False,
        )
    if query.format == "npy" and dtype_name == "bfloat16":
        raise BadRequest("bad-parameter", "npy has no bfloat16: ask for format=raw, or for dtype=float32.")
    prefix = _npy_header(item_dtype, shape) if query.format == "npy" else b""
    return _finish(
        weights,
        selection,
        query,
        dtype_name,
        encode=lambda items, _: _body(_converted(items, item_dtype, dtype_name)),
        prefix=prefix,
        suffix=b"",
        length=len(prefix) + selection.n_items * item_dtype.itemsize,
        copies_nothing=weights.dtype == item_dtype,
    )


def _native(snapshot: Snapshot, tensor: Tensor, query: WeightsQuery) -> Representation:
    if tensor.big_endian:
        raise Unreadable(
            "unsupported-type", "native blocks of a big-endian file are not served: ask for another format."
        )
    if query.cols is not None or query.slice is not None or query.dtype is not None:
        raise BadRequest(
            "bad-parameter", "format=native gives whole rows as stored: of the selections it takes rows only."
        )
    blocks = source(snapshot, tensor, "native")
    row_blocks = tensor.row_weights // blocks.item_weights
    n_rows = tensor.n_rows
    selection = select_rows(n_rows, row_blocks, query.rows, None)
    shape = (selection.shape[0], tensor.row_weights) if query.rows is not None else tensor.shape
    return _finish(
        blocks,
        selection,
        query,
        "native",
        encode=lambda items, _: _body(items),
        prefix=b"",
        suffix=b"",
        length=selection.n_items * blocks.dtype.itemsize,
        copies_nothing=True,
        shape=shape,
    )


def _select(tensor: Tensor, query: WeightsQuery) -> Selection:
    if query.slice is not None:
        if query.rows is not None or query.cols is not None:
            raise BadRequest("bad-parameter", "slice does not go together with rows or cols: give one or the other.")
        return select_nd(tensor.shape, query.slice)
    if query.rows is None and query.cols is None:
        return select_all(tensor.shape)
    return select_rows(tensor.n_rows, tensor.row_weights, query.rows, query.cols)


def _weights(snapshot: Snapshot, tensor: Tensor, query: WeightsQuery) -> tuple[str, np.dtype[Any], Source]:
    """The name and the dtype of one answered weight, and the source of the weights."""
    if query.dtype == "stored":
        if tensor.type not in STORED_DTYPES:
            raise BadRequest(
                "bad-parameter",
                f"dtype=stored is for unquantized types; this tensor is {tensor.type_name}: "
                "ask for format=native to get its blocks.",
            )
        name, dtype = STORED_DTYPES[tensor.type]
        if query.format == "json" and name == "bfloat16":
            raise BadRequest(
                "bad-parameter", "JSON has no bfloat16: ask for dtype=float32, which holds the same values."
            )
        return name, dtype, source(snapshot, tensor, "stored")
    name = query.dtype or "float32"
    if query.format == "json" and name == "bfloat16":
        raise BadRequest("bad-parameter", "dtype=bfloat16 is for format=raw only.")
    return name, _DTYPES[name], source(snapshot, tensor, "decoded")


def _converted(items: NDArray[Any], dtype: np.dtype[Any], dtype_name: str) -> NDArray[Any]:
    if items.dtype == dtype:
        return items
    if dtype_name == "bfloat16":
        return _to_bfloat16(items)
    with np.errstate(all="ignore"):  # to float16, overflow to infinity is what rounding means
        return items.astype(dtype)


def _to_bfloat16(items: NDArray[Any]) -> NDArray[Any]:
    """The upper halves of float32 bits, rounded to nearest, ties to even; a NaN stays one."""
    bits = items.view(np.uint32)
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)
    # Rounding could carry a NaN's bits into infinity: NaNs are cut instead, and made quiet.
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(items), quiet, rounded).astype("<u2")


def _body(items: NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(items).view(np.uint8).data


def _npy_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    )
    return header.getvalue()


def _shape_text(shape: tuple[int, ...]) -> str:
    return f"[{','.join(map(str, shape))}]"


def _check_json_size(shape: tuple[int, ...], dtype: np.dtype[Any], limit: int) -> None:
    # Empty lists are text, too: a shape of (1000000000, 0) has no weight but a long text.
    size = math.prod(max(1, length) for length in shape) * dtype.itemsize
    if size > limit:
        raise TooLarge(
            "response-too-large",
            f"{size} decoded bytes are over the limit of {limit} for format=json: "
            "ask for fewer rows at a time, or for raw or npy, which have no limit.",
            limit=limit,
            size=size,
        )


def _finish(
    items: Source,
    selection: Selection,
    query: WeightsQuery,
    dtype_name: str,
    *,
    encode: Encode,
    prefix: bytes,
    suffix: bytes,
    length: int | None,
    copies_nothing: bool,
    shape: tuple[int, ...] | None = None,
) -> Representation:
    tensor = items.tensor
    shape = selection.shape if shape is None else shape
    identity = hashlib.blake2b(items.snapshot.fingerprint(), digest_size=15)
    identity.update(repr((tensor.file, tensor.start, query.format, dtype_name, shape, selection.lattices)).encode())
    model_name = items.snapshot.model_id.rpartition(b"/")[2]
    file_name = f"{text(model_name)}.{text(tensor.name)}"[:_LONGEST_FILE_NAME]
    headers = {
        "X-Tensor-Shape": _shape_text(shape),
        "X-Tensor-Dtype": dtype_name,
        "X-Tensor-Type": str(tensor.type_name),
        "Content-Disposition": _disposition(f"{file_name}.{_SUFFIXES[query.format]}"),
        "X-Accel-Buffering": "no",
    }
    etag = f'"{base64.urlsafe_b64encode(identity.digest()).decode()}"'
    return Representation(
        source=items,
        selection=selection,
        media_type=_MEDIA_TYPES[query.format],
        etag=etag,
        encode=encode,
        prefix=prefix,
        suffix=suffix,
        length=length,
        copies_nothing=copies_nothing,
        headers=headers,
    )


def _disposition(name: str) -> str:
    """A Content-Disposition (RFC 6266) that offers ``name``, with an ASCII fallback where it needs one."""
    name = "".join("_" if char in '/\\:"%' or not char.isprintable() else char for char in name)
    ascii_name = name.encode("ascii", "replace").decode().replace("?", "_")
    value = f'attachment; filename="{ascii_name}"'
    return value if ascii_name == name else f"{value}; filename*=UTF-8''{quote(name, safe='')}"
