"""What is moved for a selection: the least of two bodies, in parts that are neither too large nor overlap."""

from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoders import GGMLType, info
from tensortap._index import Box, Indices, boxed
from tensortap._parts import cut, rows_text, wanted
from tensortap._table import TensorLine
from tests.tensortap.test_index import indices, outcome


def line_of(shape: tuple[int, ...], type_: GGMLType, is_native: bool = True) -> TensorLine:
    block = info(type_)
    n_bytes = int(np.prod(shape)) // block.block_weights * block.block_bytes
    where = (type_.name, int(type_), n_bytes, "/data", None, is_native)
    return TensorLine("w", shape, *where, block.block_bytes, block.block_weights)


shapes = st.lists(st.integers(0, 5), max_size=3).flatmap(
    lambda outer: st.sampled_from([32, 64, 96]).map(lambda row: (*outer, row))
)


@given(data=st.data())
def test_parts_are_all_that_is_wanted_and_each_once(data: st.DataObject) -> None:
    shape = data.draw(st.just(()) | shapes)
    type_ = data.draw(st.sampled_from([GGMLType.F32, GGMLType.Q8_0] if shape else [GGMLType.F32]))
    decode: Literal["auto", "client", "server"] = data.draw(st.sampled_from(["auto", "client", "server"]))
    index = data.draw(indices(shape))
    if isinstance(outcome(np.empty(shape, np.float32), index), type):
        return
    line, box = line_of(shape, type_), boxed(index, shape)
    what = wanted(line, box, decode)
    part_bytes = data.draw(st.sampled_from([1, 40, 300, 1 << 20]))
    row_bytes = line.row_bytes if what.body == "native" else len(what.columns) * 4
    at = n_bytes = 0
    rows: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tensortap._parts._MOST_RUNS", 3)
        for part in cut(line, what, part_bytes):
            assert part.first == at < part.stop
            assert 0 < part.n_bytes <= max(part_bytes, row_bytes)
            assert len(part.rows) <= 3
            if part.intervals:
                assert sum(stop - first for first, stop in part.intervals) == part.n_bytes
                assert all(0 <= first < stop <= line.row_bytes * 5**3 * 4 for first, stop in part.intervals)
            at, n_bytes = part.stop, n_bytes + part.n_bytes
            rows += [row for first, stop in part.rows.tolist() for row in range(first, stop)]
    assert n_bytes == what.n_bytes(line)
    assert at == what.n_rows * len(what.columns)
    outer = np.ix_(*[np.asarray(pick, np.int64) for pick in box.picks[:-1]])
    numbers = np.arange(int(np.prod(shape[:-1]))).reshape(shape[:-1])[outer].reshape(-1)
    if at:
        assert sorted(set(rows)) == numbers.tolist()
    assert np.diff(numbers).min(initial=1) > 0
    if decode == "auto" and line.is_native:
        both = [wanted(line, box, one).n_bytes(line) for one in ("client", "server")]
        assert what.n_bytes(line) == min(both)


@pytest.mark.parametrize(
    ("type_", "picks", "body"),
    [
        (GGMLType.Q4_K, (range(10), range(4096)), "native"),
        (GGMLType.Q4_K, (range(10), range(512)), "raw"),
        (GGMLType.Q4_K, (range(10), range(0, 4096, 2)), "native"),
        (GGMLType.F32, (range(10), range(4096)), "native"),
        (GGMLType.F32, (range(10), range(1)), "raw"),
        (GGMLType.F16, (range(10), np.array([0, 4095])), "native"),
        (GGMLType.I8, (range(10), range(4096)), "native"),
    ],
)
def test_what_is_fewer_bytes_is_moved(type_: GGMLType, picks: tuple[Indices, ...], body: str) -> None:
    box = Box(picks, ())
    assert wanted(line_of((10, 4096), type_), box, "auto").body == body
    assert wanted(line_of((10, 4096), type_), box, "client").body == "native"
    assert wanted(line_of((10, 4096), type_), box, "server").body == "raw"
    assert wanted(line_of((10, 4096), type_, is_native=False), box, "client").body == "raw"


def test_rows_as_the_service_takes_them() -> None:
    assert rows_text(np.array([[0, 1], [5, 9], [12, 13]])) == "0,5:9,12"
