"""Plans and gathering against numpy's indexing, with windows so small that everything crosses them."""

import math
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from app.plan import Piece, Rows, View, Visit, assemble, only_run, plan
from app.selection import Selection, select_all, select_nd, select_rows

MOST_VIEWS = 1024
MOST_VISITS = 256
windows = st.sampled_from([4, 16, 64])
shapes = st.lists(st.one_of(st.integers(0, 3), st.integers(1, 12)), max_size=4).map(tuple)
bounds = st.none() | st.integers(-15, 15)
steps = st.none() | st.integers(-5, 5).filter(bool)
slices = st.builds(slice, bounds, bounds, steps)


def spelled(index: Any) -> str:
    if index is ...:
        return "..."
    if isinstance(index, int):
        return str(index)
    fields = [index.start, index.stop] + ([] if index.step is None else [index.step])
    return ":".join("" if field is None else str(field) for field in fields)


@st.composite
def indices(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """An index that numpy takes: integers are in range."""
    axes: list[Any] = []
    for length in shape:
        inside = st.integers(-length, length - 1) if length else st.nothing()
        axes.append(draw(slices | inside))
    if draw(st.booleans()) and axes:
        cut = draw(st.integers(0, len(axes)))
        return (*axes[:cut], ...)
    return tuple(axes) or (...,)


def places(view: View) -> NDArray[np.int64]:
    runs, items = np.arange(view.n_runs)[:, None], np.arange(view.n_items)
    found: NDArray[np.int64] = (view.offset + runs * view.run_stride + items * view.stride).ravel()
    return found


def checked(piece: Piece, window_items: int, n_weights: int) -> None:
    """Assert what every piece promises."""
    assert 1 <= piece.n_items <= window_items
    assert 1 <= len(piece.visits) <= MOST_VISITS + 1
    filled = np.zeros(piece.n_items, int)
    for visit in piece.visits:
        here = min(window_items, n_weights - visit.window * window_items)
        for view in visit.views:
            if isinstance(view, Rows):
                ends = view.offsets + (view.n_items - 1) * view.stride
                assert 0 <= min(view.offsets.min(), ends.min()) <= max(view.offsets.max(), ends.max()) < here
                filled.reshape(-1, view.n_items)[view.places] += 1
                continue
            assert view.n_runs > 0
            assert view.n_items > 0
            assert 0 <= places(view).min() <= places(view).max() < here
            filled[view.at : view.at + view.n_runs * view.n_items] += 1
    assert (filled == 1).all()
    assert sum(len(visit.views) for visit in piece.visits) <= MOST_VIEWS


def answer(selection: Selection, items: NDArray[Any], window_items: int) -> NDArray[Any]:
    """The answer as a body makes it: every piece assembled from its own windows."""

    def window(number: int) -> NDArray[Any]:
        content = items[number * window_items : (number + 1) * window_items].copy()
        content.flags.writeable = False
        return content

    pieces = [items[:0]]
    for piece in plan(selection, window_items):
        checked(piece, window_items, items.size)
        pieces.append(assemble(piece, window))
        assert pieces[-1].size == piece.n_items
    return np.concatenate(pieces)


@given(shapes, windows, st.data())
def test_an_nd_slice_answers_as_numpy(shape: tuple[int, ...], window_items: int, data: st.DataObject) -> None:
    tensor = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    index = data.draw(indices(shape))
    selection = select_nd(shape, ",".join(map(spelled, index)))
    expected = tensor[index]
    assert selection.shape == expected.shape
    np.testing.assert_array_equal(answer(selection, tensor.ravel(), window_items), expected.ravel())


@given(st.integers(0, 40), st.integers(0, 40), windows, st.data())
def test_rows_and_columns_answer_as_numpy(n_rows: int, row_items: int, window_items: int, data: st.DataObject) -> None:
    tensor = np.arange(n_rows * row_items, dtype=np.float32).reshape(n_rows, row_items)
    inside = st.builds(lambda first: slice(first, first + 1 or None), st.integers(-n_rows, n_rows - 1))
    rows = data.draw(st.lists(slices | inside if n_rows else slices, min_size=1, max_size=8))
    cols = data.draw(st.none() | slices)
    selection = select_rows(n_rows, row_items, ",".join(map(spelled, rows)), None if cols is None else spelled(cols))
    expected = np.concatenate([tensor[part] for part in rows])[:, slice(None) if cols is None else cols]
    assert selection.shape == expected.shape
    np.testing.assert_array_equal(answer(selection, tensor.ravel(), window_items), expected.ravel())


@pytest.mark.case(11)
@pytest.mark.parametrize("window_items", [4, 16, 64, 1 << 18])
@pytest.mark.parametrize("row_items", [1, 3, 4, 100])
@pytest.mark.parametrize("rows", ["9:10", "9:11", "10:11", "-1", "5:2", "0:10:3", "9::-1", "5,2,2,9"])
def test_row_edges_in_any_window(rows: str, row_items: int, window_items: int) -> None:
    tensor = np.arange(10 * row_items, dtype=np.float32).reshape(10, row_items)
    parts = [part if ":" in part else f"{part}:{int(part) + 1 or ''}" for part in rows.split(",")]
    picked = [slice(*(int(field) if field else None for field in part.split(":"))) for part in parts]
    expected = np.concatenate([tensor[part] for part in picked])
    selection = select_rows(10, row_items, rows, None)
    assert selection.shape == expected.shape
    np.testing.assert_array_equal(answer(selection, tensor.ravel(), window_items), expected.ravel())


@given(shapes, windows, st.data())
def test_an_only_run_is_the_contiguous_piece_of_the_plan(
    shape: tuple[int, ...], window_items: int, data: st.DataObject
) -> None:
    selection = select_nd(shape, ",".join(map(spelled, data.draw(indices(shape)))) if shape else "...")
    pieces = list(islice(plan(selection, window_items), 2))
    run = pieces[0].contiguous() if len(pieces) == 1 else None
    expected = run and (pieces[0].visits[0].window, run.offset, run.n_items)
    assert only_run(selection, window_items) == expected


def test_neighbouring_rows_of_one_window_are_one_piece() -> None:
    (piece,) = plan(select_rows(100, 4, "3:4,5:6,9:50:7,90:", None), 1 << 18)
    assert [visit.window for visit in piece.visits] == [0]
    assert piece.n_items == 18 * 4


def test_a_list_that_goes_to_and_fro_visits_each_window_once_in_a_piece() -> None:
    (piece,) = plan(select_rows(8, 4, "0,4,0,4", None), 16)
    assert [visit.window for visit in piece.visits] == [0, 1]
    assert answer(select_rows(8, 4, "0,4,0,4", None), np.arange(32.0), 16).tolist() == [0, 1, 2, 3, 16, 17, 18, 19] * 2


def test_a_row_repeated_past_a_window_is_several_pieces() -> None:
    items = np.arange(16, dtype=np.float32)
    selection = select_rows(4, 4, ",".join(["2"] * 20), None)
    assert [piece.n_items for piece in plan(selection, 16)] == [16] * 5
    assert answer(selection, items, 16).tolist() == [8, 9, 10, 11] * 20


def test_a_piece_has_a_bounded_number_of_views() -> None:
    selection = select_rows(4, 2, ",".join(["1:2", "3:4"] * 5000), "0")
    views = [len(visit.views) for piece in plan(selection, 1 << 18) for visit in piece.visits]
    assert views == [MOST_VIEWS] * 9 + [10000 - 9 * MOST_VIEWS]
    assert answer(selection, np.arange(8.0), 1 << 18).tolist() == [2.0, 6.0] * 5000


def test_a_gather_needs_a_bounded_number_of_windows_at_a_time() -> None:
    rows = np.random.default_rng(0).permutation(1000).tolist()
    selection = select_rows(1000, 4, rows, None)
    pieces = list(plan(selection, 1024 * 4 // 16))
    assert all(len(piece.visits) <= MOST_VISITS for piece in pieces)
    few = select_rows(1000, 16, rows, None)
    assert max(len(piece.visits) for piece in plan(few, 16 * 16)) <= MOST_VISITS
    expected = np.arange(16000.0).reshape(1000, 16)[rows].ravel()
    np.testing.assert_array_equal(answer(few, np.arange(16000.0), 16 * 16), expected)


@given(st.integers(1, 30), st.integers(1, 40), windows, st.data())
def test_any_list_of_rows_answers_as_numpy(n_rows: int, row_items: int, window_items: int, data: st.DataObject) -> None:
    tensor = np.arange(n_rows * row_items, dtype=np.float32).reshape(n_rows, row_items)
    rows = data.draw(st.lists(st.integers(-n_rows, n_rows - 1), min_size=1, max_size=100))
    cols = data.draw(st.none() | slices)
    selection = select_rows(n_rows, row_items, rows, None if cols is None else spelled(cols))
    expected = tensor[rows][:, slice(None) if cols is None else cols]
    assert selection.shape == expected.shape
    np.testing.assert_array_equal(answer(selection, tensor.ravel(), window_items), expected.ravel())


@given(shapes, windows, st.data())
def test_a_narrowed_selection_is_that_part_of_the_answer(
    shape: tuple[int, ...], window_items: int, data: st.DataObject
) -> None:
    tensor = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    index = data.draw(indices(shape))
    selection = select_nd(shape, ",".join(map(spelled, index)))
    first = data.draw(st.integers(0, selection.n_items))
    stop = data.draw(st.integers(first, selection.n_items))
    narrowed = answer(selection.narrowed(first, stop), tensor.ravel(), window_items)
    np.testing.assert_array_equal(narrowed, tensor[index].ravel()[first:stop])


@given(st.integers(1, 12), st.integers(1, 12), st.data())
def test_a_narrowed_list_of_rows_is_that_part_of_the_answer(n_rows: int, row_items: int, data: st.DataObject) -> None:
    tensor = np.arange(n_rows * row_items, dtype=np.float32).reshape(n_rows, row_items)
    rows = data.draw(st.lists(st.integers(-n_rows, n_rows - 1), min_size=1, max_size=20))
    selection = select_rows(n_rows, row_items, rows, None)
    first = data.draw(st.integers(0, selection.n_items))
    stop = data.draw(st.integers(first, selection.n_items))
    narrowed = answer(selection.narrowed(first, stop), tensor.ravel(), 16)
    np.testing.assert_array_equal(narrowed, tensor[rows].ravel()[first:stop])


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        ((10**6, 10**6), "..."),
        ((10**6, 10**6), "::-1,::-1"),
        ((10**6, 10**6), "...,0"),
        ((10**6, 10**6), ":,::3"),
        ((10**4, 10**4, 10**4), "::2,::2,::2"),
        ((10**12, 1), "::-5"),
        ((2, 10**3, 10**3, 10**6), "1,::-1,:,5:9"),
    ],
)
def test_a_plan_is_made_as_it_is_read(shape: tuple[int, ...], text: str) -> None:
    """10^12 items: a plan made at once would end no test."""
    pieces = list(islice(plan(select_nd(shape, text), 1 << 18), 3))
    assert len(pieces) == 3
    assert all(0 < piece.n_items <= 1 << 18 for piece in pieces)


def test_every_window_of_a_whole_tensor_is_a_piece() -> None:
    pieces = list(plan(select_all((7, 9)), 16))
    assert [(piece.visits[0].window, piece.n_items) for piece in pieces] == [(0, 16), (1, 16), (2, 16), (3, 15)]
    assert all(piece.contiguous() for piece in pieces)
    assert list(plan(select_all(()), 16)) == [Piece((Visit(0, (View(0, 0, 1, 0, 1, 1),)),), 1)]
    assert list(plan(select_all((3, 0)), 16)) == []


def test_a_contiguous_piece_copies_nothing() -> None:
    window = np.arange(16, dtype=np.float32)
    for rows in ("1:3", "2"):
        (piece,) = plan(select_rows(4, 4, rows, None), 16)
        assert np.shares_memory(assemble(piece, lambda _: window), window)
    (piece,) = plan(select_rows(4, 4, "::2", None), 16)
    assert not np.shares_memory(assemble(piece, lambda _: window), window)


@given(st.integers(1, 9), st.lists(st.integers(0, 9), min_size=1, max_size=20))
def test_blocks_are_gathered_as_they_are(block_bytes: int, rows: list[int]) -> None:
    """Native items: opaque blocks, of any size."""
    raw = np.random.default_rng(block_bytes).integers(0, 256, (10, 3, block_bytes), np.uint8)
    blocks = raw.view(np.dtype((np.void, block_bytes))).ravel()
    found = answer(select_rows(10, 3, ",".join(map(str, rows)), None), blocks, 4)
    assert found.tobytes() == raw[rows].tobytes()
