"""Selections against numpy's own indexing, and the refusal of everything that the grammar does not have."""

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from app.errors import BadRequest
from app.selection import Gather, Lattice, Selection, parse_slice, select_all, select_nd, select_rows

BIGGEST = int("9" * 19)
shapes = st.lists(st.integers(0, 6), max_size=4).map(tuple)
integers = st.one_of(st.integers(-8, 8), st.sampled_from([-BIGGEST, BIGGEST, 1 << 62, -(1 << 62)]))
bounds = st.one_of(st.just(""), integers.map(str))
steps = st.one_of(st.just(""), integers.filter(bool).map(str))
slices = st.one_of(
    st.tuples(bounds, bounds).map(":".join),
    st.tuples(bounds, bounds, steps).map(":".join),
)
parts = st.one_of(slices, st.integers(-8, 8).map(str))


def as_index(text: str) -> int | slice:
    """The Python index that a part of the grammar spells."""
    if ":" not in text:
        return int(text)
    return slice(*(int(field) if field else None for field in text.split(":")))


def as_slice(text: str) -> slice:
    """The same, where an integer keeps its axis."""
    index = as_index(text)
    return slice(index, index + 1 or None) if isinstance(index, int) else index


def positions(selection: Selection) -> NDArray[np.int64]:
    """The items that a selection names, in order."""
    every: list[int] = []
    for part in selection.parts:
        if isinstance(part, Gather):
            every += (start + index * part.stride for start in part.starts.tolist() for index in range(part.run_items))
            continue
        every += (
            part.base + sum(index * stride for index, (_, stride) in zip(place, part.dims, strict=True))
            for place in product(*(range(count) for count, _ in part.dims))
        )
    return np.array(every, np.int64)


def numbered(shape: tuple[int, ...]) -> NDArray[np.int64]:
    return np.arange(math.prod(shape), dtype=np.int64).reshape(shape)


@given(shapes)
def test_everything_is_each_item_in_order(shape: tuple[int, ...]) -> None:
    selection = select_all(shape)
    assert selection.shape == shape
    assert positions(selection).tolist() == list(range(math.prod(shape)))


@given(shapes, st.data())
def test_nd_slices_are_numpys(shape: tuple[int, ...], data: st.DataObject) -> None:
    given_parts = data.draw(st.lists(parts, max_size=len(shape)))
    if data.draw(st.booleans()) or not given_parts:
        given_parts.insert(data.draw(st.integers(0, len(given_parts))), "...")
    index: tuple[Any, ...] = tuple(... if part == "..." else as_index(part) for part in given_parts)
    text = ",".join(given_parts)
    try:
        expected = numbered(shape)[index]
    except IndexError:
        with pytest.raises(BadRequest) as refused:
            select_nd(shape, text)
        assert refused.value.slug == "selection-out-of-range"
        return
    selection = select_nd(shape, text)
    assert selection.shape == expected.shape
    assert positions(selection).tolist() == expected.ravel().tolist()
    assert selection.n_items == expected.size


@given(st.integers(0, 9), st.integers(0, 9), st.lists(parts, min_size=1, max_size=6), st.none() | parts)
@example(10, 3, ["9:10"], None)
@example(10, 3, ["9:11"], None)
@example(10, 3, ["10:11"], None)
@example(10, 3, ["-1"], None)
@example(10, 3, ["5:2"], None)
@example(10, 3, ["0:10:3"], None)
@example(10, 3, ["9::-1"], None)
@example(10, 3, ["5", "2", "2", "9"], None)
@example(10, 3, ["0:4:2", "2:6:2"], None)
def test_rows_and_columns_are_numpys(n_rows: int, row_items: int, rows: list[str], cols: str | None) -> None:
    outside = [
        not -length <= index < length
        for part, length in [*((row, n_rows) for row in rows), *([(cols, row_items)] if cols else [])]
        if isinstance(index := as_index(part), int)
    ]
    if any(outside):
        with pytest.raises(BadRequest) as refused:
            select_rows(n_rows, row_items, ",".join(rows), cols)
        assert refused.value.slug == "selection-out-of-range"
        return
    table = numbered((n_rows, row_items))
    expected = np.concatenate([table[as_slice(row)] for row in rows])[:, as_slice(cols or ":")]
    selection = select_rows(n_rows, row_items, ",".join(rows), cols)
    assert selection.shape == expected.shape
    assert positions(selection).tolist() == expected.ravel().tolist()


