"""Representations: in which form weights are answered, how long that is, and the headers that say so.

Everything here is known before a window is read: what can be refused is refused, and HEAD needs nothing more.
"""

import base64
import hashlib
import math
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import numpy as np

from app.content import Content, Section, content_length
from app.encoding import DTYPES, as_bytes, converted, npy_header
from app.errors import BadRequest, TooLarge, Unreadable
from app.gguf import Tensor, quoted
from app.json_text import array_text, empty_array_text
from app.names import text
from app.parameters import DTypeName, FormatName, WeightsBody, WeightsQuery
from app.selection import Selection, select_all, select_nd, select_rows
from app.snapshot import Snapshot
from app.windows import STORED_DTYPES, Source, source

__all__ = ["MEDIA_TYPES", "Representation", "disposition", "etag_of", "represent", "weights_as"]

MEDIA_TYPES: dict[FormatName, str] = {
    "raw": "application/octet-stream",
    "npy": "application/x-npy",
    "json": "application/json",
    "native": "application/octet-stream",
}
_SUFFIXES: dict[FormatName, str] = {"raw": "bin", "npy": "npy", "json": "json", "native": "native.bin"}
# Characters of a file name before its suffix: file systems take 255 bytes, proxies headers of a few KiB.
_LONGEST_FILE_NAME = 200


Query = WeightsQuery | WeightsBody


@dataclass(frozen=True, slots=True)
class Representation:
    """An answer before its body: the content, how long it is, and the headers that describe it.

    ``length`` is None for JSON, whose text is as long as its numbers happen to be.
    """

    snapshot: Snapshot
    content: Content
    length: int | None
    etag: str
    headers: dict[str, str]


