"""One cached row a request, beside a bare FastAPI route of the same signature that answers constant bytes.

wrk asks, with one thread. The bare route is declared in plain FastAPI style (`bench._bare`), runs under the same
uvicorn, and answers as many bytes with the same headers. Both write their access log, to /dev/null.
"""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

from bench import _timing
from bench._bare import bare
from bench._files import DATA, write_model
from bench._servers import Running, tensortap
from bench._table import Plot, Series, Table, Target
from bench._wrk import Load, load
from decoders import GGMLType

__all__ = ["run"]

_N_WEIGHTS = 1 << 22
_ROWS = (256, 4096)
_CONNECTIONS = (1, 16)
# What uvicorn adds by itself, or starlette from the body.
_OWN_HEADERS = {"date", "content-length"}
_PATH = DATA.format(model="m", tensor="w") + "?rows="


@dataclass(frozen=True, slots=True)
class _Figures:
    """The best of some rounds: requests per second, milliseconds, microseconds of the server's processor time."""

    rate: float
    p50: float
    p99: float
    cpu: float

    @classmethod
    def of(cls, measured: list[tuple[Load, float]]) -> "_Figures":
        return cls(
            max(load.rate for load, _ in measured),
            min(load.p50 for load, _ in measured),
            min(load.p99 for load, _ in measured),
            min(cpu / load.requests for load, cpu in measured) * 1e6,
        )


@dataclass(frozen=True, slots=True)
class _Row:
    name: str
    connections: int
    ours: _Figures
    bare: _Figures

    @property
    def ratio(self) -> float:
        return self.ours.rate / self.bare.rate


def run(quick: bool) -> Iterator[Table]:
    """Requests per second, p50 and p99 of one cached row, for 1 and 16 connections, and the ratio to the bare route."""
    rows = [row for weights in _ROWS for row in _measured(weights, quick)]
    yield Table(
        "requests",
        "one cached row a request, beside a bare FastAPI route that answers constant bytes",
        [
            *("row", "connections", "requests/s", "bare", "ratio", "p50 ms", "bare p50", "p99 ms", "bare p99"),
            *("CPU µs", "bare CPU"),
        ],
        [
            [
                *(row.name, row.connections, row.ours.rate, row.bare.rate, row.ratio),
                *(row.ours.p50, row.bare.p50, row.ours.p99, row.bare.p99, row.ours.cpu, row.bare.cpu),
            ]
            for row in rows
        ],
        [
            Plot(
                [
                    Series("tensortap", [row.ours.rate for row in rows if row.connections == connections]),
                    Series("bare FastAPI route", [row.bare.rate for row in rows if row.connections == connections]),
                ],
                [row.name for row in rows if row.connections == connections],
                "requests per second",
                title=f"{connections} connection{'s' * (connections > 1)}",
            )
            for connections in _CONNECTIONS
        ],
        [
            Target("least ratio to the bare route", min(row.ratio for row in rows), 0.9),
            Target(
                f"largest p50 at {_CONNECTIONS[-1]} connections, ms",
                max(row.ours.p50 for row in rows if row.connections == _CONNECTIONS[-1]),
                2,
                "at most",
            ),
        ],
        ["CPU: processor time of the server process per request"],
    )


def _measured(weights: int, quick: bool) -> Iterator[_Row]:
    last = _N_WEIGHTS // weights - 1
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder) / "m.gguf", GGMLType.Q8_0, _N_WEIGHTS, weights)
        with tensortap(Path(folder), cache_bytes=_N_WEIGHTS * 8) as ours, bare(_headers(ours), weights * 4) as peer:
            httpx.get(ours.url + _PATH + ":", timeout=60).raise_for_status()  # every window is cached now
            for which, numbers in {"same": (7, 7), "random": (0, last)}.items():
                for connections in _CONNECTIONS:
                    yield _row(f"{which} row of {weights}", ours, peer, numbers, connections, quick)


def _row(name: str, ours: Running, peer: Running, numbers: tuple[int, int], connections: int, quick: bool) -> _Row:
    sides = {"ours": _asked(ours, numbers, connections, quick), "bare": _asked(peer, numbers, connections, quick)}
    measured = _timing.alternate(sides, 1 if quick else 3)
    return _Row(name, connections, _Figures.of(measured["ours"]), _Figures.of(measured["bare"]))


def _asked(
    server: Running, numbers: tuple[int, int], connections: int, quick: bool
) -> Callable[[], tuple[Load, float]]:
    """One round: what wrk saw, and the processor time that the server took."""

    def ask() -> tuple[Load, float]:
        before = server.cpu_seconds()
        seen = load(server.port, _PATH, numbers, connections, 1 if quick else 4)
        return seen, server.cpu_seconds() - before

    return ask


def _headers(server: Running) -> dict[str, str]:
    answer = httpx.get(f"{server.url}{_PATH}7", timeout=60).raise_for_status()
    return {name: value for name, value in answer.headers.items() if name not in _OWN_HEADERS}
