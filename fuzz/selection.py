"""Selections as text against numpy's own slicing, down to the items of windows that a plan takes.

An input: a byte that picks a shape, one for the kind of selection, one for the size of windows and for a cut, then
the text.
"""

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.errors import BadRequest
from app.plan import assemble, only_run, plan
from app.selection import Gather, Lattice, Selection, parse_slice, select_nd, select_rows

__all__ = ["WORDS", "run", "seeds"]

WORDS = (b":", b"::", b",", b"...", b"-1", b"::-1", b"0:", b"9223372036854775808", b"-9999999999999999999", b"&", b"00")
_SHAPES = ((), (0,), (1,), (7,), (4, 3), (4, 0), (0, 4), (2, 3, 4), (3, 1, 2), (2, 3, 2, 4), (64, 5), (1, 40))
_INTEGER = re.compile("-?[0-9]{1,19}")
_SLICE = re.compile("(-?[0-9]{1,19})?(?::(-?[0-9]{1,19})?)(?::(-?[0-9]{1,19})?)?")
_TEXTS = (
    b"0",
    b"-1",
    b":",
    b"::2",
    b"::-1",
    b"3:1:-1",
    b"0,0,1",
    b"2:,:2",
    b"...,0",
    b"0,...,1:",
    b"1,1,2:4&::2",
    b"5&-1",
)

# Of a text with a part that is none and an integer that is outside, either is a fault.
_EITHER = "either"

Part = int | slice


def run(data: bytes) -> None:
    """Select by the service and by numpy, and compare."""
    if len(data) < 3:
        return
    shape, kind, third = _SHAPES[data[0] % len(_SHAPES)], data[1] % 5, data[2]
    text = data[3:].decode("utf-8", "surrogateescape")
    array = np.arange(prod(shape)).reshape(shape)
    rows = array.reshape(-1 if prod(shape) else prod(shape[:-1]), shape[-1] if shape else 1)
    if kind == 0:
        _compare(lambda: select_nd(shape, text), _nd(array, text), third)
    elif kind == 4:
        _compare_slice(text)
    else:
        row_text, _, col_text = text.partition("&") if kind == 2 else (text, "", None)
        given: str | list[int | str] = row_text if kind < 3 else _posted(row_text)
        _compare(
            lambda: select_rows(*rows.shape, given, col_text),
            _rows(rows, given, col_text),
            third,
        )


def seeds() -> list[bytes]:
    """Each kind of text, of each kind of shape."""
    return [
        bytes((shape, kind, 37)) + text
        for number, text in enumerate(_TEXTS)
        for kind in range(5)
        for shape in (3, 4 + number % 6)
    ]


def _posted(text: str) -> list[int | str]:
    return [int(part) if _INTEGER.fullmatch(part) else part for part in text.split(",")]


def _compare(select: Callable[[], Selection], wanted: NDArray[np.int64] | str, third: int) -> None:
    if isinstance(wanted, str):
        refusal = _refusal(select)
        assert refusal is not None, f"this should be {wanted}"
        assert wanted in (refusal.slug, _EITHER)
        assert len(refusal.detail) < 500
        return
    selection = select()
    assert selection.shape == wanted.shape
    assert selection.n_items == wanted.size == sum(part.n_items for part in selection.parts)
    flat = wanted.reshape(-1)
    assert np.array_equal(_items(selection), flat)
    assert selection.normal().isascii()
    _compare_plan(selection, flat, 1 + third % 32)
    first = len(flat) * (third % 7) // 7
    stop = min(len(flat), max(first, len(flat) * (third % 5) // 4))
    narrowed = selection.narrowed(first, stop)
    assert np.array_equal(_items(narrowed), flat[first:stop])
    _compare_plan(narrowed, flat[first:stop], 1 + third % 32)


def _refusal(select: Callable[[], object]) -> BadRequest | None:
    try:
        select()
    except BadRequest as error:
        return error
    return None


def _compare_plan(selection: Selection, wanted: NDArray[np.int64], window_items: int) -> None:
    def window(number: int) -> NDArray[np.int64]:
        return np.arange(number * window_items, (number + 1) * window_items)

    pieces = list(plan(selection, window_items))
    assert all(0 < piece.n_items <= window_items for piece in pieces)
    made = [assemble(piece, window) for piece in pieces]
    assert np.array_equal(np.concatenate([*made, np.empty(0, np.int64)]), wanted)
    run_of_all = only_run(selection, window_items)
    if run_of_all is not None:
        number, offset, n_items = run_of_all
        assert np.array_equal(window(number)[offset : offset + n_items], wanted)


def _items(selection: Selection) -> NDArray[np.int64]:
    return np.concatenate([np.empty(0, np.int64), *map(_places, selection.parts)])


def _places(part: Lattice | Gather) -> NDArray[np.int64]:
    if isinstance(part, Gather):
        return (part.starts[:, None] + np.arange(part.run_items) * part.stride).reshape(-1)
    places = np.array([part.base])
    for count, stride in part.dims:
        places = (places[:, None] + np.arange(count) * stride).reshape(-1)
    return places


def _rows(rows: NDArray[np.int64], given: str | list[int | str], cols: str | None) -> NDArray[np.int64] | str:
    """What numpy gives, with integers that keep their axis; or the slug of what is wrong."""
    texts: Sequence[int | str] = given.split(",") if isinstance(given, str) else given
    row_parts, col_parts = _parsed(texts), _parsed([":" if cols is None else cols])
    outside = _is_outside(row_parts, rows.shape[0]) or _is_outside(col_parts, rows.shape[1])
    if None in row_parts or None in col_parts:
        return _EITHER if outside else "bad-selection"
    if outside:
        return "selection-out-of-range"
    (col,) = map(_kept_axis, col_parts)
    return np.concatenate([rows[_kept_axis(part), col] for part in row_parts])


def _nd(array: NDArray[np.int64], text: str) -> NDArray[np.int64] | str:
    """What numpy gives, or the slug of what is wrong."""
    texts = text.split(",")
    parts = _parsed([one for one in texts if one != "..."])
    if None in parts or texts.count("...") > 1 or len(parts) > array.ndim:
        return _EITHER if any(isinstance(part, int) for part in parts) else "bad-selection"
    index: list[Any] = [... if one == "..." else _part(one) for one in texts]
    try:
        return np.asarray(array[tuple(index)])
    except (IndexError, OverflowError):
        return "selection-out-of-range"


def _is_outside(parts: Sequence[Part | None], length: int) -> bool:
    return any(isinstance(part, int) and not -length <= part < length for part in parts)


def _kept_axis(part: Part | None) -> slice:
    assert part is not None
    return slice(part, part + 1 or None) if isinstance(part, int) else part


def _parsed(texts: Sequence[int | str]) -> list[Part | None]:
    return [_part(text) for text in texts]


def _part(text: int | str) -> Part | None:
    if isinstance(text, int):
        return text
    if _INTEGER.fullmatch(text):
        return int(text)
    match = _SLICE.fullmatch(text)
    if match is None:
        return None
    numbers = [None if number is None else int(number) for number in match.groups()]
    return None if numbers[2] == 0 else slice(*numbers)


def _compare_slice(text: str) -> None:
    """A slice of a metadata array."""
    part = _part(text)
    with suppress(BadRequest):
        assert parse_slice("slice", text) == (None if part is None else _kept_axis(part))
        return
    assert part is None
