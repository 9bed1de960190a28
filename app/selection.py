"""Selections: numpy's basic indexing over a tensor, parsed and checked against its shape.

A selection is a result shape and a list of *parts*, each a set of item positions in order: a *lattice* (one base and
a few pairs of count and stride) or a *gather* (equal runs that begin anywhere). The items of all parts, one part after
the other, are the answer. An item is a weight; for ``native`` answers it is a block, and a row is counted in blocks.
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from app.errors import BadRequest

__all__ = ["Gather", "Lattice", "Selection", "parse_slice", "select_all", "select_nd", "select_rows"]

_INTEGER = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_MOST_SLICES = 20_000  # each takes 256 bytes for as long as its answer runs; integers take 8
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

    @classmethod
    def merged(cls, base: int, dims: Iterable[tuple[int, int]]) -> "Lattice":
        """The same positions in the same order with the fewest pairs: neighbours that make one run are joined."""
        fewest: list[tuple[int, int]] = []
        for count, stride in dims:
            if count == 1:
                continue
            if fewest and fewest[-1][1] == count * stride:
                fewest[-1] = (fewest[-1][0] * count, stride)
            else:
                fewest.append((count, stride))
        return cls(base, tuple(fewest))

    def narrowed(self, first: int, stop: int) -> "Iterator[Lattice]":
        """Its items ``first`` to ``stop`` (both within it), as lattices in order."""
        if first >= stop:
            return
        if not self.dims:
            yield self
            return
        (_, stride), inner = self.dims[0], self.dims[1:]
        size = math.prod(count for count, _ in inner)
        low, into = divmod(first, size)
        high, over = divmod(stop, size)
        if low == high:
            yield from Lattice(self.base + low * stride, inner).narrowed(into, over)
            return
        if into:
            yield from Lattice(self.base + low * stride, inner).narrowed(into, size)
            low += 1
        if low < high:
            yield Lattice.merged(self.base + low * stride, ((high - low, stride), *inner))
        yield from Lattice(self.base + high * stride, inner).narrowed(0, over)


@dataclass(frozen=True, slots=True, eq=False)
class Gather:
    """Runs of ``run_items`` items, ``stride`` apart, that begin at ``starts`` (int64, in the order of the answer)."""

    starts: NDArray[np.int64]
    run_items: int
    stride: int

    @property
    def n_items(self) -> int:
        """How many positions there are."""
        return len(self.starts) * self.run_items

    def narrowed(self, first: int, stop: int) -> "Iterator[Lattice | Gather]":
        """Its items ``first`` to ``stop`` (both within it), in order: a cut run, whole runs, a cut run."""
        if first >= stop:
            return
        low, into = divmod(first, self.run_items)
        high, over = divmod(stop, self.run_items)
        if low == high:
            yield from self._run(low).narrowed(into, over)
            return
        if into:
            yield from self._run(low).narrowed(into, self.run_items)
            low += 1
        if low < high:
            yield Gather(self.starts[low:high], self.run_items, self.stride)
        if over:
            yield from self._run(high).narrowed(0, over)

    def _run(self, number: int) -> Lattice:
        return Lattice(int(self.starts[number]), ((self.run_items, self.stride),))


@dataclass(frozen=True, slots=True)
class Selection:
    """What is asked of a tensor: the shape of the answer and the parts that fill it."""

    shape: tuple[int, ...]
    parts: tuple[Lattice | Gather, ...]

    @property
    def n_items(self) -> int:
        """How many items the answer has."""
        return math.prod(self.shape)

    def narrowed(self, first: int, stop: int) -> "Selection":
        """The items ``first`` to ``stop`` of the answer, as a 1-D selection."""
        parts: list[Lattice | Gather] = []
        at = 0
        for part in self.parts:
            end = at + part.n_items
            if end > first and at < stop:
                parts += part.narrowed(max(first - at, 0), min(stop, end) - at)
            at = end
        return Selection((stop - first,), tuple(parts))

    def normal(self) -> str:
        """A text that is the same for selections of the same items in the same parts and shape."""
        # It goes into ETags: a change of this text is one of every ETag.
        parts = (
            f"Lattice(base={part.base}, dims={part.dims})"
            if isinstance(part, Lattice)
            else f"({part.starts.tolist()}, {part.run_items}, {part.stride})"
            for part in self.parts
        )
        return f"{self.shape}[{', '.join(parts)}]"


def select_all(shape: Sequence[int]) -> Selection:
    """The whole tensor in its own shape."""
    n_items = math.prod(shape)
    return Selection(tuple(shape), (Lattice.merged(0, ((n_items, 1),)),) if n_items else ())


def select_rows(
    n_rows: int, row_items: int, rows: str | int | Sequence[int | str] | None, cols: str | int | None
) -> Selection:
    """Rows of a tensor of ``n_rows`` rows, and columns of each: always a 2-D answer.

    Parameters
    ----------
    rows
        Integers and slices, as a text with commas or as a list, kept in order with their repeats; None is all rows.
    cols
        One integer or slice over a row; None is all of it. An integer keeps its axis.

    Raises
    ------
    BadRequest
        ``bad-selection`` for what is no integer or slice, ``selection-out-of-range`` for an integer outside.
    """
    if isinstance(cols, str) and "," in cols:
        raise BadRequest("bad-selection", "cols takes one integer or slice; a list of parts is for rows only.")
    first_col, n_cols, col_step = (
        (0, row_items, 1) if cols is None else _resolve("cols", _parse_part("cols", cols), row_items)
    )

    if rows is None or isinstance(rows, int) or (isinstance(rows, str) and "," not in rows):
        # One part, as in most requests: a lattice, whether it is an integer or a slice.
        first, count, step = _resolve("rows", slice(None) if rows is None else _parse_part("rows", rows), n_rows)
        dims = ((count, step * row_items), (n_cols, col_step))
        lattice = Lattice.merged(first * row_items + first_col, dims)
        return Selection((count, n_cols), (lattice,) if count and n_cols else ())

    given: Iterable[int | str] = rows.split(",") if isinstance(rows, str) else rows
    selected = 0
    parts: list[Lattice | Gather] = []
    row_parts = (_parse_part("rows", part) for part in given)
    n_slices = 0
    for are_integers, group in groupby(row_parts, lambda part: isinstance(part, int)):
        if are_integers:
            numbers = [part for part in group if isinstance(part, int)]
            _check_integers("rows", numbers, n_rows)
            selected += len(numbers)
            if n_cols:
                starts = np.array(numbers, np.int64)
                starts[starts < 0] += n_rows
                _append(parts, Gather(starts * row_items + first_col, n_cols, col_step), row_items)
            continue
        for part in group:
            first, count, step = _resolve("rows", part, n_rows)
            n_slices += 1
            if n_slices > _MOST_SLICES:
                raise BadRequest(
                    "bad-selection",
                    f"rows lists more than {_MOST_SLICES} slices: ask in several requests, or list integers.",
                )
            selected += count
            if count and n_cols:
                dims = ((count, step * row_items), (n_cols, col_step))
                _append(parts, Lattice(first * row_items + first_col, dims), row_items)
    return Selection((selected, n_cols), tuple(parts))


def _append(parts: list[Lattice | Gather], part: Lattice | Gather, row_items: int) -> None:
    """Add a part, as a lattice if it is one, joined to the one before if the two make one run of items."""
    if isinstance(part, Gather) and bool((np.diff(part.starts) == row_items).all()):
        part = Lattice(int(part.starts[0]), ((len(part.starts), row_items), (part.run_items, part.stride)))
    if isinstance(part, Lattice):
        part = Lattice.merged(part.base, part.dims)
        before = parts[-1] if parts else None
        both_runs = isinstance(before, Lattice) and _is_run(before) and _is_run(part)
        if isinstance(before, Lattice) and both_runs and part.base == before.base + before.n_items:
            parts[-1] = Lattice(before.base, ((before.n_items + part.n_items, 1),))
            return
    parts.append(part)


def _is_run(lattice: Lattice) -> bool:
    """Whether the items are consecutive; a merged lattice of one item has no pair."""
    return not lattice.dims or (len(lattice.dims) == 1 and lattice.dims[0][1] == 1)


def _check_integers(name: str, numbers: list[int], length: int) -> None:
    for number in (min(numbers), max(numbers)):
        _resolve(name, number, length)


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
    return Selection(tuple(result), (Lattice.merged(base, dims),))


def parse_slice(name: str, text: str) -> slice:
    """One slice ``start:stop:step`` of the parameter ``name``; an integer ``i`` is ``i:i+1``. Raises BadRequest."""
    part = _parse_part(name, text)
    if isinstance(part, int):
        return slice(part, part + 1 or None)
    return part


def _parse_part(name: str, text: str | int) -> int | slice:
    """One integer or slice of the grammar: plain ASCII digits, at most 19, an optional minus, nothing else."""
    if isinstance(text, int):
        return text
    if _INTEGER.fullmatch(text):
        return int(text)
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