def represent(
    snapshot: Snapshot, tensor: Tensor, query: Query, format_name: FormatName, *, json_limit: int
) -> Representation:
    """Check a query against a tensor and say what its answer is, in a format.

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
    if format_name == "native":
        return _native(snapshot, tensor, query)
    selection = _select(tensor, query)
    name, dtype, weights = weights_as(snapshot, tensor, query.dtype or "float32")
    if name == "bfloat16" and format_name != "raw":
        raise BadRequest(
            "bad-parameter",
            f"{format_name} has no bfloat16: ask for format=raw, or for dtype=float32, which holds it.",
        )
    shape = selection.shape
    if format_name == "json":
        _check_json_size(shape, dtype, json_limit)
        content = _json_content(weights, selection, dtype, name)
    else:
        section = Section.of_items(
            weights,
            selection,
            lambda items: as_bytes(converted(items, dtype, name)),
            dtype.itemsize,
            copies_nothing=weights.dtype == dtype,
        )
        content = [npy_header(dtype, shape), section] if format_name == "npy" else [section]
    return _representation(snapshot, tensor, format_name, content, selection, name, shape)


def _native(snapshot: Snapshot, tensor: Tensor, query: Query) -> Representation:
    if tensor.big_endian:
        raise Unreadable(
            "unsupported-type", "native blocks of a big-endian file are not served: ask for another format."
        )
    if query.cols is not None or query.slice is not None or query.dtype is not None:
        raise BadRequest(
            "bad-parameter", "format=native gives whole rows as stored: of the selections it takes rows only."
        )
    blocks = source(snapshot, tensor, "native")
    selection = select_rows(tensor.n_rows, tensor.row_weights // blocks.item_weights, query.rows, None)
    shape = (selection.shape[0], tensor.row_weights) if query.rows is not None else tensor.shape
    section = Section.of_items(blocks, selection, as_bytes, blocks.dtype.itemsize, copies_nothing=True)
    return _representation(snapshot, tensor, "native", [section], selection, "native", shape)


def _select(tensor: Tensor, query: Query) -> Selection:
    if query.slice is not None:
        if query.rows is not None or query.cols is not None:
            raise BadRequest("bad-parameter", "slice does not go together with rows or cols: give one or the other.")
        return select_nd(tensor.shape, query.slice)
    if query.rows is None and query.cols is None:
        return select_all(tensor.shape)
    return select_rows(tensor.n_rows, tensor.row_weights, query.rows, query.cols)


def weights_as(snapshot: Snapshot, tensor: Tensor, dtype: DTypeName) -> tuple[str, np.dtype[Any], Source]:
    """The name and the dtype of one answered weight, and the source of a readable tensor's weights.

    Raises
    ------
    BadRequest
        ``bad-parameter``: ``stored`` of a quantized type.
    """
    if dtype != "stored":
        return dtype, DTYPES[dtype], source(snapshot, tensor, "decoded")
    if tensor.type not in STORED_DTYPES:
        raise BadRequest(
            "bad-parameter",
            f"dtype=stored is for unquantized types; {quoted(tensor.name)} is {tensor.type_name}: "
            "ask for another dtype, or, for its blocks, for format=native.",
        )
    return *STORED_DTYPES[tensor.type], source(snapshot, tensor, "stored")


def _json_content(weights: Source, selection: Selection, dtype: np.dtype[Any], name: str) -> Content:
    shape = selection.shape
    start = b'{"shape":%s,"dtype":"%s","data":' % (_shape_text(shape).encode(), name.encode())
    if not selection.n_items:
        return [start, empty_array_text(shape), b"}\n"]
    section = Section(
        weights,
        selection,
        lambda items, first: array_text(converted(items, dtype, name), first, shape),
        item_bytes=None,
        copies_nothing=False,
    )
    return [start, section, b"}\n"]


def _shape_text(shape: tuple[int, ...]) -> str:
    return f"[{','.join(map(str, shape))}]"


def _check_json_size(shape: tuple[int, ...], dtype: np.dtype[Any], limit: int) -> None:
    # Empty lists are text, too: a shape of (1000000000, 0) has no weight but a long text.
    size = math.prod(max(1, length) for length in shape) * dtype.itemsize
    if size > limit:
        raise TooLarge(
            "response-too-large",
            f"{size} decoded bytes are over the limit of {limit} for format=json: "
            "ask for fewer rows at a time, or for format=raw or npy.",
            limit=limit,
            size=size,
        )


def _representation(
    snapshot: Snapshot,
    tensor: Tensor,
    format_name: FormatName,
    content: Content,
    selection: Selection,
    dtype_name: str,
    shape: tuple[int, ...],
) -> Representation:
    model_name = snapshot.model_id.rpartition(b"/")[2]
    headers = {
        "Content-Type": MEDIA_TYPES[format_name],
        "X-Tensor-Shape": _shape_text(shape),
        "X-Tensor-Dtype": dtype_name,
        "X-Tensor-Type": str(tensor.type_name),
        "Content-Disposition": disposition(f"{text(model_name)}.{text(tensor.name)}", _SUFFIXES[format_name]),
    }
    etag = etag_of(snapshot, tensor.file, tensor.start, format_name, dtype_name, shape, selection.normal())
    return Representation(snapshot, content, content_length(content), etag, headers)


def etag_of(snapshot: Snapshot, *what: object) -> str:
    """A strong ETag, quoted: the same wherever the same is asked of the same content."""
    digest = hashlib.blake2b(snapshot.fingerprint(), digest_size=15)
    digest.update(repr(what).encode())
    return f'"{base64.urlsafe_b64encode(digest.digest()).decode()}"'


def disposition(name: str, suffix: str) -> str:
    """A Content-Disposition (RFC 6266) that offers a file name, with an ASCII fallback where it needs one."""
    kept = "".join("_" if char in '/\\:"%' or not char.isprintable() else char for char in name[:_LONGEST_FILE_NAME])
    full_name = f"{kept}.{suffix}"
    ascii_name = full_name.encode("ascii", "replace").decode().replace("?", "_")
    value = f'attachment; filename="{ascii_name}"'
    return value if ascii_name == full_name else f"{value}; filename*=UTF-8''{quote(full_name, safe='')}"
