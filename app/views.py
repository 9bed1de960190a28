"""Views: what the service says of models, metadata and tensors, as JSON text.

Plain functions from parsed headers to bytes. They may take a while for large arrays: call them from a thread.
"""

import base64
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any
from urllib.parse import urlencode

import numpy as np

from app.catalogue import Listed
from app.errors import BadRequest, NotFound, TooLarge
from app.gguf import Array, Entry, Tensor, Value, ValueType, quoted
from app.names import href, model_href, name_filter, text
from app.parameters import MetadataQuery, TensorsQuery
from app.selection import parse_slice
from app.snapshot import Snapshot
from app.summary import summarize
from decoders import GGMLType

__all__ = ["key_view", "metadata_view", "model_view", "models_view", "tensor_view", "tensors_view"]

_SHOWN = 40  # characters of a bad value that an error repeats
_LONGEST_STRING = 64 << 10  # of a string in the list of all keys; one key alone is given whole
# A header may have 256 MiB of values, and take many times that as JSON: what one answer holds is bounded. The largest
# vocabularies have some 500,000 merges; the strings of no published header come near 64 MiB.
_MOST_ELEMENTS = 1 << 20
_MOST_BYTES = 64 << 20
_READ_ELEMENTS = 1024


def models_view(listed: Sequence[Listed]) -> bytes:
    """Every model on the volume."""
    return _json({"count": len(listed), "models": [_listed(one) for one in listed]})


def _listed(one: Listed) -> dict[str, Any]:
    line: dict[str, Any] = {
        **_named("id", one.model_id),
        "href": model_href(one.model_id),
        "files": one.files,
        "bytes": one.bytes,
    }
    if one.summary is None:
        return {**line, "readable": False, "problem": one.problem.body() if one.problem else None}
    summary = one.summary
    return {
        **line,
        "readable": True,
        "architecture": summary.architecture,
        "name": summary.name,
        "parameters": summary.parameters,
        "tensors": summary.tensors,
        "unreadable_tensors": summary.unreadable_tensors,
        "types": {name: figures.tensors for name, figures in summary.types.items()},
        "warnings": summary.warnings,
    }


def model_view(snapshot: Snapshot) -> bytes:
    """One model in full."""
    model, model_id = snapshot.model, snapshot.model_id
    summary = summarize(model)
    return _json(
        {
            **_named("id", model_id),
            "href": model_href(model_id),
            "links": {verb: href(model_id, verb) for verb in ("metadata", "tensors", "safetensors")},
            "architecture": summary.architecture,
            "name": summary.name,
            "parameters": summary.parameters,
            "bytes": sum(header.file_size for header in model.headers),
            "files": [
                {
                    "bytes": header.file_size,
                    "version": header.version,
                    "byte_order": header.byte_order,
                    "alignment": header.alignment,
                    "data_start": header.data_start,
                    "tensors": len(header.tensors),
                }
                for header in model.headers
            ],
            "metadata_keys": len(model.metadata),
            "tensors": summary.tensors,
            "unreadable_tensors": summary.unreadable_tensors,
            "types": {name: asdict(figures) for name, figures in summary.types.items()},
            "warnings": list(model.warnings),
        }
    )


def metadata_view(snapshot: Snapshot, query: MetadataQuery) -> bytes:
    """Every key whose name begins with the query's prefix, in the file's order; arrays and long strings shortened.

    Raises
    ------
    TooLarge
        ``response-too-large``: more elements, or bytes of strings, than one answer holds.
    """
    prefix = query.prefix.encode("utf-8", "surrogateescape")
    entries = [entry for entry in snapshot.model.metadata if entry.key.startswith(prefix)]
    allowance = _Allowance("ask for fewer keys with prefix=, for fewer items, or for one key")
    return _json(
        {
            **_named("model", snapshot.model_id),
            "count": len(entries),
            "metadata": [_entry(snapshot, entry, query.items, allowance) for entry in entries],
        }
    )


def _entry(snapshot: Snapshot, entry: Entry, items: int, allowance: "_Allowance") -> dict[str, Any]:
    allowance.take(size=len(entry.key))
    line = {
        **_named("key", entry.key),
        "href": href(snapshot.model_id, "metadata", entry.key),
        "type": entry.type.label,
    }
    value = entry.value
    if isinstance(value, Array):
        shown = _values(value, slice(items), allowance)
        return {**line, **_array_kind(value), "items": shown, "whole": len(value) <= items}
    if isinstance(value, bytes):
        beginning = _beginning(value, _LONGEST_STRING)
        allowance.take(size=len(beginning))
        return {**line, "length": len(value), **_string(beginning), "whole": len(value) <= _LONGEST_STRING}
    return {**line, "value": _number(entry.type, value)}


