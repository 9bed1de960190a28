"""How much memory the server takes: during one cold stream of 4 GiB with a full cache, and for streams that stall."""

import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx

from bench._files import DATA, write_holes
from bench._receivers import Receivers
from bench._servers import Running, tensortap
from bench._table import Plot, Series, Table, Target

__all__ = ["run"]

_MIB = 1 << 20
_CACHE_BYTES = 256 * _MIB
_STALLED = 32
_STALL_SECONDS = 6  # what a stream lets go of when its client stalls, it has let go of by then


def run(quick: bool) -> Iterator[Table]:
    """Peak resident memory of a whole cold stream, beside the cache's budget; what each stalled stream adds."""
    yield _stream((512 if quick else 4096) * _MIB)
    yield _stalled(3 if quick else _STALL_SECONDS)


def _stream(n_bytes: int) -> Table:
    with tempfile.TemporaryDirectory() as folder, Receivers(1) as receivers:
        write_holes(Path(folder) / "large.gguf", n_bytes // 4)
        write_holes(Path(folder) / "cached.gguf", _CACHE_BYTES // 4)
        with tensortap(Path(folder), cache_bytes=_CACHE_BYTES) as server:
            start = _started(server, "cached")
            for _ in range(2):
                receivers.read(server.port, [DATA.format(model="cached", tensor="w")])
            full = server.memory()
            receivers.read(server.port, [DATA.format(model="large", tensor="w")])
            peak = server.memory("VmHWM")
    shown = {"at the start": start, "cache full": full, "peak of the stream": peak}
    return Table(
        "memory",
        f"resident memory of the server: one cold stream of {n_bytes >> 20} MiB, cache budget {_CACHE_BYTES >> 20} MiB",
        ["when", "MiB", "above the start", "above the budget"],
        [[when, at / _MIB, (at - start) / _MIB, (at - _CACHE_BYTES) / _MIB] for when, at in shown.items()],
        [
            Plot(
                [
                    Series("resident", [at / _MIB for at in shown.values()]),
                    Series("budget + 100 MiB", [_CACHE_BYTES / _MIB + 100] * len(shown), ceiling=True),
                ],
                list(shown),
                "MiB",
            )
        ],
        [Target("peak, MiB", peak / _MIB, _CACHE_BYTES / _MIB + 100, "at most")],
        ["the cache was filled by reading a tensor as large as it twice, before the stream"],
    )


def _stalled(seconds: float) -> Table:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        write_holes(Path(folder) / "large.gguf", 512 * _MIB // 4)
        # Less than one window: what the streams take is not taken for the cache.
        server = stack.enter_context(tensortap(Path(folder), cache_bytes=_MIB // 2))
        start = _started(server, "large")
        for _ in range(_STALLED):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            client.sendall(f"GET {DATA.format(model='large', tensor='w')} HTTP/1.1\r\nHost: bench\r\n\r\n".encode())
            if not client.recv(1 << 16):
                raise ConnectionError("a stream ended at once")
        began = time.monotonic()
        times, each = list[float](), list[float | None]()
        while (now := time.monotonic() - began) < seconds:
            times.append(round(now, 2))
            each.append((server.memory() - start) / _STALLED / _MIB)
            time.sleep(0.1)
        peak = (server.memory("VmHWM") - start) / _STALLED / _MIB
    return Table(
        "memory-stalled",
        f"memory of the server for each of {_STALLED} cold streams whose clients stop reading",
        ["when", "MiB each"],
        [["most", peak], [f"after {seconds} s", each[-1]]],
        [
            Plot(
                [Series("grown since the start", each), Series("4 MiB", [4.0] * len(each), ceiling=True)],
                times,
                "MiB for each stream",
                "seconds since the last client stopped reading",
                kind="lines",
            )
        ],
        [Target("most for each stream, MiB", peak, 4, "at most")],
        ["growth since one row was answered, divided by the streams: what they share counts, too"],
    )


def _started(server: Running, model: str) -> int:
    """Resident memory once the first request is answered, by which everything is loaded."""
    httpx.get(f"{server.url}{DATA.format(model=model, tensor='w')}?rows=0", timeout=60).raise_for_status()
    return server.memory()
