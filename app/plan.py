"""Plans: a selection cut into visits to windows, in the order of the answer.

A window is ``window_items`` consecutive items of a tensor. A *visit* takes some items of one window; the items of
all visits, in order, are the answer. Nothing here reads or decodes: a plan is arithmetic, and it is made lazily, so
a plan of a million rows costs no more memory than one of a single row.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.selection import Lattice, Selection

__all__ = ["View", "Visit", "gather", "plan"]

# A visit's work is bounded in Python steps as in items, so that no stream holds a thread for long.
_MOST_VIEWS = 1024


@dataclass(frozen=True, slots=True)
class View:
    """Items of one window: ``n_runs`` runs, ``run_stride`` apart, of ``n_items`` items each, ``stride`` apart."""

    offset: int
    n_runs: int
    run_stride: int
    n_items: int
    stride: int


@dataclass(frozen=True, slots=True)
class Visit:
    """One window and the views of it that come next in the answer; at most a window's worth of items."""

    window: int
    views: tuple[View, ...]
    n_items: int


def plan(selection: Selection, window_items: int) -> Iterator[Visit]:
    """The visits that answer ``selection``, in order; every visit has at least one item."""
    window = -1
    views: list[View] = []
    n_items = 0
    for lattice in selection.lattices:
        for next_window, view in _lattice_views(lattice, window_items):
            size = view.n_runs * view.n_items
            if views and (next_window != window or n_items + size > window_items or len(views) == _MOST_VIEWS):
                yield Visit(window, tuple(views), n_items)
                views, n_items = [], 0
            window = next_window
            views.append(view)
            n_items += size
    if views:
        yield Visit(window, tuple(views), n_items)


def gather(visit: Visit, window: NDArray[Any]) -> NDArray[Any]:
    """The items of ``visit`` from its decoded ``window`` (1-D), as a 1-D array.

    A contiguous visit gives a view of the window itself, without a copy; the caller must not write to it.
    """
    first = visit.views[0]
    if len(visit.views) == 1 and first.n_runs == 1 and (first.stride == 1 or first.n_items == 1):
        return window[first.offset : first.offset + first.n_items]
    out = np.empty(visit.n_items, window.dtype)
    at = 0
    itemsize = window.dtype.itemsize
    for view in visit.views:
        size = view.n_runs * view.n_items
        source: NDArray[Any] = np.ndarray(
            (view.n_runs, view.n_items),
            window.dtype,
            window,
            view.offset * itemsize,
            (view.run_stride * itemsize, view.stride * itemsize),
        )
        out[at : at + size].reshape(view.n_runs, view.n_items)[...] = source
        at += size
    return out


def _lattice_views(lattice: Lattice, window_items: int) -> Iterator[tuple[int, View]]:
    """The views of a merged lattice: its two fastest pairs at a time, the slower ones stepped through."""
    outer = lattice.dims[:-2]
    runs, items = ((1, 0), (1, 1), *lattice.dims)[-2:]
    counters = [0] * len(outer)
    base = lattice.base
    while True:
        yield from _run_views(base, runs, items, window_items)
        for axis in reversed(range(len(outer))):
            count, stride = outer[axis]
            counters[axis] += 1
            base += stride
            if counters[axis] < count:
                break
            counters[axis] = 0
            base -= count * stride
        else:
            return


def _run_views(
    base: int, runs: tuple[int, int], items: tuple[int, int], window_items: int
) -> Iterator[tuple[int, View]]:
    """Views of equal runs: as many whole runs as one window holds at a time; a run across windows is cut."""
    n_runs, run_stride = runs
    n_items, stride = items
    extent = (n_items - 1) * stride
    low, high = min(0, extent), max(0, extent)
    at = 0
    while at < n_runs:
        start = base + at * run_stride
        window = (start + low) // window_items
        if (start + high) // window_items != window:
            yield from _cut_run(start, n_items, stride, window_items)
            at += 1
            continue
        window_start = window * window_items
        if run_stride > 0:
            whole = (window_start + window_items - 1 - (start + high)) // run_stride + 1
        elif run_stride < 0:
            whole = (start + low - window_start) // -run_stride + 1
        else:
            whole = 1
        whole = min(whole, n_runs - at)
        yield window, View(start - window_start, whole, run_stride, n_items, stride)
        at += whole


def _cut_run(start: int, n_items: int, stride: int, window_items: int) -> Iterator[tuple[int, View]]:
    """One run that crosses windows, cut where it does."""
    while n_items:
        window, offset = divmod(start, window_items)
        room = (window_items - 1 - offset) // stride if stride > 0 else offset // -stride
        taken = min(n_items, room + 1)
        yield window, View(offset, 1, 0, taken, stride)
        start += taken * stride
        n_items -= taken
