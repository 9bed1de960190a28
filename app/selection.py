"""Selections: numpy's basic indexing over a tensor, parsed and checked against its shape.

A selection is a result shape and a list of *lattices*: sets of item positions that one base and a few
(count, stride) pairs describe. Their items, one lattice after the other and each in C order, are the answer.
An item is a weight; for ``native`` answers it is a block, and a row is counted in blocks.
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from app.errors import BadRequest

__all__ = ["Lattice", "Selection", "parse_slice", "select_all", "select_nd", "select_rows"]

_INTEGER = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_SHOWN = 40  # characters of a bad part that an error repeats


@dataclass(frozen=True, slots=True)
class Lattice:
    """Item positions ``base + sum(i_k * stride_k)``, ``0 <= i_k < count_k``, the last pair fastest."""

    base: int
    dims: tuple[tuple[int, int], ...]

    @property
    def n_items(self) -> int:
        """How many positions there are."""
        return math.prod(count for count, _ in self.dims)

    def merged(self) -> "Lattice":
        """The same positions in the same order with the fewest pairs: neighbours that make one run are joined."""
        dims: list[tuple[int, int]] = []
        for count, stride in self.dims:
            if count == 1:
                continue
            if dims and dims[-1][1] == count * stride:
                dims[-1] = (dims[-1][0] * count, stride)
            else:
                dims.append((count, stride))
        return Lattice(self.base, tuple(dims))


@dataclass(frozen=True, slots=True)
class Selection:
    """What is asked of a tensor: the shape of the answer and the items that fill it."""

    shape: tuple[int, ...]
    lattices: tuple[Lattice, ...]

    @property
    def n_items(self) -> int:
        """How many items the answer has."""
        return math.prod(self.shape)


def select_all(shape: Sequence[int]) -> Selection:
    """The whole tensor in its own shape."""
    n_items = math.prod(shape)
    return Selection(tuple(shape), (Lattice(0, ((n_items, 1),)).merged(),) if n_items else ())


def select_rows(n_rows: int, row_items: int, rows: str | None, cols: str | None) -> Selection:
    """Rows of a tensor of ``n_rows`` rows, and columns of each: always a 2-D answer.

    Parameters
    ----------
    rows
        Integers and slices joined by commas, kept in order with their repeats; None is all rows.
    cols
        One integer or slice over a row; None is all of it. An integer keeps its axis.

    Raises
    ------
    BadRequest
        ``bad-selection`` for what is no integer or slice, ``selection-out-of-range`` for an integer outside.
    """
    row_parts = [slice(None)] if rows is None else [_parse_part("rows", part) for part in rows.split(",")]
    if cols is not None and "," in cols:
        raise BadRequest("bad-selection", "cols takes one integer or slice; a list of parts is for rows only.")
    col_part = slice(None) if cols is None else _parse_part("cols", cols)
    first_col, n_cols, col_step = _resolve("cols", col_part, row_items)

    selected = 0
    lattices: list[Lattice] = []
    for first, count, step in _joined(_resolve("rows", part, n_rows) for part in row_parts):
        selected += count
        if count and n_cols:
            dims = ((count, step * row_items), (n_cols, col_step))
            lattices.append(Lattice(first * row_items + first_col, dims).merged())
    return Selection((selected, n_cols), tuple(lattices))


def select_nd(shape: Sequence[int], text: str) -> Selection:
    """An N-D selection in numpy's order: integers (which drop their axis), slices and one ``...``.

    Raises
    ------
    BadRequest
        ``bad-selection`` or ``selection-out-of-range``, as for rows.
    """
    parts = text.split(",")
    if parts.count("...") > 1:
        raise BadRequest("bad-selection", "slice takes at most one '...'.")
    n_given = len(parts) - parts.count("...")
    if n_given > len(shape):
        raise BadRequest(
            "bad-selection",
            f"slice has {n_given} parts, but the tensor has {len(shape)} axes: {list(shape)}.",
        )
    parsed: list[int | slice] = []
    for part in parts:
        if part == "...":
            parsed += [slice(None)] * (len(shape) - n_given)
        else:
            parsed.append(_parse_part("slice", part))
    parsed += [slice(None)] * (len(shape) - len(parsed))

    base, stride = 0, 1
    dims: list[tuple[int, int]] = []
    result: list[int] = []
    for axis in reversed(range(len(shape))):
        index = parsed[axis]
        first, count, step = _resolve(f"slice, axis {axis}", index, shape[axis])
        base += first * stride
        dims.insert(0, (count, step * stride))
        if isinstance(index, slice):
            result.insert(0, count)
        stride *= shape[axis]
    if not all(count for count, _ in dims):
        return Selection(tuple(result), ())
    return Selection(tuple(result), (Lattice(base, tuple(dims)).merged(),))


def parse_slice(name: str, text: str) -> slice:
    """One slice ``start:stop:step`` of the parameter ``name``; an integer ``i`` is ``i:i+1``. Raises BadRequest."""
    part = _parse_part(name, text)
    if isinstance(part, int):
        return slice(part, part + 1 or None)
    return part


def _parse_part(name: str, text: str) -> int | slice:
    """One integer or slice of the grammar: plain ASCII digits, at most 19, an optional minus, nothing else."""
    fields = text.split(":")
    if len(fields) > 3:
        raise _bad_part(name, text, "a slice has at most two colons")
    numbers: list[int | None] = []
    for field in fields:
        if field == "" and len(fields) > 1:
            numbers.append(None)
        elif _INTEGER.fullmatch(field):
            numbers.append(int(field))
        else:
            raise _bad_part(name, text, "expected an integer of at most 19 digits, or a slice start:stop:step")
    if len(fields) == 1 and numbers[0] is not None:
        return numbers[0]
    if len(numbers) == 3 and numbers[2] == 0:
        raise _bad_part(name, text, "a slice's step cannot be 0")
    return slice(*numbers)


def _bad_part(name: str, text: str, why: str) -> BadRequest:
    shown = text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
    return BadRequest("bad-selection", f"{name}={shown!r}: {why}.")


def _resolve(name: str, part: int | slice, length: int) -> tuple[int, int, int]:
    """A part on an axis of ``length`` items, as (first, count, step)."""
    if isinstance(part, int):
        if not -length <= part < length:
            bounds = f"{-length} to {length - 1}" if length else "none: the axis is empty"
            raise BadRequest(
                "selection-out-of-range",
                f"{name}: {part} is outside; valid integers are {bounds}.",
                index=part,
                length=length,
            )
        return (part + length if part < 0 else part), 1, 1
    first, stop, step = part.indices(length)
    # Not len(range(...)): an empty tensor may have more rows than that can count.
    count = max(0, -((first - stop) // step))
    return (first if count else 0), count, step


def _joined(parts: Iterable[tuple[int, int, int]]) -> Iterable[tuple[int, int, int]]:
    """The parts with neighbours that continue each other made one: 3,4,5 and 3:5,5 are runs of rows like 3:6."""
    held: tuple[int, int, int] | None = None
    for first, count, step in parts:
        if not count:
            continue
        if count == 1:
            step = 1
        if held and held[2] == step == 1 and held[0] + held[1] == first:
            held = (held[0], held[1] + count, 1)
            continue
        if held:
            yield held
        held = (first, count, step)
    if held:
        yield held