def key_view(snapshot: Snapshot, key: bytes, slice_text: str | None) -> bytes:
    """Every value of one key (a file may give it more than once), whole, or a slice of an array.

    Raises
    ------
    NotFound
        ``no-such-key``.
    BadRequest
        ``bad-selection`` for a slice that is none, or of a value that is no array.
    TooLarge
        ``response-too-large``: more elements, or bytes of strings, than one answer holds.
    """
    entries = snapshot.model.metadata.all(key)
    if not entries:
        raise NotFound("no-such-key", f"the model has no key {quoted(key)}; the metadata listing has all of them.")
    picked = None if slice_text is None else parse_slice("slice", slice_text)
    allowance = _Allowance("ask for a slice= of the array; of a longer string, the metadata listing has the beginning")
    values = [_whole(entry, picked, allowance) for entry in entries]
    body = {**_named("model", snapshot.model_id), **_named("key", key), **values[0]}
    if len(values) > 1:
        body["values"] = values
    return _json(body)


def _whole(entry: Entry, picked: slice | None, allowance: "_Allowance") -> dict[str, Any]:
    value = entry.value
    if isinstance(value, Array):
        items = _values(value, picked or slice(None), allowance)
        return {"type": entry.type.label, **_array_kind(value), "items": items}
    if picked is not None:
        raise BadRequest("bad-selection", f"slice is for arrays; {quoted(entry.key)} is of type {entry.type.label}.")
    if isinstance(value, bytes):
        allowance.take(size=len(value))
        return {"type": entry.type.label, "length": len(value), **_string(value)}
    return {"type": entry.type.label, "value": _number(entry.type, value)}


def tensors_view(snapshot: Snapshot, query: TensorsQuery) -> bytes:
    """The tensor table: tensors in the file's order that match the query, a page at a time."""
    tensors: Iterable[Tensor] = snapshot.model.tensors
    if query.name is not None:
        is_wanted = name_filter(query.name)
        tensors = (tensor for tensor in tensors if is_wanted(tensor.name))
    if query.type is not None:
        wanted = query.type.upper()
        known = {(tensor.type_name or "").upper() for tensor in snapshot.model.tensors}
        if not (wanted.isdecimal() or wanted in GGMLType.__members__ or wanted in known):
            raise BadRequest("bad-parameter", f"type={query.type[:_SHOWN]!r} is no type that ggml has, as Q4_K or 12.")
        tensors = (
            tensor for tensor in tensors if wanted in (str(tensor.type_id), (tensor.type_name or "").upper() or None)
        )
    found = list(tensors)
    page = list(_page(found, query))
    end = query.cursor + len(page)
    body: dict[str, Any] = {
        **_named("model", snapshot.model_id),
        "count": len(found),
        "tensors": [_tensor(snapshot, tensor) for tensor in page],
    }
    if end < len(found):
        more = {**query.model_dump(exclude_defaults=True), "cursor": end}
        body["next"] = f"{href(snapshot.model_id, 'tensors')}?{urlencode(more, errors='surrogateescape')}"
    return _json(body)


def _page(found: Sequence[Tensor], query: TensorsQuery) -> Iterator[Tensor]:
    """The tensors of a page: as many as the limit says, or as their names leave room for; at least one."""
    room = _MOST_BYTES
    for tensor in found[query.cursor : query.cursor + query.limit]:
        room -= len(tensor.name)
        yield tensor
        if room < 0:
            return


def tensor_view(snapshot: Snapshot, name: bytes) -> bytes:
    """One tensor, or all of that name where the file has it more than once.

    Raises
    ------
    NotFound
        ``no-such-tensor``.
    """
    same = [tensor for tensor in snapshot.model.tensors if tensor.name == name]
    if not same:
        raise NotFound("no-such-tensor", f"the model has no tensor {quoted(name)}; the tensor table has all of them.")
    body = {**_named("model", snapshot.model_id), **_tensor(snapshot, same[0])}
    if len(same) > 1:
        body["same_name"] = [_tensor(snapshot, tensor) for tensor in same]
    return _json(body)


