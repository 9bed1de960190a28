"""The window cache on a trace of single windows and scans, beside a plain LRU and the best possible; and what it costs.

Single uses follow Zipf's law over 8192 windows: some are wanted often, most hardly ever. Scans come in between: reads
of windows that are wanted once, half as many as the cache holds or twice as many; the latter are marked as larger than
the cache, as the reader marks them. Hits are counted among the single uses; scans can have none.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count

import numpy as np
from numpy.typing import NDArray

from app.cache import WindowCache
from bench._policies import LRU, belady_hits
from bench._table import Plot, Series, Table
from bench._timing import best

__all__ = ["run"]

Window = NDArray[np.float32]
Key = tuple[str, int]
Decode = Callable[[], Window]

_N_WINDOWS = 8192
_EXPONENTS = (0.7, 0.9, 1.1)
_SHARES = (1 / 64, 1 / 16, 1 / 4)
_WINDOW_BYTES = 4


@dataclass(frozen=True, slots=True)
class _Use:
    """A use of a window: its key, and whether it is part of a scan, or of one larger than the cache."""

    key: Key
    once: bool
    larger: bool = False


@dataclass(frozen=True, slots=True)
class _Row:
    exponent: float
    capacity: int
    without_scans: float
    with_scans: float
    lru_without_scans: float
    lru: float
    best: float


def run(quick: bool) -> Iterator[Table]:
    """Hit ratios with and without scans, of a plain LRU and of Belady's; nanoseconds of a hit and of a miss."""
    n_uses = 20_000 if quick else 100_000
    rows = [_compared(exponent, int(_N_WINDOWS * share), n_uses) for exponent in _EXPONENTS for share in _SHARES]
    yield _ratios(rows)
    yield _costs(quick)


def _compared(exponent: float, capacity: int, n_uses: int) -> _Row:
    trace = list(_trace(exponent, capacity, n_uses))
    single = [use for use in trace if not use.once]
    optimal = belady_hits([use.key for use in trace], capacity)
    n_best = sum(hit for hit, use in zip(optimal, trace, strict=True) if not use.once)
    return _Row(
        exponent,
        capacity,
        _hit_ratio(single, _windowed(capacity)),
        _hit_ratio(trace, _windowed(capacity)),
        _hit_ratio(single, _plain(capacity)),
        _hit_ratio(trace, _plain(capacity)),
        n_best / len(single),
    )


def _trace(exponent: float, capacity: int, n_uses: int) -> Iterator[_Use]:
    rng = np.random.default_rng(0)
    weights = np.arange(1, _N_WINDOWS + 1, dtype=np.float64) ** -exponent
    fresh = count()
    for number, at in enumerate(rng.choice(_N_WINDOWS, n_uses, p=weights / weights.sum()).tolist()):
        yield _Use(("tensor", at), once=False)
        turn, place = divmod(number, capacity * 2)
        if place == capacity * 2 - 1:
            larger = turn % 2 == 1
            for _ in range(capacity * 2 if larger else capacity // 2):
                yield _Use(("scan", next(fresh)), once=True, larger=larger)


def _hit_ratio(trace: list[_Use], get: Callable[[_Use, Decode], object]) -> float:
    misses = 0

    def decode() -> Window:
        nonlocal misses
        misses += 1
        return np.empty(1, np.float32)

    for use in trace:
        get(use, decode)
    # Every use in a scan is a miss, and no other use is of such a window.
    n_once = sum(use.once for use in trace)
    return 1 - (misses - n_once) / (len(trace) - n_once)


def _windowed(capacity: int) -> Callable[[_Use, Decode], object]:
    cache = WindowCache(capacity * _WINDOW_BYTES)
    return lambda use, decode: cache.get(use.key, decode, scan=use.larger)


def _plain(capacity: int) -> Callable[[_Use, Decode], object]:
    lru = LRU(capacity)
    return lambda use, decode: lru.get(use.key, decode)


def _ratios(rows: list[_Row]) -> Table:
    shown = {
        "best possible": [row.best for row in rows],
        "window cache": [row.with_scans for row in rows],
        "plain LRU": [row.lru for row in rows],
    }
    names = [f"{row.capacity}" for row in rows]
    panels = [slice(at, at + len(_SHARES)) for at in range(0, len(rows), len(_SHARES))]
    return Table(
        "cache",
        f"hit ratio of single uses of {_N_WINDOWS} windows (Zipf's law) among scans",
        [
            *("exponent", "windows kept", "window cache", "without scans", "plain LRU", "LRU without scans"),
            "best possible",
        ],
        [
            [
                *(row.exponent, row.capacity, row.with_scans, row.without_scans, row.lru, row.lru_without_scans),
                row.best,
            ]
            for row in rows
        ],
        [
            Plot(
                [
                    *(Series(label, values[panel]) for label, values in shown.items()),
                    Series("window cache, no scans", [row.without_scans for row in rows[panel]], ceiling=True),
                ],
                names[panel],
                "hit ratio",
                "windows that the cache holds",
                f"exponent {exponent}",
            )
            for exponent, panel in zip(_EXPONENTS, panels, strict=True)
        ],
        notes=[
            "a scan comes after twice as many single uses as the cache holds windows, and has half or twice as many",
            "the best possible is Belady's, which knows the future, on the trace with scans",
        ],
    )


def _costs(quick: bool) -> Table:
    n, rounds = 10_000, 3 if quick else 9
    window = np.empty(1, np.float32)
    fresh = count()

    def decode() -> Window:
        return window

    def hits(get: Callable[[Key, Decode], object]) -> None:
        for at in range(n):
            get(("held", at % 512), decode)

    def misses(get: Callable[[Key, Decode], object]) -> None:
        for _ in range(n):
            get(("new", next(fresh)), decode)

    caches: dict[str, Callable[[], WindowCache | LRU]] = {
        "window cache": lambda: WindowCache(1024 * window.nbytes),
        "plain LRU": lambda: LRU(1024),
    }
    sides: dict[str, Callable[[], object]] = {}
    for name, make in caches.items():
        held = make().get
        hits(held)  # from now on it holds them
        sides[f"{name}, hit"] = partial(hits, held)
        full = make().get
        misses(full)  # from now on each throws another one out
        sides[f"{name}, miss"] = partial(misses, full)
    took = {side: least / n * 1e9 for side, least in best(sides, rounds).items()}
    return Table(
        "cache-cost",
        "what the window cache costs, nanoseconds per get",
        ["cache", "hit", "miss"],
        [[name, took[f"{name}, hit"], took[f"{name}, miss"]] for name in caches],
        [
            Plot(
                [Series(name, [took[f"{name}, hit"], took[f"{name}, miss"]]) for name in caches],
                ["hit", "miss and insertion"],
                "nanoseconds",
            )
        ],
        notes=[
            "of one thread; a miss has a decode that does nothing, and throws another window out",
            "the figures include the loop that asks, some 0.2 µs",
        ],
    )
