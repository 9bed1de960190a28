"""Plans: a selection cut into pieces, in the order of the answer.

A window is ``window_items`` consecutive items of a tensor. A *visit* takes some items of one window; a *piece* is a few
visits that together fill at most a window's worth of the answer. The items of all pieces, in order, are the answer.
Nothing here reads or decodes: a plan is arithmetic, and it is made lazily, so a plan of a million rows costs no more
memory than one of a single row.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.selection import Gather, Lattice, Selection

__all__ = ["Piece", "Rows", "View", "Visit", "assemble", "only_run", "plan"]

# A piece is bounded in windows and in Python steps as it is in items, so that no stream holds a thread for long.
_MOST_VISITS = 64
_MOST_GATHERED_VISITS = 256
_MOST_VIEWS = 1024
_MOST_ROWS = 4096


@dataclass(frozen=True, slots=True)
class View:
    """Items of one window: ``n_runs`` runs, ``run_stride`` apart, of ``n_items`` items each, ``stride`` apart.

    They fill the piece from its item ``at`` on.
    """

    at: int
    offset: int
    n_runs: int
    run_stride: int
    n_items: int
    stride: int


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Equal runs of one window that begin at ``offsets``; run ``i`` fills the piece's ``places[i]``-th run."""

    offsets: NDArray[np.int64]
    places: NDArray[np.int64]
    n_items: int
    stride: int


