"""Random rows of an embedding table beside as many consecutive ones.

The table has 49,152 rows of 576 weights in Q8_0, as large as SmolLM2's. 10,000 rows are read at a time, consecutive
ones by GET, random ones by POST, in turn, from a warm cache; before that, the random ones once from a cold one.
"""

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx

from bench._files import DATA, write_model
from bench._servers import Running, tensortap
from bench._table import Plot, Series, Table
from bench._timing import best, seconds
from decoders import GGMLType

__all__ = ["run"]

_ROWS, _ROW_WEIGHTS, _N_ROWS = 10_000, 576, 49_152
_N_BYTES = _ROWS * _ROW_WEIGHTS * 4
_PATH = DATA.format(model="m", tensor="w")


def run(quick: bool) -> Iterator[Table]:
    """MB/s of 10,000 rows in one answer: consecutive, random, and random from a cold cache."""
    rows = random.Random(1).choices(range(_N_ROWS), k=_ROWS)
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder) / "m.gguf", GGMLType.Q8_0, _ROW_WEIGHTS * _N_ROWS, _ROW_WEIGHTS)
        with tensortap(Path(folder), cache_bytes=256 << 20) as server, httpx.Client(timeout=60) as client:
            cold = seconds(lambda: _read(server, client, rows))
            _read(server, client, None)
            took = best(
                {"consecutive": lambda: _read(server, client, None), "random": lambda: _read(server, client, rows)},
                2 if quick else 9,
            )
    shown = {"consecutive": took["consecutive"], "random": took["random"], "random, cold": cold}
    yield Table(
        "gather",
        f"{_ROWS:,} rows of {_ROW_WEIGHTS} weights (Q8_0) in one answer, MB/s",
        ["rows", "MB/s", "to consecutive"],
        [[name, _N_BYTES / each / 1e6, took["consecutive"] / each] for name, each in shown.items()],
        [Plot([Series("MB/s", [_N_BYTES / each / 1e6 for each in shown.values()])], list(shown), "MB/s")],
        notes=["consecutive rows by GET, random ones by POST; the cold figure is of one answer"],
    )


def _read(server: Running, client: httpx.Client, rows: list[int] | None) -> None:
    """Read one answer to its end; without ``rows``, consecutive ones."""
    method, path = ("POST", _PATH) if rows else ("GET", f"{_PATH}?rows=1000:{1000 + _ROWS}")
    with client.stream(method, server.url + path, json={"rows": rows} if rows else None) as answer:
        n_bytes = sum(len(chunk) for chunk in answer.iter_raw(1 << 20))
    if n_bytes != _N_BYTES:
        raise AssertionError(f"{n_bytes} bytes came instead of {_N_BYTES}")
