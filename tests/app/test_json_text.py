"""JSON text in pieces: any cut gives the whole, and the whole parses back to the same values."""

import json
import math
from itertools import pairwise
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from app.json_text import array_text, empty_array_text

FLOATS = ["<f2", "<f4", "<f8"]
INTEGERS = ["<i1", "<i2", "<i4", "<i8"]
shapes = st.lists(st.integers(1, 5), max_size=4).map(tuple)
NAMES = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def numbers(value: Any) -> Any:
    """Parsed JSON with the names of what is not finite as floats."""
    if isinstance(value, list):
        return [numbers(item) for item in value]
    return NAMES[value] if isinstance(value, str) else value


def parsed(text: bytes, dtype: str) -> NDArray[Any]:
    """The array of a JSON text, as a strict parser sees it."""
    orjson.loads(text)  # knows no NaN or Infinity
    return np.array(numbers(json.loads(text)), dtype)


def assert_same(found: NDArray[Any], items: NDArray[Any]) -> None:
    """The same values, bit for bit but for the payloads of NaNs."""
    assert found.shape == items.shape
    if items.dtype.kind == "f":
        np.testing.assert_array_equal(np.isnan(found), np.isnan(items))
        found, items = np.nan_to_num(found, posinf=None, neginf=None), np.nan_to_num(items, posinf=None, neginf=None)
    assert found.tobytes() == items.tobytes()


def in_pieces(items: NDArray[Any], shape: tuple[int, ...], cuts: list[int]) -> bytes:
    edges = [0, *sorted(cuts), items.size]
    return b"".join(array_text(items[start:end], start, shape) for start, end in pairwise(edges) if start < end)


@given(shapes, st.sampled_from(FLOATS + INTEGERS), st.data())
def test_pieces_cut_anywhere_are_the_whole(shape: tuple[int, ...], dtype: str, data: st.DataObject) -> None:
    size = math.prod(shape)
    raw = data.draw(st.binary(min_size=size * np.dtype(dtype).itemsize, max_size=size * np.dtype(dtype).itemsize))
    items = np.frombuffer(raw, dtype)
    whole = array_text(items, 0, shape)
    cuts = data.draw(st.lists(st.integers(0, size), max_size=8))
    assert in_pieces(items, shape, cuts) == whole
    assert in_pieces(items, shape, list(range(size))) == whole
    assert_same(parsed(whole, dtype), items.reshape(shape))


@given(shapes)
def test_the_text_is_what_orjson_makes_of_lists(shape: tuple[int, ...]) -> None:
    items = np.arange(math.prod(shape), dtype=np.float32).reshape(shape) / 8
    assert array_text(items.ravel(), 0, shape) == orjson.dumps(items.tolist())


@pytest.mark.parametrize("dtype", FLOATS)
def test_bit_patterns_come_back(dtype: str) -> None:
    """All of float16, and of the longer ones 200,000 that have every exponent."""
    bits = np.dtype(dtype).itemsize * 8
    patterns = np.random.default_rng(bits).integers(0, 1 << bits, 1 << 16 if bits == 16 else 200_000, np.uint64)
    if bits == 16:
        patterns = np.arange(1 << 16, dtype=np.uint64)
    else:
        exponents = np.arange(1 << 12, dtype=np.uint64) << np.uint64(bits - 12)
        patterns = np.concatenate([patterns, exponents, exponents + np.uint64(1), exponents - np.uint64(1)])
    items = patterns.astype(f"<u{bits // 8}").view(dtype)
    assert_same(parsed(array_text(items, 0, items.shape), dtype), items)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_extreme_integers_are_exact(dtype: str) -> None:
    limits = np.iinfo(dtype)
    items = np.array([limits.min, limits.max, 0, -1, limits.max - 1], dtype)
    assert json.loads(array_text(items, 0, (5,))) == items.tolist()


@pytest.mark.parametrize("dtype", FLOATS)
def test_what_is_not_finite_is_a_named_string(dtype: str) -> None:
    items = np.array([1.5, np.nan, -np.inf, -0.0, np.inf, np.nan], dtype)
    assert array_text(items, 0, (6,)) == b'[1.5,"NaN","-Infinity",-0.0,"Infinity","NaN"]'
    assert array_text(items, 0, (3, 2)) == b'[[1.5,"NaN"],["-Infinity",-0.0],["Infinity","NaN"]]'


def test_the_digits_are_the_shortest_of_the_dtype() -> None:
    assert array_text(np.array([0.1, 1e-45, 3.4028235e38], "<f4"), 0, (3,)) == b"[0.1,1e-45,3.4028235e+38]"
    assert array_text(np.array([0.1], "<f8"), 0, (1,)) == b"[0.1]"


def test_a_scalar_is_a_number_alone() -> None:
    assert array_text(np.array([1.5], "<f4"), 0, ()) == b"1.5"
    assert array_text(np.array([np.nan], "<f4"), 0, ()) == b'"NaN"'


def test_strided_items_are_written_in_order() -> None:
    items = np.arange(10, dtype=np.float32)[::-2]
    assert array_text(items, 0, (5,)) == b"[9.0,7.0,5.0,3.0,1.0]"


@given(st.lists(st.integers(0, 4), min_size=1, max_size=4).filter(lambda shape: 0 in shape).map(tuple))
def test_an_empty_array_is_empty_lists(shape: tuple[int, ...]) -> None:
    assert json.loads(empty_array_text(shape)) == np.empty(shape).tolist()


def test_many_empty_lists_are_written_without_making_them() -> None:
    text = empty_array_text([1 << 20, 0, 1 << 40])
    assert len(text) == 3 * (1 << 20) + 1
    assert text.startswith(b"[[],[]")
    assert text.endswith(b"[]]")
