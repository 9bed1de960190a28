"""A service that stops leaves nothing behind that its clients have yet to take."""

import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from decoders import GGMLType
from tests import builder
from tests.faults.server import FaultyServer, model, values
from tests.server import Server
from tests.waiting import eventually


@pytest.mark.parametrize("header", ["", "Connection: close\r\n"], ids=["kept", "closed"])
@pytest.mark.parametrize("rows", [100, 300], ids=["less than a window", "a stream"])
def test_it_ends_when_what_it_has_sent_has_arrived(tmp_path: Path, rows: int, header: str) -> None:
    """The network of a container ends with its process: what the system still holds is lost then."""
    body = builder.floats(*range(1024)) * rows
    (tmp_path / "m.gguf").write_bytes(builder.build([("w", [1024, rows], GGMLType.F32, body)]))
    with Server(tmp_path) as server, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", server.port))
        client.sendall(f"GET /v1/models/m/-/data/w HTTP/1.1\r\nHost: x\r\n{header}\r\n".encode())
        received = client.recv(100)
        time.sleep(0.1)  # so an answer of less than a window is over
        server.process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            server.process.wait(0.7)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)  # else the rest would take seconds
        while part := client.recv(1 << 16):
            received += part
        assert received.endswith(body)
        assert server.process.wait(5) == 0


def test_it_ends_when_what_it_was_asked_before_has_arrived(tmp_path: Path) -> None:
    """The head of this answer is yet to be sent when the service is told to stop, so it says that it is the last."""
    (tmp_path / "volume").mkdir()
    (tmp_path / "volume" / "m.gguf").write_bytes(model(windows=2))
    with FaultyServer(tmp_path / "volume", tmp_path / "rules") as server, socket.socket() as client:
        assert server.client.get("/v1/models/m/-/data/w?rows=0").status_code == 200  # it is open
        server.rules({"call": "preadv", "path": "m.gguf", "seconds": 0.5})
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", server.port))
        client.sendall(b"GET /v1/models/m/-/data/w?rows=256: HTTP/1.1\r\nHost: x\r\n\r\n")
        eventually(lambda: server.client.get("/readyz").status_code == 200)
        server.process.send_signal(signal.SIGTERM)
        received = client.recv(100)
        with pytest.raises(subprocess.TimeoutExpired):
            server.process.wait(0.7)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)  # else the rest would take seconds
        while part := client.recv(1 << 16):
            received += part
        assert b"connection: close" in received
        assert received.endswith(values(0, windows=2)[1 << 20 :])
        assert server.process.wait(5) == 0


def test_a_client_that_has_everything_is_not_waited_for(tmp_path: Path) -> None:
    with Server(tmp_path, grace_seconds=600) as server, socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 200")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(30) == 0


def test_a_client_that_takes_nothing_is_waited_for_as_long_as_it_may_be(tmp_path: Path) -> None:
    body = builder.floats(*range(1024)) * 300
    (tmp_path / "m.gguf").write_bytes(builder.build([("w", [1024, 300], GGMLType.F32, body)]))
    with Server(tmp_path, grace_seconds=1) as server, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", server.port))
        client.sendall(b"GET /v1/models/m/-/data/w HTTP/1.1\r\nHost: x\r\n\r\n")
        assert client.recv(100)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(30) == 0
