"""The reader: a piece of many windows is given up between two of them when nobody wants it any more."""

import asyncio
import os
from pathlib import Path

import numpy as np
import pytest

from app.cache import WindowCache
from app.content import Section
from app.encoding import as_bytes
from app.plan import plan
from app.reader import Reader
from app.selection import select_rows
from app.snapshot import Snapshot
from app.steps import Step
from app.windows import WINDOW_WEIGHTS, source
from tests.builder import build

N_WINDOWS = 6


@pytest.fixture
def path(tmp_path: Path) -> bytes:
    weights = np.arange(N_WINDOWS * WINDOW_WEIGHTS, dtype="<f4").tobytes()
    (tmp_path / "m.gguf").write_bytes(build([("w", [WINDOW_WEIGHTS // 4, 4 * N_WINDOWS], 0, weights)]))
    return os.fsencode(tmp_path / "m.gguf")


@pytest.mark.parametrize("wanted_windows", [0, 1, 3, N_WINDOWS])
def test_work_that_nobody_wants_ends_within_one_window(path: bytes, wanted_windows: int) -> None:
    cache = WindowCache(64 << 20)
    reader = Reader(cache, threads=1)

    async def gather() -> bytes:
        with Snapshot.open(b"m", [path]) as snapshot:
            weights = source(snapshot, snapshot.model.find(b"w"), "decoded")
            # One weight of a row in each window: a single piece.
            selection = select_rows(4 * N_WINDOWS, WINDOW_WEIGHTS // 4, [4 * k for k in range(N_WINDOWS)][::-1], 0)
            section = Section.of_items(weights, selection, as_bytes, 4, copies_nothing=True)
            (piece,) = plan(selection, weights.window_items)
            asked = iter([True] * wanted_windows + [False] * N_WINDOWS)
            chunk = reader.begin(Step(section, piece), lambda: next(asked))
            assert isinstance(chunk, asyncio.Future)
            return bytes(await chunk)

    if wanted_windows < N_WINDOWS:
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(gather())
    else:
        firsts = np.frombuffer(asyncio.run(gather()), "<f4")
        assert firsts.tolist() == [WINDOW_WEIGHTS * k for k in range(N_WINDOWS)][::-1]
    reader.close()
    assert cache.figures().misses == wanted_windows