@dataclass(frozen=True, slots=True)
class Visit:
    """One window, and what a piece takes of it."""

    window: int
    views: tuple[View | Rows, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """At most a window's worth of consecutive items of the answer, and the visits that give them."""

    visits: tuple[Visit, ...]
    n_items: int

    def contiguous(self) -> View | None:
        """The one view that is the whole piece, if that is a run of consecutive items of one window."""
        if len(self.visits) != 1 or len(self.visits[0].views) != 1:
            return None
        view = self.visits[0].views[0]
        is_run = isinstance(view, View) and view.n_runs == 1 and (view.stride == 1 or view.n_items == 1)
        return view if is_run and isinstance(view, View) else None


def plan(selection: Selection, window_items: int) -> Iterator[Piece]:
    """The pieces that answer ``selection``, in order; every piece has at least one item."""
    if len(selection.parts) == 1 and isinstance(selection.parts[0], Lattice):
        base, dims = selection.parts[0].base, selection.parts[0].dims
        if len(dims) == 1 and dims[0][1] == 1 and base % window_items == 0:
            yield from _windows_in_turn(base // window_items, dims[0][0], window_items)
            return
    for are_lattices, group in groupby(selection.parts, lambda part: isinstance(part, Lattice)):
        if are_lattices:
            yield from _pieces(_every_view(group, window_items), window_items)
            continue
        for part in group:
            if isinstance(part, Gather) and (part.run_items - 1) * abs(part.stride) < window_items:
                yield from _gathered(part, window_items)
            else:
                yield from _pieces(_every_view((part,), window_items), window_items)


def only_run(selection: Selection, window_items: int) -> tuple[int, int, int] | None:
    """The window, the offset and the number of items of a selection that is one run within one window, as a row is.

    None for another selection. What `plan` makes of such a one takes as long as all else that is to be done for it.
    """
    if len(selection.parts) != 1:
        return None
    (part,) = selection.parts
    if not isinstance(part, Lattice) or len(part.dims) > 1:
        return None
    n_items, stride = part.dims[0] if part.dims else (1, 1)
    window, offset = divmod(part.base, window_items)
    return (window, offset, n_items) if stride == 1 and offset + n_items <= window_items else None


def assemble(piece: Piece, window: Callable[[int], NDArray[Any]]) -> NDArray[Any]:
    """The items of ``piece`` as a 1-D array; ``window`` gives a decoded window (1-D) by its number, each once.

    A contiguous piece is a view of its window, without a copy; the caller must not write to it.
    """
    run = piece.contiguous()
    if run is not None:
        return window(piece.visits[0].window)[run.offset : run.offset + run.n_items]
    out: NDArray[Any] | None = None
    for visit in piece.visits:
        content = window(visit.window)
        if out is None:
            out = np.empty(piece.n_items, content.dtype)
        for view in visit.views:
            if isinstance(view, View):
                _copy_view(view, content, out)
            else:
                _copy_rows(view, content, out)
    if out is None:
        raise ValueError("a piece has at least one visit")
    return out


def _copy_view(view: View, window: NDArray[Any], out: NDArray[Any]) -> None:
    itemsize = window.dtype.itemsize
    source: NDArray[Any] = np.ndarray(
        (view.n_runs, view.n_items),
        window.dtype,
        window,
        view.offset * itemsize,
        (view.run_stride * itemsize, view.stride * itemsize),
    )
    size = view.n_runs * view.n_items
    out[view.at : view.at + size].reshape(view.n_runs, view.n_items)[...] = source


def _copy_rows(rows: Rows, window: NDArray[Any], out: NDArray[Any]) -> None:
    # Every run that the window could hold, as overlapping rows of one view: taking some is one step of numpy's.
    step, itemsize = abs(rows.stride), window.dtype.itemsize
    extent = (rows.n_items - 1) * step
    every: NDArray[Any] = np.ndarray(
        (len(window) - extent, rows.n_items), window.dtype, window, 0, (itemsize, step * itemsize)
    )
    if rows.stride < 0:
        every = every[:, ::-1]
    first = rows.offsets if rows.stride > 0 else rows.offsets - extent
    out.reshape(-1, rows.n_items)[rows.places] = every[first]


def _windows_in_turn(window: int, n_items: int, window_items: int) -> Iterator[Piece]:
    """The pieces of a run from the start of a window on, as whole tensors are: no view is to be joined or cut."""
    while n_items > 0:
        taken = min(n_items, window_items)
        yield Piece((Visit(window, (View(0, 0, 1, 0, taken, 1),)),), taken)
        window += 1
        n_items -= taken


def _every_view(parts: Iterable[Lattice | Gather], window_items: int) -> Iterator[tuple[int, View]]:
    for part in parts:
        if isinstance(part, Lattice):
            yield from _lattice_views(part, window_items)
        else:
            for start in part.starts.tolist():
                yield from _cut_run(start, part.run_items, part.stride, window_items)


def _pieces(views: Iterator[tuple[int, View]], window_items: int) -> Iterator[Piece]:
    """Views in order, joined into pieces; a view that is a whole window stays a piece of its own."""
    visits: list[tuple[int, list[View]]] = []
    n_views = n_items = 0

    def joined() -> Piece:
        return Piece(tuple(Visit(window, tuple(views)) for window, views in visits), n_items)

    for window, view in views:
        size = view.n_runs * view.n_items
        new = not visits or visits[-1][0] != window
        if n_items + size > window_items or n_views == _MOST_VIEWS or (new and len(visits) == _MOST_VISITS):
            yield joined()
            visits, n_views, n_items, new = [], 0, 0, True
        if new:
            visits.append((window, []))
        visits[-1][1].append(View(n_items, view.offset, view.n_runs, view.run_stride, view.n_items, view.stride))
        n_views += 1
        n_items += size
    if visits:
        yield joined()


def _gathered(part: Gather, window_items: int) -> Iterator[Piece]:
    """Pieces of runs shorter than a window: the runs of a piece are taken window by window, whatever their order."""
    extent = (part.run_items - 1) * part.stride
    low, high = min(0, extent), max(0, extent)
    most = min(_MOST_ROWS, max(1, window_items // part.run_items))
    at = 0
    while at < len(part.starts):
        starts = part.starts[at : at + most]
        first, last = (starts + low) // window_items, (starts + high) // window_items
        needed, order = np.unique(np.stack((first, last), axis=1), return_index=True)
        if len(needed) > _MOST_GATHERED_VISITS:  # up to the run that needs one window more
            starts = starts[: max(1, int(np.sort(order)[_MOST_GATHERED_VISITS]) // 2)]
            first, last = first[: len(starts)], last[: len(starts)]
        yield Piece(_gather_visits(part, starts, first, last, window_items), len(starts) * part.run_items)
        at += len(starts)


def _gather_visits(
    part: Gather,
    starts: NDArray[np.int64],
    first: NDArray[np.int64],
    last: NDArray[np.int64],
    window_items: int,
) -> tuple[Visit, ...]:
    by_window: dict[int, list[View | Rows]] = {}
    whole = np.flatnonzero(first == last)
    whole = whole[np.argsort(first[whole], kind="stable")]
    windows = first[whole]
    offsets = starts[whole] - windows * window_items
    ends = [*(np.flatnonzero(np.diff(windows)) + 1).tolist(), len(whole)] if len(whole) else []
    begin = 0
    for end in ends:
        rows = Rows(offsets[begin:end], whole[begin:end], part.run_items, part.stride)
        by_window[int(windows[begin])] = [rows]
        begin = end
    for place in np.flatnonzero(first != last).tolist():
        at = place * part.run_items
        for window, view in _cut_run(int(starts[place]), part.run_items, part.stride, window_items):
            cut = View(at, view.offset, 1, 0, view.n_items, view.stride)
            by_window.setdefault(window, []).append(cut)
            at += view.n_items
    return tuple(Visit(window, tuple(by_window[window])) for window in sorted(by_window))


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
        yield window, View(0, start - window_start, whole, run_stride, n_items, stride)
        at += whole


def _cut_run(start: int, n_items: int, stride: int, window_items: int) -> Iterator[tuple[int, View]]:
    """One run that crosses windows, cut where it does."""
    while n_items:
        window, offset = divmod(start, window_items)
        room = (window_items - 1 - offset) // stride if stride > 0 else offset // -stride
        taken = min(n_items, room + 1)
        yield window, View(0, offset, 1, 0, taken, stride)
        start += taken * stride
        n_items -= taken