@pytest.mark.case(11)
@pytest.mark.parametrize(
    ("rows", "shape", "first"),
    [
        ("9:10", (1, 4), 36),
        ("9:11", (1, 4), 36),
        ("10:11", (0, 4), None),
        ("-1", (1, 4), 36),
        ("5:2", (0, 4), None),
        ("0:10:3", (4, 4), 0),
        ("9::-1", (10, 4), 36),
        ("5,2,2,9", (4, 4), 20),
        ("-5:", (5, 4), 20),
    ],
)
def test_edges_of_row_ranges(rows: str, shape: tuple[int, int], first: int | None) -> None:
    selection = select_rows(10, 4, rows, None)
    assert selection.shape == shape
    found = positions(selection)
    assert found.size == math.prod(shape)
    assert first is None or found[0] == first


UNGRAMMATICAL = [
    "",
    " ",
    " 1",
    "1 ",
    "1\n",
    "1\t:2",
    "+1",
    "--1",
    "-",
    "1_0",
    "0x1",
    "1e3",
    "1.0",
    "٣",
    "1²",
    "１",  # noqa: RUF001 - a full-width digit is the point
    "−1",  # noqa: RUF001 - as is a true minus sign
    "1" * 20,
    "-" + "1" * 20,
    "0" * 20,
    "::0",
    "::-0",
    "0:1:2:3",
    "::::",
    "1:+2",
    "1: 2",
    "None",
    "nan",
    "True",
    "[1]",
    "1;2",
    "..",
    "....",
    "\x00",
    "1\x00",
    "\ud800",
]


@pytest.mark.parametrize("text", UNGRAMMATICAL)
@pytest.mark.parametrize("around", ["{}", "0,{}", "{},0"])
def test_what_the_grammar_does_not_have_is_a_bad_selection(text: str, around: str) -> None:
    spelled = around.format(text)
    with pytest.raises(BadRequest) as rows:
        select_rows(10, 10, spelled, None)
    with pytest.raises(BadRequest) as cols:
        select_rows(10, 10, None, text)
    with pytest.raises(BadRequest) as nd:
        select_nd((10, 10), spelled)
    with pytest.raises(BadRequest) as alone:
        parse_slice("slice", text)
    for refused in (rows, cols, nd, alone):
        assert refused.value.slug == "bad-selection"
        assert refused.value.status == 400


@pytest.mark.parametrize("text", ["...,...", "0,0,0", ":,:,:", "0,...,0,0"])
def test_more_parts_than_axes_are_a_bad_selection(text: str) -> None:
    with pytest.raises(BadRequest) as refused:
        select_nd((3, 3), text)
    assert refused.value.slug == "bad-selection"


def test_the_ellipsis_is_for_slice_only() -> None:
    for rows, cols in (("...", None), (None, "..."), (None, "0,1")):
        with pytest.raises(BadRequest) as refused:
            select_rows(3, 3, rows, cols)
        assert refused.value.slug == "bad-selection"


@pytest.mark.parametrize("index", [5, -6, BIGGEST, -BIGGEST, 1 << 63])
def test_an_integer_outside_says_what_is_inside(index: int) -> None:
    selects: list[Callable[[], Selection]] = [
        lambda: select_rows(5, 2, str(index), None),
        lambda: select_rows(2, 5, None, str(index)),
        lambda: select_nd((2, 5), f":,{index}"),
    ]
    for select in selects:
        with pytest.raises(BadRequest) as refused:
            select()
        assert refused.value.slug == "selection-out-of-range"
        assert refused.value.fields == {"index": index, "length": 5}
        assert "-5 to 4" in refused.value.detail