def _tensor(snapshot: Snapshot, tensor: Tensor) -> dict[str, Any]:
    model_id = snapshot.model_id
    line: dict[str, Any] = {
        **_named("name", tensor.name),
        "shape": list(tensor.shape),
        "ne": list(tensor.ne),
        "type": tensor.type_name,
        "type_id": tensor.type_id,
        "rows": tensor.n_rows,
        "row_weights": tensor.row_weights,
        "weights": tensor.n_weights,
        "bytes": tensor.n_bytes,
        "file": tensor.file,
        "offset": tensor.offset,
        "start": tensor.start,
        "readable": tensor.readable,
    }
    if tensor.original_shape is not None:
        line["original_shape"] = list(tensor.original_shape)
    if tensor.fault is not None:
        line["fault"] = {"type": f"/problems/{tensor.fault.slug}", "detail": tensor.fault.detail}
    line["href"] = href(model_id, "tensors", tensor.name)
    line["data"] = href(model_id, "data", tensor.name)
    return line


def _named(field: str, name: bytes) -> dict[str, str]:
    """A name as text, and its bytes where the text is not the name."""
    shown = text(name)
    if shown.encode() == name:
        return {field: shown}
    return {field: shown, f"{field}_base64": base64.b64encode(name).decode()}


def _string(value: bytes) -> dict[str, str]:
    return _named("value", value)


def _array_kind(value: Array) -> dict[str, Any]:
    return {"element_type": value.element_type.label, "length": len(value)}


class _Allowance:
    """How many more elements, and bytes of strings, an answer may hold; ``remedy`` is for when that is not enough."""

    def __init__(self, remedy: str) -> None:
        self._elements = _MOST_ELEMENTS
        self._bytes = _MOST_BYTES
        self._remedy = remedy

    def take(self, elements: int = 0, size: int = 0) -> None:
        """Count some; raises TooLarge when they are too many."""
        self._elements -= elements
        self._bytes -= size
        if self._elements < 0 or self._bytes < 0:
            raise TooLarge(
                "response-too-large",
                f"the values are over the limit of {_MOST_ELEMENTS} elements and {_MOST_BYTES} bytes of strings "
                f"in one answer: {self._remedy}.",
                limit=_MOST_ELEMENTS if self._elements < 0 else _MOST_BYTES,
            )


def _beginning(value: bytes, size: int) -> bytes:
    """The first bytes of a string, at most ``size``, without a character that this would cut."""
    if len(value) <= size:
        return value
    # Bytes that go on with a character are 10xxxxxx: there are three at most.
    cut = next((at for at in range(size, size - 4, -1) if value[at] & 0xC0 != 0x80), size)
    return value[:cut]


def _values(array: Array, picked: slice, allowance: _Allowance) -> list[Any]:
    """Elements as JSON: a string that is not UTF-8 is an object with its bytes, an inner array its list."""
    places = range(len(array))[picked]
    allowance.take(elements=len(places))
    shown: list[Any] = []
    # A few at a time: strings that are too many bytes are refused before all of them are copied.
    for at in range(0, len(places), _READ_ELEMENTS):
        some = places[at : at + _READ_ELEMENTS]
        shown += _json_values(array, array[some.start : some.stop if some.stop >= 0 else None : some.step], allowance)
    return shown


def _json_values(array: Array, values: Sequence[Value], allowance: _Allowance) -> list[Any]:
    if array.element_type is ValueType.FLOAT32:
        return [_special(float(digits)) for digits in np.array(values, np.float32).astype(str)]
    if array.element_type is ValueType.FLOAT64:
        return [_special(float(value)) for value in values if not isinstance(value, bytes | Array)]
    shown: list[Any] = []
    for value in values:
        if isinstance(value, bytes):
            allowance.take(size=len(value))
            try:
                shown.append(value.decode())
            except UnicodeDecodeError:
                shown.append({"text": text(value), "base64": base64.b64encode(value).decode()})
        elif isinstance(value, Array):
            shown.append(_values(value, slice(None), allowance))
        else:
            shown.append(value)
    return shown


def _number(value_type: ValueType, value: Value) -> Any:
    if value_type is ValueType.FLOAT32:
        # The shortest digits that name the float32, not those of its float64 image.
        return _special(float(str(np.float32(value))))  # type: ignore[arg-type]
    return _special(value) if isinstance(value, float) else value


def _special(value: float) -> float | str:
    """JSON has no NaN and no infinities: they are strings, as in ``format=json``."""
    if value != value:
        return "NaN"
    return value if abs(value) != float("inf") else "Infinity" if value > 0 else "-Infinity"


def _json(body: dict[str, Any]) -> bytes:
    # The standard library's, since sizes and metadata may be integers of any length.
    # The line break is for those who read it in a terminal.
    return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode() + b"\n"
