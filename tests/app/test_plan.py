"""Plans and gathering against numpy's indexing, with windows so small that everything crosses them."""

import math
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from app.plan import View, Visit, gather, plan
from app.selection import Selection, select_all, select_nd, select_rows

MOST_VIEWS = 1024
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


def checked(visit: Visit, window_items: int, n_weights: int) -> None:
    """Assert what every visit promises."""
    here = min(window_items, n_weights - visit.window * window_items)
    assert 1 <= visit.n_items <= window_items
    assert 1 <= len(visit.views) <= MOST_VIEWS
    assert visit.n_items == sum(view.n_runs * view.n_items for view in visit.views)
    for view in visit.views:
        assert view.n_runs > 0
        assert view.n_items > 0
        assert 0 <= places(view).min() <= places(view).max() < here


def answer(selection: Selection, items: NDArray[Any], window_items: int) -> NDArray[Any]:
    """The answer as a body makes it: every visit gathered from its own window."""
    pieces = [items[:0]]
    for visit in plan(selection, window_items):
        checked(visit, window_items, items.size)
        window = items[visit.window * window_items : (visit.window + 1) * window_items].copy()
        window.flags.writeable = False
        pieces.append(gather(visit, window))
        assert pieces[-1].size == visit.n_items
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


@pytest.mark.parametrize("window_items", [4, 16, 64, 1 << 18])
@pytest.mark.parametrize("row_items", [1, 3, 4, 100])
@pytest.mark.parametrize("rows", ["9:10", "9:11", "10:11", "-1", "5:2", "0:10:3", "9::-1", "5,2,2,9"])
def test_row_edges_in_any_window(rows: str, row_items: int, window_items: int) -> None:
    """Case 11."""
    tensor = np.arange(10 * row_items, dtype=np.float32).reshape(10, row_items)
    parts = [part if ":" in part else f"{part}:{int(part) + 1 or ''}" for part in rows.split(",")]
    picked = [slice(*(int(field) if field else None for field in part.split(":"))) for part in parts]
    expected = np.concatenate([tensor[part] for part in picked])
    selection = select_rows(10, row_items, rows, None)
    assert selection.shape == expected.shape
    np.testing.assert_array_equal(answer(selection, tensor.ravel(), window_items), expected.ravel())


def test_neighbouring_rows_of_one_window_are_one_visit() -> None:
    (visit,) = plan(select_rows(100, 4, "3,5,9:50:7,99", None), 1 << 18)
    assert visit.window == 0
    assert visit.n_items == 9 * 4


def test_a_list_that_goes_to_and_fro_visits_each_window_as_often() -> None:
    visits = list(plan(select_rows(8, 4, "0,4,0,4", None), 16))
    assert [visit.window for visit in visits] == [0, 1, 0, 1]


def test_a_row_repeated_past_a_window_is_several_visits() -> None:
    items = np.arange(16, dtype=np.float32)
    selection = select_rows(4, 4, ",".join(["2"] * 20), None)
    visits = list(plan(selection, 16))
    assert [visit.n_items for visit in visits] == [16] * 5
    assert answer(selection, items, 16).tolist() == [8, 9, 10, 11] * 20


def test_a_visit_has_a_bounded_number_of_views() -> None:
    selection = select_rows(4, 2, ",".join(["1", "3"] * 5000), "0")
    visits = list(plan(selection, 1 << 18))
    assert [len(visit.views) for visit in visits] == [MOST_VIEWS] * 9 + [10000 - 9 * MOST_VIEWS]
    assert answer(selection, np.arange(8.0), 1 << 18).tolist() == [2.0, 6.0] * 5000


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
    visits = list(islice(plan(select_nd(shape, text), 1 << 18), 3))
    assert len(visits) == 3
    assert all(0 < visit.n_items <= 1 << 18 for visit in visits)


def test_every_window_of_a_whole_tensor_is_visited_once() -> None:
    visits = list(plan(select_all((7, 9)), 16))
    assert [(visit.window, visit.n_items) for visit in visits] == [(0, 16), (1, 16), (2, 16), (3, 15)]
    assert list(plan(select_all(()), 16)) == [Visit(0, (View(0, 1, 0, 1, 1),), 1)]
    assert list(plan(select_all((3, 0)), 16)) == []


def test_a_contiguous_visit_copies_nothing() -> None:
    window = np.arange(16, dtype=np.float32)
    for rows in ("1:3", "2"):
        (visit,) = plan(select_rows(4, 4, rows, None), 16)
        assert np.shares_memory(gather(visit, window), window)
    (visit,) = plan(select_rows(4, 4, "::2", None), 16)
    assert not np.shares_memory(gather(visit, window), window)


@given(st.integers(1, 9), st.lists(st.integers(0, 9), min_size=1, max_size=20))
def test_blocks_are_gathered_as_they_are(block_bytes: int, rows: list[int]) -> None:
    """Native items: opaque blocks, of any size."""
    raw = np.random.default_rng(block_bytes).integers(0, 256, (10, 3, block_bytes), np.uint8)
    blocks = raw.view(np.dtype((np.void, block_bytes))).ravel()
    found = answer(select_rows(10, 3, ",".join(map(str, rows)), None), blocks, 4)
    assert found.tobytes() == raw[rows].tobytes()
