"""A selection in batches is numpy's, whatever the batch; the tensor here is an array."""

from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensortap import RemoteTensor
from tensortap.cli import _select
from tensortap.cli._select import Selection, select_nd


@st.composite
def slices(draw: st.DrawFn) -> tuple[tuple[int, ...], str]:
    """A shape, and a selection of it as a text."""
    shape = tuple(draw(st.lists(st.integers(0, 6), max_size=4)))
    parts = []
    for size in shape[: draw(st.integers(0, len(shape)))]:
        bound = st.none() | st.integers(-8, 8)
        if size and draw(st.booleans()):
            parts.append(str(draw(st.integers(-size, size - 1))))
        else:
            step = draw(st.none() | st.integers(-3, 3).filter(bool))
            parts.append(":".join("" if one is None else str(one) for one in (draw(bound), draw(bound), step)))
    if draw(st.booleans()):
        parts.append("...")
    return shape, ",".join(parts)


def numpys(text: str) -> Any:
    """The index that a text is, by Python itself."""
    return eval(f"np.s_[{text}]", {"np": np}) if text else ...


@given(slices(), st.integers(1, 50))
def test_batches_are_the_selection_in_order(case: tuple[tuple[int, ...], str], most: int) -> None:
    shape, text = case
    array = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_select, "_BATCH_WEIGHTS", most)
        selection = select_nd(cast(RemoteTensor, array), text)
        batches = list(selection.batches())
    expected = np.asarray(array[numpys(text)])
    assert selection.shape == expected.shape
    assert np.concatenate([np.zeros(0), *batches]).tolist() == expected.reshape(-1).tolist()
    assert all(0 < batch.size <= most for batch in batches)


@given(st.lists(st.integers(0, 9), max_size=30), st.integers(1, 20))
def test_rows_may_be_listed_in_any_order(rows: list[int], most: int) -> None:
    array = np.arange(40, dtype=np.float32).reshape(10, 4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_select, "_BATCH_WEIGHTS", most)
        selection = Selection(cast(RemoteTensor, array), [np.array(rows, np.int64), range(4)])
        batches = list(selection.batches())
    assert np.concatenate([np.zeros(0), *batches]).tolist() == array[rows].reshape(-1).tolist()
