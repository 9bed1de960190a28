"""Streams over a socket: every byte in order, whatever the client does, and nothing left behind."""

import asyncio
import gc
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import app.splice
from app.cache import WindowCache
from app.content import Section
from app.encoding import as_bytes
from app.errors import Unavailable
from app.reader import Reader
from app.selection import select_all
from app.snapshot import Snapshot
from app.steps import Step, steps_of
from app.stream import Stream
from app.windows import WINDOW_WEIGHTS, source
from app.wire import ClientLeft, Wire
from tests.builder import build

N_WINDOWS = 9
VALUES = np.arange(N_WINDOWS * WINDOW_WEIGHTS - 1000, dtype="<f4")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "m.gguf").write_bytes(build([("w", [len(VALUES)], 0, VALUES.tobytes())]))
    return tmp_path / "m.gguf"


class Ends:
    """The two ends of a connection, and a way to send all of a model's tensor into one of them."""

    def __init__(self, path: Path, reader: Reader) -> None:
        self.reader = reader
        self.snapshot = Snapshot.open(b"m", [os.fsencode(path)])
        weights = source(self.snapshot, self.snapshot.model.find(b"w"), "decoded")
        selection = select_all((len(VALUES),))
        self.section = Section.of_items(weights, selection, as_bytes, 4, copies_nothing=True)
        listening = socket.create_server(("127.0.0.1", 0))
        self.client = socket.create_connection(listening.getsockname())
        self.server, _ = listening.accept()
        listening.close()
        self.server.setblocking(False)
        self.client.settimeout(20)

    def steps(self) -> Iterator[Step]:
        return steps_of([b"start", self.section, b"end"], self.reader.cache.budget)

    def stream(self, read_ahead: int = 2) -> Stream:
        steps = self.steps()
        return Stream(next(steps), steps, Wire(self.server.fileno(), print), self.reader, self.snapshot, read_ahead)

    async def send(self, read_ahead: int = 2) -> None:
        stream = self.stream(read_ahead)
        try:
            await asyncio.wait_for(stream.start(), 30)
        finally:
            stream.stop()

    def close(self) -> None:
        self.client.close()
        self.server.close()
        self.reader.close()
        self.snapshot.release()

    def received(self, n_bytes: int, at_a_time: int = 1 << 20, pause: float = 0) -> bytes:
        chunks = list[bytes]()
        while n_bytes and (chunk := self.client.recv(min(n_bytes, at_a_time))):
            chunks.append(chunk)
            n_bytes -= len(chunk)
            time.sleep(pause)
        return b"".join(chunks)


BODY = b"start" + VALUES.tobytes() + b"end"


def cache_of(mib: int) -> WindowCache:
    return WindowCache(mib << 20)


@pytest.mark.parametrize("read_ahead", [1, 2, 7])
@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("mib", [0, 4, 64])
@pytest.mark.parametrize("pause", [0, 0.003])
def test_every_byte_comes_in_order(path: Path, read_ahead: int, threads: int, mib: int, pause: float) -> None:
    """With a cache that holds nothing, some and all of it; to a client that is fast, and to one that often is not."""
    ends = Ends(path, Reader(cache_of(mib), threads))
    for _ in range(2):  # the second one finds the windows that the cache can hold
        bodies = list[bytes]()
        reading = threading.Thread(target=lambda: bodies.append(ends.received(len(BODY), 1 << 19, pause)))  # noqa: B023
        reading.start()
        asyncio.run(ends.send(read_ahead))
        reading.join()
        assert bodies == [BODY]
    ends.close()


@pytest.mark.parametrize("can_splice", [True, False])
def test_what_the_client_has_yet_to_read_is_not_written_again(
    path: Path, monkeypatch: pytest.MonkeyPatch, can_splice: bool
) -> None:
    """Cached windows are sent without a copy: they go, and others come, while the client has read none of them."""
    if not can_splice:
        monkeypatch.setattr(app.splice, "_call", None)
    ends = Ends(path, Reader(cache_of(64), 1))
    steps = [step for step in ends.steps() if isinstance(step.element, Section)]
    for step in steps:
        ends.reader.make(step, lambda: True)
    wire = Wire(ends.server.fileno(), print)
    chunk, cached = ends.reader.make(steps[0], lambda: True)
    assert cached
    assert isinstance(chunk, memoryview)
    sent = wire.write(chunk, lasting=True)
    assert sent > 0
    del chunk
    ends.reader.cache.drop(ends.snapshot.key)
    gc.collect()
    for step in steps[1:]:  # into whatever memory was given back
        ends.reader.make(step, lambda: True)
    assert ends.received(sent) == VALUES.tobytes()[:sent]
    wire.close()
    ends.close()


def n_open() -> int:
    gc.collect()  # what other tests have left behind goes now, and not while one counts
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.case(10)
def test_a_client_that_leaves_ends_the_stream(path: Path) -> None:
    ends = Ends(path, Reader(cache_of(0), 2))
    files = n_open()

    async def leave() -> None:
        stream = ends.stream()
        done = stream.start()
        await asyncio.sleep(0.2)  # the client's system is full by now
        ends.client.close()
        with pytest.raises(ClientLeft):
            await asyncio.wait_for(done, 10)
        stream.stop()

    asyncio.run(leave())
    ends.reader.close()
    assert n_open() == files - 1  # but for the client's own
    ends.close()


def test_a_stream_that_is_stopped_leaves_nothing_behind(path: Path) -> None:
    """Whatever its threads are at: making, waiting for their turn, or done while the client takes nothing."""
    ends = Ends(path, Reader(cache_of(0), 3))
    files = n_open()

    async def stop() -> None:
        for tenths in range(12):
            stream = ends.stream(7)
            stream.start()
            await asyncio.sleep(tenths / 1000)
            stream.stop()

    asyncio.run(stop())
    ends.reader.close()  # waits for the threads
    assert n_open() == files
    ends.close()


@pytest.mark.case(39)
def test_a_step_that_cannot_be_made_ends_the_stream_after_those_before_it(path: Path) -> None:
    ends = Ends(path, Reader(cache_of(0), 2))
    os.truncate(path, path.stat().st_size - (1 << 20))

    async def fail() -> None:
        with pytest.raises(Unavailable):
            await ends.send()

    asyncio.run(fail())
    ends.server.close()
    received = ends.received(len(BODY))
    assert len(received) < len(BODY)
    assert BODY.startswith(received)
    ends.close()


@pytest.mark.case(12)
def test_streams_whose_clients_take_nothing_keep_no_thread(path: Path) -> None:
    """More of them than threads; the last one is served whole."""
    reader = Reader(cache_of(0), 2)
    stalled = [Ends(path, reader) for _ in range(6)]
    ends = Ends(path, reader)

    async def serve() -> bytes:
        streams = [one.stream() for one in stalled]
        for stream in streams:
            stream.start()
        loop = asyncio.get_running_loop()
        receiving = loop.run_in_executor(None, ends.received, len(BODY))
        await ends.send()
        for stream in streams:
            stream.stop()
        return await receiving

    assert asyncio.run(serve()) == BODY
    for one in [*stalled, ends]:
        one.close()
