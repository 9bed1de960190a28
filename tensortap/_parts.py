"""What is moved for a selection: in which form, and cut into parts that are fetched on their own.

A tensor has two bodies at the service that bytes are taken from: its stored blocks (``native``) and its weights as
float32 (``raw``). Either is rows one after the other. A *part* is some intervals of one of them, and says where in the
result its weights go.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ._index import Box, Indices
from ._table import TensorLine

__all__ = ["Body", "Interval", "Part", "Wanted", "cut", "rows_text", "wanted"]

Body = Literal["native", "raw"]
Interval = tuple[int, int]  # first byte, and the one after the last
_FLOAT_BYTES = 4
_MOST_RUNS = 1 << 14  # of a part: the service takes 20,000 slices in one request


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a box needs, and the form in which least is to be moved for it.

    Attributes
    ----------
    body
        Which body is moved.
    rows
        The rows, as runs ``(first, stop)`` in ascending order, of shape (n, 2).
    n_rows
        How many they are.
    columns
        Of each row, the weights that are moved: all of them, but for ``raw``, where they may be a slice.
    picked
        Which of the moved columns are in the box; a slice or their places.
    """

    body: Body
    rows: NDArray[np.int64]
    n_rows: int
    columns: range
    picked: slice | NDArray[np.int64]

    def n_bytes(self, line: TensorLine) -> int:
        """How many bytes of the body that is."""
        return self.n_rows * (line.row_bytes if self.body == "native" else len(self.columns) * _FLOAT_BYTES)

    @property
    def takes_all(self) -> bool:
        """Whether the box is all that is moved."""
        return isinstance(self.picked, slice) and len(range(len(self.columns))[self.picked]) == len(self.columns)


@dataclass(frozen=True, slots=True)
class Part:
    """Some of what is wanted.

    Attributes
    ----------
    intervals
        Bytes of the body, in order; each of a part of several is whole rows. Empty for columns, which no interval is.
    rows
        The rows it touches, as runs.
    n_bytes
        How many bytes come.
    first, stop
        Which weights of the moved array (rows by columns, flat) they are.
    """

    intervals: tuple[Interval, ...]
    rows: NDArray[np.int64]
    n_bytes: int
    first: int
    stop: int


def wanted(line: TensorLine, box: Box, decode: Literal["auto", "client", "server"]) -> Wanted:
    """What to move for ``box``: stored blocks for the client to decode, or weights that the service has decoded.

    ``auto`` takes what is fewer bytes, and the stored blocks where that makes no difference.
    """
    *outer, last = box.picks or (range(1),)
    rows = _runs(tuple(outer), line.shape[:-1])
    n_rows = math.prod(len(pick) for pick in outer)
    columns, picked = _hull(last)
    everything = range(line.row_weights)
    if decode == "client" and not line.is_native:
        decode = "server"
    if decode == "auto":
        floats = n_rows * len(columns) * _FLOAT_BYTES
        decode = "client" if line.is_native and n_rows * line.row_bytes <= floats else "server"
    if decode == "client":
        return Wanted("native", rows, n_rows, everything, _places(last))
    return Wanted("raw", rows, n_rows, columns, picked)


