"""JSON text of an array, made piece by piece: nested lists of the shortest digits that parse back to the same value."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

__all__ = ["array_text", "empty_array_text"]


def array_text(items: NDArray[Any], start: int, shape: Sequence[int]) -> bytes:
    """The text of items ``start`` to ``start + len(items)`` of an array of ``shape``, in C order.

    The texts of consecutive pieces, joined, are the array's JSON: the brackets that open before an item or close
    after it, and the comma before it, belong to its piece. NaN and infinities are the strings "NaN", "Infinity" and
    "-Infinity", since JSON has no such numbers.
    """
    return b"".join(_pieces(items, start, tuple(shape)))


def empty_array_text(shape: Sequence[int]) -> bytes:
    """The text of an array without items: ``[]``, or as many empty lists as its shape asks for."""
    # As text from the start: as Python lists they would take some twenty times its memory.
    text = b"[]"
    for length in reversed(shape[: tuple(shape).index(0)]):
        text = b"[" + (text + b",") * (length - 1) + text + b"]"
    return text


def _pieces(items: NDArray[Any], start: int, shape: tuple[int, ...]) -> Iterator[bytes]:
    if not shape:
        yield _dumped(items)[1:-1]
        return
    child = math.prod(shape[1:])
    if start == 0:
        yield b"["
    at = 0
    while at < len(items):
        index, inside = divmod(start + at, child)
        if inside == 0 and index:
            yield b","
        whole = (len(items) - at) // child
        if inside == 0 and whole:
            taken = items[at : at + whole * child]
            yield _dumped(taken.reshape(whole, *shape[1:]))[1:-1]
        else:
            taken = items[at : at + child - inside]
            yield from _pieces(taken, inside, shape[1:])
        at += len(taken)
    if start + len(items) == child * shape[0]:
        yield b"]"


def _dumped(items: NDArray[Any]) -> bytes:
    text = orjson.dumps(np.ascontiguousarray(items), option=orjson.OPT_SERIALIZE_NUMPY)
    if items.dtype.kind != "f":
        return text
    finite = np.isfinite(items)
    if finite.all():
        return text
    # What is not finite comes out as null, in order: each gets its name.
    names = [b'"NaN"' if value != value else b'"Infinity"' if value > 0 else b'"-Infinity"' for value in items[~finite]]
    parts = text.split(b"null")
    return b"".join(part for pair in zip(parts, [*names, b""], strict=True) for part in pair)
