"""A service that stops leaves nothing behind that its clients have yet to take."""

import signal
import socket
import subprocess
from pathlib import Path

import pytest

from decoders import GGMLType
from tests import builder
from tests.server import Server


@pytest.mark.parametrize("rows", [100, 300], ids=["less than a window", "a stream"])
def test_it_ends_when_what_it_has_sent_has_arrived(tmp_path: Path, rows: int) -> None:
    """The network of a container ends with its process: what the system still holds is lost then."""
    body = builder.floats(*range(1024)) * rows
    (tmp_path / "m.gguf").write_bytes(builder.build([("w", [1024, rows], GGMLType.F32, body)]))
    with Server(tmp_path) as server, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", server.port))
        client.sendall(b"GET /v1/models/m/-/data/w HTTP/1.1\r\nHost: x\r\n\r\n")
        received = client.recv(100)
        server.process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            server.process.wait(1)
        while part := client.recv(1 << 16):
            received += part
        assert received.endswith(body)
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
