"""Reads that fail, come short or are interrupted: a refusal or a short answer, and then all is well."""

import errno
import os
import signal
import threading

import pytest

from tests.faults.server import FaultyServer, steady, values
from tests.waiting import eventually

W = "/v1/models/m/-/data/w"
EXPECTED = values(0)


def touched(server: FaultyServer) -> None:
    """Make the model one that nothing is cached of."""
    os.utime(server.root / "m.gguf")


@pytest.mark.parametrize("error", ["EIO", "ESTALE", "ENXIO"])
def test_a_read_that_fails_at_a_byte(server: FaultyServer, error: str) -> None:
    touched(server)
    assert server.get(W + "?rows=0").body == EXPECTED[:4096]
    fault = {"call": "preadv", "path": "m.gguf", "error": error}
    with steady(server):
        server.rules({**fault, "from": 3 << 20})
        for _ in range(2):
            server.log.clear()
            cut = server.get()
            assert (cut.status, cut.whole) == (200, False)
            assert 0 < len(cut.body) <= 3 << 20
            assert EXPECTED.startswith(cut.body)
            lines = eventually(lambda: [line for line in server.log if "aborted" in line and "ERROR" in line])
            assert len(lines) == 1
            assert os.strerror(getattr(errno, error)) in lines[0]
            assert server.get(W + "?rows=-1").slug == (503, "volume-error")
            assert server.get(W + "?rows=1").body == EXPECTED[4096:8192]
            assert server.get(W + "?rows=-1,0&format=json").slug == (503, "volume-error")
        server.rules()
        assert server.get().body == EXPECTED
        # And where nothing can be read: what is cached needs no read, a model that is new is refused.
        server.rules(fault)
        assert server.get().body == EXPECTED
        touched(server)
        assert server.get(W + "?rows=0").slug == (503, "volume-error")
        assert server.get("/v1/models/m").slug == (503, "volume-error")
        listed = server.get("/v1/models")
        assert listed.status == 200
        assert b"volume-error" in listed.body
        server.rules()
        assert server.get(W + "?rows=0").body == EXPECTED[:4096]
        assert b"volume-error" not in server.get("/v1/models").body


@pytest.mark.parametrize("most", [1 << 19, 4097, 1])
def test_reads_that_come_short_are_continued(server: FaultyServer, most: int) -> None:
    touched(server)
    with steady(server):
        server.rules({"call": "preadv", "path": "m.gguf", "most": most})
        if most > 1:
            assert server.get().body == EXPECTED
        else:  # a header and a page of one tensor, byte by byte
            assert server.get("/v1/models/m/-/tensors/w").status == 200


@pytest.mark.parametrize("call", ["open", "fstat", "stat", "lstat"])
def test_opening_that_fails_is_a_refusal_and_keeps_what_is_open(server: FaultyServer, call: str) -> None:
    touched(server)
    etag = server.get(W + "?rows=0").headers["etag"]
    with steady(server):
        server.rules({"call": call, "path": ".gguf", "error": "EIO"})
        touched(server)
        for _ in range(3):
            assert server.get(W + "?rows=0").slug == (503, "volume-error")
        assert server.get("/v1/models").status == 200
        server.rules()
        assert server.get(W + "?rows=0").headers["etag"] != etag


def test_signals_that_interrupt_every_call_change_nothing(server: FaultyServer) -> None:
    stop = threading.Event()

    def hammer() -> None:
        while not stop.wait(0.0002):
            os.kill(server.process.pid, signal.SIGUSR1)

    hammering = threading.Thread(target=hammer)
    hammering.start()
    try:
        for _ in range(10):
            touched(server)
            assert server.get().body == EXPECTED
            assert server.get().body == EXPECTED
            assert server.get("/v1/models").status == 200
    finally:
        stop.set()
        hammering.join()
