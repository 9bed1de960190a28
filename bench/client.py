"""The Python client on loopback: a whole Q4_K tensor beside decoding the same blocks here, and one row at a time.

Blocks travel as they are stored and are decoded in this process, by the threads that receive them, while the server is
another process on the same machine. Decoding alone is done by one thread, into memory that is warm. The client's cache
is off, but for the row that it has.
"""

import socket
import statistics
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
from numpy.typing import NDArray

from bench._blocks import random_blocks
from bench._files import DATA, ROW_WEIGHTS, write_model
from bench._servers import tensortap
from bench._table import Plot, Series, Table, Target
from bench._timing import alternate, best, seconds
from decoders import GGMLType, dequantize
from tensortap import Client, RemoteTensor

__all__ = ["run"]

_TYPE = GGMLType.Q4_K
_N_WEIGHTS = {True: 1 << 24, False: 1 << 26}
_ROUNDS = {True: 3, False: 9}
_REQUESTS = {True: 50, False: 200}
_LEAST_RATIO, _MOST_BYTES, _MOST_MILLISECONDS = 0.8, 1.01, 2.0


def run(quick: bool) -> Iterator[Table]:
    """GB/s of float32 of a whole tensor, by what travels and where it is decoded; milliseconds of one row."""
    n_weights = _N_WEIGHTS[quick]
    blocks = random_blocks(_TYPE, n_weights)
    stored = np.frombuffer(blocks.tobytes(), np.uint8)
    out = np.zeros((n_weights // ROW_WEIGHTS, ROW_WEIGHTS), np.float32)
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder) / "m.gguf", _TYPE, n_weights)
        with tensortap(Path(folder)) as server, Client(server.url, cache_bytes=0) as tap:
            tensor = tap["m"]["w"]
            yield _whole(tensor, stored, out, _ROUNDS[quick], _moved(server.port))
            yield _rows(server.url, tensor, _ROUNDS[quick], _REQUESTS[quick])


def _whole(tensor: RemoteTensor, stored: NDArray[np.uint8], out: NDArray[np.float32], rounds: int, moved: int) -> Table:
    sides: dict[str, Callable[[], object]] = {
        "decoding alone, one thread": lambda: dequantize(stored, _TYPE, out=out.reshape(-1)),
        "blocks, out= given": lambda: tensor.read(out=out, decode="client"),
        "blocks, new memory": lambda: tensor.read(decode="client"),
        "blocks, not decoded": tensor.native,
        "float32, out= given": lambda: tensor.read(out=out, decode="server"),
    }
    took = best(sides, rounds)
    expected = dequantize(stored, _TYPE)
    if not np.array_equal(tensor.read(out=out).reshape(-1), expected):
        raise AssertionError("the weights that were read are not those that were stored")
    local = took["decoding alone, one thread"]
    speeds = {name: out.nbytes / each / 1e9 for name, each in took.items()}
    return Table(
        "client",
        f"a whole Q4_K tensor of {out.size:,} weights by the Python client, GB/s of float32",
        ["what travels", "GB/s", "to decoding alone"],
        [[name, speed, local / took[name]] for name, speed in speeds.items()],
        [Plot([Series("GB/s", list(speeds.values()))], list(speeds), "GB/s")],
        [
            Target("blocks with out=, to decoding alone", local / took["blocks, out= given"], _LEAST_RATIO),
            Target("bytes on the wire, to those stored", moved / stored.nbytes, _MOST_BYTES, "at most"),
        ],
        ["8 MiB a request, 8 requests at a time; the server has the file in the page cache"],
    )


def _rows(url: str, tensor: RemoteTensor, rounds: int, requests: int) -> Table:
    path = f"{url}{DATA.format(model='m', tensor='w')}?format=native"
    row_bytes = (tensor.native_nbytes or 0) // tensor.n_rows
    headers = {"If-Match": tensor._model.version, "Range": f"bytes=0-{row_bytes - 1}", "Accept-Encoding": "identity"}
    with httpx.Client() as plain, Client(url) as keeping:
        kept = keeping["m"]["w"]
        sides: dict[str, Callable[[], object]] = {
            "httpx, not decoded": lambda: plain.get(path, headers=headers).content,
            "client": lambda: tensor[0],
            "client, row in its cache": lambda: kept[0],
        }
        for work in sides.values():
            work()
        timed = {name: lambda work=work: _quantiles(work, requests) for name, work in sides.items()}
        measured = alternate(timed, rounds)
    p50 = {name: min(each[0] for each in found) for name, found in measured.items()}
    p90 = {name: min(each[1] for each in found) for name, found in measured.items()}
    return Table(
        "client-rows",
        f"one row of {ROW_WEIGHTS} weights (Q4_K) by the Python client, milliseconds",
        ["how", "p50", "p90"],
        [[name, p50[name], p90[name]] for name in sides],
        [Plot([Series("p50", list(p50.values())), Series("p90", list(p90.values()))], list(sides), "ms")],
        [Target("p50 of a row", p50["client"], _MOST_MILLISECONDS, "at most")],
        [f"one request after the other; the best of {rounds} rounds of {requests}"],
    )


def _quantiles(work: Callable[[], object], requests: int) -> tuple[float, float]:
    times = [seconds(work) * 1e3 for _ in range(requests)]
    return statistics.median(times), statistics.quantiles(times, n=10)[-1]


def _moved(port: int) -> int:
    """Bytes that come over the wire for a whole tensor, heads of answers included, a new client's first look aside."""
    with _counting(port) as (relay, count), Client(f"http://127.0.0.1:{relay}", cache_bytes=0) as tap:
        tensor = tap["m"]["w"]
        before = count()
        tensor.read(decode="client")
        return count() - before


@contextmanager
def _counting(port: int) -> Iterator[tuple[int, Callable[[], int]]]:
    """A port that leads to another one, and how many bytes have come back from there."""
    counted, lock = 0, threading.Lock()

    def relay(source: socket.socket, target: socket.socket, is_answer: bool) -> None:
        nonlocal counted
        while piece := source.recv(1 << 18):
            if is_answer:
                with lock:
                    counted += len(piece)
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)

    def accept() -> None:
        while True:
            try:
                client, _ = listening.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", port))
            for source, target, is_answer in ((client, server, False), (server, client, True)):
                threading.Thread(target=relay, args=(source, target, is_answer), daemon=True).start()

    listening = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listening.getsockname()[1], lambda: counted
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
