"""Indexing is numpy's, over a real server, whichever way weights travel."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tensortap import Client, SelectionError
from tensortap._index import boxed
from tests.server import Server
from tests.tensortap.models import values
from tests.tensortap.twin import Connect

VALUES = values()
WAYS = list(itertools.product(("auto", "client", "server"), (1, 200, 4 << 20), (0, 3000, 64 << 20)))


@pytest.fixture(scope="module")
def clients(server: Server) -> Iterator[list[Any]]:
    """A model of each way: where weights are decoded, how large parts are, and what is kept."""
    taps = [Client(server.url, decode=way[0], part_bytes=way[1], cache_bytes=way[2]) for way in WAYS]  # type: ignore[arg-type]
    yield [tap["tests"] for tap in taps]
    for tap in taps:
        tap.close()


def bounds(size: int) -> st.SearchStrategy[int | None]:
    return st.none() | st.integers(-size - 2, size + 2)


def slices(size: int) -> st.SearchStrategy[slice]:
    steps = st.none() | st.integers(-4, 4).filter(bool) | st.just(0)
    return st.builds(slice, bounds(size), bounds(size), steps)


def lists(size: int) -> st.SearchStrategy[Any]:
    inside = st.lists(st.integers(-size, max(size - 1, -size)), max_size=6)
    near = st.lists(st.integers(-size - 1, size), max_size=4)
    masks = st.lists(st.booleans(), min_size=size, max_size=size)
    whole = inside | near | masks | masks.map(lambda mask: [*mask, True])
    return whole | whole.map(lambda some: np.array(some, np.int64 if not some else None)) | st.just(range(size // 2))


@st.composite
def indices(draw: st.DrawFn, shape: tuple[int, ...]) -> Any:
    n_members = draw(st.integers(0, len(shape) + (draw(st.integers(0, 9)) == 0)))
    listed = draw(st.integers(0, max(0, 2 * n_members)))
    members: list[Any] = []
    for axis in range(n_members):
        size = shape[axis] if axis < len(shape) else 1
        if axis == listed:
            members.append(draw(lists(size)))
        else:
            members.append(draw(st.integers(-size - 1, size) | st.integers(-size, max(size - 1, -size)) | slices(size)))
    for special, most in ((None, 2), (Ellipsis, 1)):
        for _ in range(draw(st.integers(0, most))):
            members.insert(draw(st.integers(0, len(members))), special)
    return members[0] if len(members) == 1 and draw(st.booleans()) else tuple(members)


@st.composite
def questions(draw: st.DrawFn) -> tuple[str, Any, int]:
    name = draw(st.sampled_from(sorted(VALUES)))
    return name, draw(indices(VALUES[name].shape)), draw(st.integers(0, len(WAYS) - 1))


def outcome(of: Any, index: Any) -> Any:
    """What indexing gives, or the kind of error that it raises."""
    try:
        return of[index]
    except (IndexError, TypeError, ValueError) as error:
        return next(kind for kind in (IndexError, TypeError, ValueError) if isinstance(error, kind))


def assert_same(given: Any, expected: Any) -> None:
    assert type(given) is type(expected), (given, expected)
    if isinstance(expected, type):
        assert given is expected
        return
    assert given.shape == expected.shape
    assert given.dtype == expected.dtype == np.float32
    assert np.asarray(given).tobytes() == np.asarray(expected).tobytes()


@settings(max_examples=120)
@given(question=questions())
@example(question=("matrix.q4_0", (slice(None), [3, 3, -1]), 1))
@example(question=("cube", (0, slice(None), [1, 2]), 0))
@example(question=("cube", ([1, 2], None, slice(None), 0), 0))
@example(question=("four", (..., [True, False, True, True]), 4))
@example(question=("scalar", (), 0))
@example(question=("scalar", ..., 0))
@example(question=("scalar", (None, ...), 0))
@example(question=("vector", (..., 3), 0))
def test_indexing_is_numpys(clients: list[Any], question: tuple[str, Any, int]) -> None:
    name, index, way = question
    assert_same(outcome(clients[way][name], index), outcome(VALUES[name], index))


@pytest.mark.parametrize(
    "index",
    [
        1.0,
        "a",
        b"a",
        [1.0],
        ["a"],
        np.array([]),
        np.array([0.0]),
        {},
        {0},
        1j,
        slice(1.5),
        slice("a"),
        (slice(None, None, 0),),
        (..., ...),
        (0, 0, 0),
        [9],
        [-10],
        9,
        -10,
        1 << 70,
        [1 << 70],
        np.zeros(8, bool),
        [[0], [0, 1]],
    ],
    ids=repr,
)
def test_what_numpy_does_not_take_is_its_class_of_error(clients: list[Any], index: Any) -> None:
    expected = outcome(VALUES["matrix"], index)
    assert isinstance(expected, type)
    assert outcome(clients[0]["matrix"], index) is expected


@pytest.mark.parametrize("index", [np.int8(3), np.uint64(3), np.array(3), np.array([1, 2], np.uint8), (0, 1), []])
def test_indices_of_other_integer_types(clients: list[Any], index: Any) -> None:
    assert_same(clients[0]["matrix"][index], VALUES["matrix"][index])
    assert_same(clients[0]["matrix"][:, index], VALUES["matrix"][:, index])


@pytest.mark.parametrize("index", [True, np.bool_(False), ([0], [1]), np.zeros((2, 2), int), np.zeros((9, 5), bool)])
def test_what_only_numpy_takes_says_so(clients: list[Any], index: Any) -> None:
    with pytest.raises(SelectionError):
        clients[0]["matrix"][index]


@given(st.data())
def test_what_is_moved_is_ascending_and_each_once(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(0, 6), max_size=4)))
    array = np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)
    index = data.draw(indices(shape))
    expected = outcome(array, index)
    if isinstance(expected, type):
        assert outcome(_Boxed(array), index) is expected
        return
    box = boxed(index, shape)
    for pick in box.picks:
        assert (np.diff(np.asarray(pick)) > 0).all()
    assert_same(_Boxed(array)[index], expected)


class _Boxed:
    """An array that is indexed through the box of an index."""

    def __init__(self, array: NDArray[np.float32]) -> None:
        self._array = array

    def __getitem__(self, index: Any) -> Any:
        box = boxed(index, self._array.shape)
        picked = self._array[np.ix_(*box.picks)] if box.picks else self._array
        return picked[box.local]


def test_both_clients_index_alike(server: Server, connect: Connect) -> None:
    with connect(server.url, part_bytes=300) as tap:
        model = tap["tests"]
        for name, expected in VALUES.items():
            assert_same(model[name][...], expected)
            assert_same(model[name][()], expected[()])
            if expected.ndim:
                assert_same(model[name][::-2], expected[::-2])
                assert_same(model[name][[-1, 0, -1]], expected[[-1, 0, -1]])
                with pytest.raises(IndexError):
                    model[name][len(expected)]
