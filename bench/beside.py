"""How long a cached row takes while large streams run.

One client asks for one row over and over on one connection; up to 8 read a tensor of 1 GiB decoded, which the cache
cannot hold.
"""

import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np

from bench._files import DATA, ROW_WEIGHTS, write_holes
from bench._receivers import Receivers
from bench._servers import Running, tensortap
from bench._table import Plot, Series, Table

__all__ = ["run"]

_STREAMS = (0, 1, 2, 4, 8)
_LARGE_BYTES, _CACHE_BYTES = 1 << 30, 64 << 20


def run(quick: bool) -> Iterator[Table]:
    """Milliseconds of one-row GETs (median, p99, largest) beside 0 to 8 streams."""
    n_requests = 200 if quick else 1000
    with tempfile.TemporaryDirectory() as folder, Receivers(max(_STREAMS)) as receivers:
        write_holes(Path(folder) / "small.gguf", 64 * ROW_WEIGHTS)
        write_holes(Path(folder) / "large.gguf", _LARGE_BYTES // 4)
        with tensortap(Path(folder), cache_bytes=_CACHE_BYTES) as server:
            seen = {streams: _beside(server, receivers, streams, n_requests) for streams in _STREAMS}
    figures = {
        "median": [float(np.median(times)) for times, _ in seen.values()],
        "p99": [float(np.percentile(times, 99)) for times, _ in seen.values()],
        "largest": [max(times) for times, _ in seen.values()],
    }
    yield Table(
        "beside",
        "a cached row beside cold streams of 1 GiB, milliseconds",
        ["streams", *figures, "GB/s of the streams"],
        [
            [streams, *cells, speed]
            for (streams, (_, speed)), *cells in zip(seen.items(), *figures.values(), strict=True)
        ],
        [
            Plot(
                [Series(label, values) for label, values in figures.items()],
                [str(streams) for streams in _STREAMS],
                "milliseconds",
                "streams that run meanwhile",
                log_y=True,
            )
        ],
    )


def _beside(server: Running, receivers: Receivers, streams: int, n_requests: int) -> tuple[list[float], float | None]:
    """The milliseconds of each request, and GB/s of so many streams, which begin anew whenever all have ended."""
    if not streams:
        return _requests(server, n_requests), None
    over = threading.Event()
    paths = [DATA.format(model="large", tensor="w")] * streams

    def read() -> float:
        speeds = []
        while not over.is_set():
            speeds.append(receivers.read(server.port, paths).speed)
        return max(speeds)

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read)
        try:
            time.sleep(0.5)  # by then they run
            times = _requests(server, n_requests)
        finally:
            over.set()
        return times, reading.result()


def _requests(server: Running, n_requests: int) -> list[float]:
    times = []
    with httpx.Client(base_url=server.url, timeout=60) as client:
        for _ in range(n_requests):
            start = time.perf_counter()
            client.get(f"{DATA.format(model='small', tensor='w')}?rows=0").raise_for_status()
            times.append((time.perf_counter() - start) * 1e3)
    return times