def cut(line: TensorLine, what: Wanted, part_bytes: int) -> Iterator[Part]:
    """What is wanted as parts of at most ``part_bytes`` bytes, but of at least a row, or a block of one taken whole."""
    row_bytes = line.row_bytes if what.body == "native" else len(what.columns) * _FLOAT_BYTES
    n_columns = len(what.columns)
    if not what.n_rows or not row_bytes:
        return
    is_whole_rows = what.body == "native" or n_columns == line.row_weights
    if is_whole_rows and row_bytes > part_bytes and what.takes_all:
        yield from _cut_rows(line, what, row_bytes, part_bytes)
        return
    at = 0
    for rows in _batches(what.rows, max(1, part_bytes // row_bytes)):
        n_rows = int((rows[:, 1] - rows[:, 0]).sum())
        intervals = (rows * row_bytes).tolist() if is_whole_rows else []
        yield Part(
            tuple((first, stop) for first, stop in intervals),
            rows,
            n_rows * row_bytes,
            at * n_columns,
            (at + n_rows) * n_columns,
        )
        at += n_rows


def _cut_rows(line: TensorLine, what: Wanted, row_bytes: int, part_bytes: int) -> Iterator[Part]:
    """Parts of rows that are longer than a part may be: each is some blocks of one row."""
    if what.body == "native":
        block_bytes, block_weights = line.block_bytes, line.block_weights
    else:
        block_bytes, block_weights = _FLOAT_BYTES, 1
    step = max(1, part_bytes // block_bytes) * block_bytes
    at = 0
    for first, stop in what.rows.tolist():
        end = stop * row_bytes
        for start in range(first * row_bytes, end, step):
            n_bytes = min(step, end - start)
            n_weights = n_bytes // block_bytes * block_weights
            touched = np.array([[start // row_bytes, (start + n_bytes - 1) // row_bytes + 1]])
            yield Part(((start, start + n_bytes),), touched, n_bytes, at, at + n_weights)
            at += n_weights


def _batches(runs: NDArray[np.int64], most: int) -> Iterator[NDArray[np.int64]]:
    """The runs in batches of at most ``most`` rows and `_MOST_RUNS` runs; a run that is too long is cut."""
    batch: list[tuple[int, int]] = []
    room = most
    for first, stop in runs.tolist():
        while first < stop:
            end = min(stop, first + room)
            batch.append((first, end))
            room -= end - first
            first = end
            if room == 0 or len(batch) == _MOST_RUNS:
                yield np.array(batch)
                batch, room = [], most
    if batch:
        yield np.array(batch)


def _runs(picks: tuple[Indices, ...], shape: tuple[int, ...]) -> NDArray[np.int64]:
    """The rows that indices of the axes above the last name, as runs of consecutive ones, of shape (n, 2)."""
    if len(picks) == 1 and isinstance(picks[0], range) and picks[0].step == 1 and picks[0]:  # what is asked most
        return np.array([[picks[0].start, picks[0].stop]])
    # Axes that are taken whole, from the innermost on, make each row of those above one longer run.
    run, axes = 1, len(picks)
    while axes and len(picks[axes - 1]) == shape[axes - 1]:
        axes -= 1
        run *= shape[axes]
    stride = run
    starts = np.zeros(1, np.int64)
    for axis in reversed(range(axes)):
        pick = picks[axis]
        if axis == axes - 1 and isinstance(pick, range) and pick.step == 1:
            starts, run = np.array([pick.start * stride]), run * len(pick)
        else:
            starts = (np.asarray(pick, np.int64)[:, None] * stride + starts).reshape(-1)
        stride *= shape[axis]
    if run == 0:
        return np.empty((0, 2), np.int64)
    runs = np.stack((starts, starts + run), axis=1)
    joined = np.flatnonzero(runs[1:, 0] != runs[:-1, 1])  # where a run does not go on with the next
    firsts, lasts = np.concatenate(([0], joined + 1)), np.concatenate((joined, [len(runs) - 1]))
    return np.stack((runs[firsts, 0], runs[lasts, 1]), axis=1) if len(runs) else runs


def _hull(pick: Indices) -> tuple[range, slice | NDArray[np.int64]]:
    """A slice that has every index of a pick, and where in it they are."""
    if isinstance(pick, range):
        return pick, slice(None)
    if not len(pick):
        return range(0), slice(None)
    hull = range(int(pick[0]), int(pick[-1]) + 1)
    return (hull, slice(None)) if len(hull) == len(pick) else (hull, pick - hull.start)


def _places(pick: Indices) -> slice | NDArray[np.int64]:
    if isinstance(pick, range):
        return slice(pick.start, pick.stop, pick.step)
    return pick


def rows_text(runs: NDArray[np.int64]) -> str:
    """Runs of rows as the service's ``rows=`` has them."""
    return ",".join(f"{first}" if stop == first + 1 else f"{first}:{stop}" for first, stop in runs.tolist())
