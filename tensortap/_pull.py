"""Pulling a whole model: the service's safetensors file of it, in parallel ranges, over several runs if need be.

What is verified before the file gets its name: every byte came from one version of the model (X-Model-ETag) and of
the body (ETag); every range had its length; what an earlier run left behind is still what came (CRC-32); the file has
the length that service and header say; and its header, read back from the disk, gives each tensor a place that fits
its dtype and shape, the places following each other from the first byte of the weights to the last.
Format: the safetensors README, "Format".
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlencode

from ._errors import ModelChanged, ServiceError
from ._flow import Answer, Ask, Compute, Flow, Sink, Together
from ._partial import PartialFile, refuse_folder
from ._progress import Progress, progress_of

__all__ = ["DType", "Pulled", "pulled"]

DType = Literal["float32", "float16", "bfloat16", "stored"]

# Each request makes the service write the header of all tensors (9 ms for 272 of them). A pull of 538 MB from loopback,
# with pieces of 4, 8, 16 and 32 MiB: 313, 433, 530 and 511 MB/s.
_PIECE_BYTES = 16 << 20
_LENGTH_BYTES = 8
_LONGEST_HEADER = 100_000_000  # what the safetensors library itself takes
_METADATA = "__metadata__"
_ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1}


@dataclass(frozen=True, slots=True)
class Pulled:
    """What was pulled.

    Attributes
    ----------
    path
        Of the file.
    n_bytes
        Of the file.
    n_tensors
        In it.
    moved
        Bytes that came in this run; the others were there from an earlier one.
    """

    path: Path
    n_bytes: int
    n_tensors: int
    moved: int


@dataclass(frozen=True, slots=True)
class _Body:
    """The service's file: where it is, which state of it, and how long it is."""

    path: str
    version: str
    etag: str
    length: int
    head: bytes

    def ask(self, sink: Sink, first: int) -> Ask:
        return Ask(self.path, {"If-Match": self.version}, sink=sink, first=first)


def pulled(
    href: str,
    version: str,
    path: str | os.PathLike[str],
    name: str | None,
    exclude: str | None,
    dtype: DType,
    progress: Progress,
) -> Flow[Pulled]:
    """Pull the file at ``href``, of one version of a model; the arguments as those of `RemoteModel.pull`."""
    target = Path(path)
    refuse_folder(target)
    asked = {"name": name, "exclude": exclude, "dtype": dtype}
    query = urlencode({key: value for key, value in asked.items() if value is not None}, errors="surrogateescape")
    body = yield from _looked_at(f"{href}?{query}", version)
    partial = PartialFile(target, body.etag, body.length)
    try:  # entered before it is opened: a flow that is closed meanwhile goes on with nothing but `finally`
        yield Compute(partial.open)
        missing = sum(stop - first for first, stop in partial.missing(body.length))
        if missing:
            yield Compute(lambda: partial.write(0, body.head))
        with progress_of(progress, target.name, body.length) as on_bytes:
            pieces = list(partial.missing(_PIECE_BYTES))
            on_bytes(body.length - sum(stop - first for first, stop in pieces))
            idle: list[bytearray] = []
            yield Together(_piece(body, partial, first, stop, on_bytes, idle) for first, stop in pieces)
        tensors = yield Compute(lambda: _read_back(partial, body))
        yield Compute(partial.finish)
    finally:
        partial.close()
    return Pulled(target, body.length, len(tensors), missing)


def _looked_at(path: str, version: str) -> Flow[_Body]:
    """The header of the service's file, and what it says of the rest."""
    headers = {"If-Match": version}
    sink = Sink(memoryview(bytearray(_LENGTH_BYTES)))
    answer: Answer = yield Ask(path, headers, sink=sink, first=0)
    size = int.from_bytes(sink.view, "little")
    if size > _LONGEST_HEADER:
        raise ServiceError(f"{path} is no safetensors file: it begins with a header of {size} bytes.")
    header = Sink(memoryview(bytearray(size)))
    if size:
        yield Ask(path, headers, sink=header, first=_LENGTH_BYTES)
    if sink.etag is None or (size and header.etag != sink.etag):
        raise ServiceError(f"{path} has no ETag that stays: something between the service and here takes it away.")
    head = bytes(sink.view) + bytes(header.view)
    length = len(head) + _weights_bytes(_tensors(head), path)
    stated = re.fullmatch(r"bytes \d+-\d+/(\d+|\*)", answer.headers.get("content-range", ""))
    if stated is not None and stated[1] not in (str(length), "*"):
        raise ServiceError(f"{path} is to have {stated[1]} bytes; by its header, it has {length}.")
    return _Body(path, version, sink.etag, length, head)


def _piece(
    body: _Body, partial: PartialFile, first: int, stop: int, on_bytes: Any, idle: list[bytearray]
) -> Flow[None]:
    """Bring a piece and put it in its place; where it breaks off, what came of it."""
    buffer = idle.pop() if idle else bytearray(_PIECE_BYTES)
    place = memoryview(buffer)[: stop - first]
    sink = Sink(place, on_bytes)
    try:
        yield body.ask(sink, first)
    except BaseException:
        if sink.filled and sink.etag == body.etag:
            partial.write(first, place[: sink.filled])
        raise
    if sink.etag != body.etag:
        raise ModelChanged(f"{body.path} went on as another body: pull it again.", slug="model-changed")
    yield Compute(lambda: partial.write(first, place))
    idle.append(buffer)


def _read_back(partial: PartialFile, body: _Body) -> list[str]:
    """The names of the tensors in the file on the disk; raises OSError if its header is not the one that came."""
    head = partial.read(0, len(body.head))
    if head != body.head or any(partial.missing(body.length)):
        raise OSError(f"the disk does not give back what was written to {partial.target}")
    return [name for name, _ in _tensors(head)]


def _tensors(head: bytes) -> list[tuple[str, Mapping[str, Any]]]:
    """The tensors that a safetensors header names, in its order."""
    try:
        header = json.loads(head[_LENGTH_BYTES:])
        return [(name, dict(tensor)) for name, tensor in header.items() if name != _METADATA]
    except (ValueError, TypeError, AttributeError):
        raise ServiceError("the header of the service's safetensors file is none.") from None


def _weights_bytes(tensors: list[tuple[str, Mapping[str, Any]]], path: str) -> int:
    """How many bytes the weights of a header's tensors take; raises ServiceError for places that do not fit."""
    at = 0
    for name, tensor in tensors:
        try:
            shape = tensor["shape"]
            size = math.prod(shape) * _ITEM_BYTES[tensor["dtype"]]
            fits = all(type(axis) is int for axis in shape) and tensor["data_offsets"] == [at, at + size] and size >= 0
        except (KeyError, TypeError):
            fits = False
        if not fits:
            raise ServiceError(f"{path}: the header gives the tensor {name!r} a place that does not fit it: {tensor}.")
        at += size
    return at
