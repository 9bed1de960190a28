"""Representations: in which form weights are answered, how long that is, and the headers that say so.

Everything here is known before a window is read: what can be refused is refused, and HEAD needs nothing more.
"""

import base64
import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

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

__all__ = ["MEDIA_TYPES", "Representation", "disposition", "etag_of", "model_etag", "represent", "weights_as"]

MEDIA_TYPES: dict[FormatName, str] = {
    "raw": "application/octet-stream",
    "npy": "application/x-npy",
    "json": "application/json",
    "native": "application/octet-stream",
}
_SUFFIXES: dict[FormatName, str] = {"raw": "bin", "npy": "npy", "json": "json", "native": "native.bin"}
# Characters of a file name before its suffix: file systems take 255 bytes, proxies headers of a few KiB.
_LONGEST_FILE_NAME = 200
_ETAG_BYTES = 15


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
    dtype = query.dtype or "float32"
    form = snapshot.kept((tensor.name, format_name, dtype), lambda: _form(snapshot, tensor, format_name, dtype))
    content: Content
    if format_name == "json":
        _check_json_size(selection.shape, form.dtype, json_limit)
        content = _json_content(form, selection)
    else:
        section = form.section(selection)
        content = [npy_header(form.dtype, selection.shape), section] if format_name == "npy" else [section]
    return form.representation(content, selection, selection.shape)


@dataclass(frozen=True, slots=True)
class _Form:
    """A tensor in one format and dtype: what all of its answers have in common, whatever they select.

    ``etag`` is the beginning of each one's ETag, as a digest that is copied and completed.
    """

    source: Source
    dtype_name: str
    dtype: np.dtype[Any]
    encode: Callable[[NDArray[Any], int], memoryview]
    headers: Mapping[str, str]
    etag: "hashlib.blake2b"

    def section(self, selection: Selection) -> Section:
        """The encoded items of a selection."""
        itemsize = self.dtype.itemsize
        return Section(
            self.source,
            selection,
            self.encode,
            itemsize,
            copies_nothing=self.source.dtype == self.dtype,
            n_bytes=selection.n_items * itemsize,
        )

    def representation(self, content: Content, selection: Selection, shape: tuple[int, ...]) -> Representation:
        """An answer."""
        digest = self.etag.copy()
        digest.update(f"{shape}, {selection.normal()!r})".encode())
        headers = {**self.headers, "X-Tensor-Shape": _shape_text(shape)}
        return Representation(self.source.snapshot, content, content_length(content), _quoted(digest), headers)


def _form(snapshot: Snapshot, tensor: Tensor, format_name: FormatName, dtype: DTypeName | Literal["native"]) -> _Form:
    if dtype == "native":
        weights = source(snapshot, tensor, "native")
        name, item_dtype = "native", weights.dtype
    else:
        name, item_dtype, weights = weights_as(snapshot, tensor, dtype)
    if name == "bfloat16" and format_name != "raw":
        raise BadRequest(
            "bad-parameter",
            f"{format_name} has no bfloat16: ask for format=raw, or for dtype=float32, which holds it.",
        )
    model_name = snapshot.model_id.rpartition(b"/")[2]
    headers = {
        "Content-Type": MEDIA_TYPES[format_name],
        "X-Tensor-Shape": "",  # each answer's own
        "X-Tensor-Dtype": name,
        "X-Tensor-Type": str(tensor.type_name),
        "Content-Disposition": disposition(f"{text(model_name)}.{text(tensor.name)}", _SUFFIXES[format_name]),
    }
    # The text that `etag_of` makes of these and of a shape and a selection.
    digest = hashlib.blake2b(snapshot.fingerprint(), digest_size=_ETAG_BYTES)
    digest.update(f"({tensor.file}, {tensor.start}, {format_name!r}, {name!r}, ".encode())

    def encode(items: NDArray[Any], _: int) -> memoryview:
        return as_bytes(converted(items, item_dtype, name))

    return _Form(weights, name, item_dtype, encode, headers, digest)


def _native(snapshot: Snapshot, tensor: Tensor, query: Query) -> Representation:
    if tensor.big_endian:
        raise Unreadable(
            "unsupported-type", "native blocks of a big-endian file are not served: ask for another format."
        )
    if query.cols is not None or query.slice is not None or query.dtype is not None:
        raise BadRequest(
            "bad-parameter", "format=native gives whole rows as stored: of the selections it takes rows only."
        )
    form = snapshot.kept((tensor.name, "native"), lambda: _form(snapshot, tensor, "native", "native"))
    selection = select_rows(tensor.n_rows, tensor.row_weights // form.source.item_weights, query.rows, None)
    shape = (selection.shape[0], tensor.row_weights) if query.rows is not None else tensor.shape
    return form.representation([form.section(selection)], selection, shape)


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


def _json_content(form: _Form, selection: Selection) -> Content:
    shape = selection.shape
    start = b'{"shape":%s,"dtype":"%s","data":' % (_shape_text(shape).encode(), form.dtype_name.encode())
    if not selection.n_items:
        return [start, empty_array_text(shape), b"}\n"]
    section = Section(
        form.source,
        selection,
        lambda items, first: array_text(converted(items, form.dtype, form.dtype_name), first, shape),
        item_bytes=None,
        copies_nothing=False,
    )
    return [start, section, b"}\n"]


def _shape_text(shape: tuple[int, ...]) -> str:
    return str([*shape]).replace(" ", "")


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


def etag_of(snapshot: Snapshot, *what: object) -> str:
    """A strong ETag, quoted: the same wherever the same is asked of the same content."""
    digest = hashlib.blake2b(snapshot.fingerprint(), digest_size=_ETAG_BYTES)
    digest.update(repr(what).encode())
    return _quoted(digest)


def model_etag(snapshot: Snapshot) -> str:
    """The ETag that stands for the whole model: any answer about this state of it may be asked for by If-Match."""
    return snapshot.kept("model", lambda: etag_of(snapshot, "model"))


def _quoted(digest: "hashlib.blake2b") -> str:
    return f'"{base64.b64encode(digest.digest(), b"-_").decode()}"'


def disposition(name: str, suffix: str) -> str:
    """A Content-Disposition (RFC 6266) that offers a file name, with an ASCII fallback where it needs one."""
    kept = "".join("_" if char in '/\\:"%' or not char.isprintable() else char for char in name[:_LONGEST_FILE_NAME])
    full_name = f"{kept}.{suffix}"
    ascii_name = full_name.encode("ascii", "replace").decode().replace("?", "_")
    value = f'attachment; filename="{ascii_name}"'
    return value if ascii_name == full_name else f"{value}; filename*=UTF-8''{quote(full_name, safe='')}"