def test_an_empty_axis_has_no_valid_integer() -> None:
    for index in ("0", "-1"):
        with pytest.raises(BadRequest) as refused:
            select_nd((0,), index)
        assert refused.value.slug == "selection-out-of-range"


@given(st.text(max_size=60))
def test_any_text_is_a_selection_or_a_short_refusal(text: str) -> None:
    selects: list[Callable[[], Selection]] = [lambda: select_rows(4, 4, text, None), lambda: select_nd((4, 4), text)]
    for select in selects:
        try:
            selection = select()
        except BadRequest as error:
            slug, length = error.slug, len(error.detail)
        else:
            assert text.isascii()
            assert selection.n_items == positions(selection).size
            continue
        assert slug in ("bad-selection", "selection-out-of-range")
        assert length < 400


def test_a_long_bad_part_is_shown_in_part() -> None:
    with pytest.raises(BadRequest) as refused:
        select_rows(3, 3, "x" * 100_000, None)
    assert len(refused.value.detail) < 200


@given(parts)
def test_a_slice_of_an_array_is_pythons(text: str) -> None:
    if ":" not in text:
        index = int(text)
        assume(-5 <= index < 5)
        assert list(range(5))[parse_slice("slice", text)] == [range(5)[index]]
    else:
        assert list(range(5))[parse_slice("slice", text)] == list(range(5))[as_slice(text)]


@pytest.mark.parametrize(
    ("rows", "lattices"),
    [
        ("3,4,5", (Lattice(12, ((12, 1),)),)),
        ("3:5,5", (Lattice(12, ((12, 1),)),)),
        ("3:6", (Lattice(12, ((12, 1),)),)),
        ("3:6:1", (Lattice(12, ((12, 1),)),)),
        ("-7:-4", (Lattice(12, ((12, 1),)),)),
        ("3:4,2:3", (Lattice(12, ((4, 1),)), Lattice(8, ((4, 1),)))),
    ],
)
def test_the_same_rows_are_the_same_lattices(rows: str, lattices: tuple[Lattice, ...]) -> None:
    assert select_rows(10, 4, rows, None).parts == lattices


def test_no_count_is_too_large() -> None:
    """An empty tensor may state any number of rows: they are counted, not made."""
    n_rows = 1 << 124
    for rows in (":", "::1", "::-1"):
        selection = select_rows(n_rows, 0, rows, None)
        assert selection.shape == (n_rows, 0)
        assert selection.parts == ()
    assert select_rows(n_rows, 4, f"::{1 << 62}", None).shape == (1 << 62, 4)
    assert select_nd((n_rows, 3), "...,0").shape == (n_rows,)
    assert select_nd((n_rows, 3), "-1").parts == (Lattice((n_rows - 1) * 3, ((3, 1),)),)


@given(st.integers(0, 6), st.integers(0, 6), parts, st.none() | parts)
def test_a_single_part_is_what_a_list_of_it_is(n_rows: int, row_items: int, rows: str, cols: str | None) -> None:
    def made(given: str | list[int | str]) -> Selection | str:
        try:
            return select_rows(n_rows, row_items, given, cols)
        except BadRequest as problem:
            return problem.detail

    assert made(rows) == made([rows])


def test_the_text_of_a_selection_stays_what_it_is() -> None:
    """It is in the ETags that clients keep."""
    assert select_rows(8, 4, "7", None).normal() == "(1, 4)[Lattice(base=28, dims=((4, 1),))]"
    assert select_rows(8, 4, "5,1,0:4:2", "0:2").normal() == (
        "(4, 2)[([20, 4], 2, 1), Lattice(base=0, dims=((2, 8), (2, 1)))]"
    )
    assert select_rows(8, 4, "3:3", None).normal() == "(0, 4)[]"


def test_a_list_has_so_many_slices_and_a_million_integers() -> None:
    assert select_rows(10, 4, ["0:4:2"] * 20_000, None).shape == (40_000, 4)
    with pytest.raises(BadRequest, match="20000 slices"):
        select_rows(10, 4, ["0:4:2"] * 20_001, None)
    assert select_rows(10, 4, [3] * 100_000, None).shape == (100_000, 4)
