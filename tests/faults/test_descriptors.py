"""Descriptors exhausted: models are refused, connections wait or are cut, and all comes back with the descriptors."""

import http.client
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.builder import U16, build
from tests.faults.server import FaultyServer, Reply, get, model, steady, values
from tests.waiting import eventually


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyServer]:
    """One that keeps a single model open, so that all others need descriptors."""
    folder = tmp_path_factory.mktemp("descriptors")
    root = folder / "volume"
    root.mkdir()
    (root / "m.gguf").write_bytes(model())
    (root / "n.gguf").write_bytes(model(1))
    for number in (1, 2):
        part = [("split.no", U16, number - 1), ("split.count", U16, 2)]
        (root / f"s-0000{number}-of-00002.gguf").write_bytes(build([(f"w{number}", [1], 0, bytes(4))], part))
    with FaultyServer(root, folder / "rules", recheck_seconds=0, open_models=1) as server:
        yield server


class Kept:
    """A connection that is there before the fault, and stays."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)

    def get(self, path: str) -> Reply:
        self._connection.request("GET", path)
        answer = self._connection.getresponse()
        headers = {name.lower(): value for name, value in answer.getheaders()}
        return Reply(answer.status, headers, answer.read(), True, 0)

    def close(self) -> None:
        self._connection.close()


def at_rest(server: FaultyServer) -> int:
    """How many descriptors the server keeps: a look at the volume may have one more for a moment."""
    counts = []
    for _ in range(25):
        counts.append(server.open_files())
        time.sleep(0.02)
    return min(counts)


def test_without_descriptors_what_is_open_is_served_and_the_rest_is_refused(server: FaultyServer) -> None:
    with steady(server):
        kept = Kept(server.port)
        assert kept.get("/v1/models/m/-/data/w").body == values(0)
        lines = len(server.log)
        waiting = []
        with server.limited(resource.RLIMIT_NOFILE, at_rest(server)):
            computed = server.cpu_seconds()
            # Nobody can be let in.
            waiting += [socket.create_connection(("127.0.0.1", server.port), timeout=20) for _ in range(40)]
            for _ in range(3):
                # Rows, and streams: without a descriptor for a wire they go through the event loop.
                assert kept.get("/v1/models/m/-/data/w?rows=1").body == values(0)[4096:8192]
                assert kept.get("/v1/models/m/-/data/w").body == values(0)
                assert kept.get("/healthz").status == 200
                # Also the split set, which is looked for by listing its folder: not a missing model.
                for path in ("/v1/models/n", "/v1/models/s", "/v1/models/none", "/v1/models"):
                    assert kept.get(path).slug == (503, "overloaded"), path
                assert kept.get("/readyz").is_refusal
            # Neither the log nor the processor is busy with those who wait.
            assert server.cpu_seconds() - computed < 5
            assert len([line for line in server.log[lines:] if "tensortap.access" not in line]) <= 3
        for path, status in (("/v1/models/n", 200), ("/v1/models/s", 200), ("/v1/models/none", 404)):
            assert kept.get(path).status == status
        assert len(kept.get("/v1/models").body) > 0
        kept.close()
        for one in waiting:
            one.close()


def test_clients_that_take_every_descriptor_are_let_go_of_when_they_leave(server: FaultyServer) -> None:
    with steady(server):
        kept = Kept(server.port)
        assert kept.get("/v1/models/m/-/data/w?rows=0").status == 200
        with server.limited(resource.RLIMIT_NOFILE, server.open_files() + 6):
            clients = [socket.create_connection(("127.0.0.1", server.port), timeout=20) for _ in range(60)]
            for client in clients:
                # As a stream takes three descriptors more, some have them and some have not.
                client.sendall(b"GET /v1/models/m/-/data/w HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            whole = 0
            for client in clients:
                received = bytearray()
                with client, suppress(ConnectionResetError):
                    while chunk := client.recv(1 << 20):
                        received += chunk
                if received:
                    head, _, body = bytes(received).partition(b"\r\n\r\n")
                    assert head.startswith(b"HTTP/1.1 200")
                    assert body == values(0)
                    whole += 1
            assert whole >= 1
            assert eventually(lambda: get(server.port)).body == values(0)
        kept.close()
        assert server.get("/v1/models/n/-/data/w").body == values(1)


def test_a_pipe_or_a_wire_that_cannot_be_had_costs_nothing_but_time(server: FaultyServer) -> None:
    assert server.get().body == values(0)
    with steady(server):
        for call, error in (("dup", "EMFILE"), ("pipe", "ENFILE"), ("vmsplice", "EFAULT"), ("vmsplice", "ENOMEM")):
            server.rules({"call": call, "error": error})
            for _ in range(3):
                reply = server.get()
                assert (reply.status, reply.whole, reply.body == values(0)) == (200, True, True), call
        server.rules()


def test_a_client_that_leaves_while_there_are_no_descriptors_leaves_nothing(server: FaultyServer) -> None:
    (Path(f"{server.root}") / "large.gguf").write_bytes(model(2, windows=32))
    with steady(server):
        for _ in range(5):
            client = socket.create_connection(("127.0.0.1", server.port), timeout=20)
            client.sendall(b"GET /v1/models/large/-/data/w HTTP/1.1\r\nHost: x\r\n\r\n")
            assert client.recv(1 << 16)
            with server.limited(resource.RLIMIT_NOFILE, server.open_files()):
                client.close()
                eventually(lambda: sum("client left" in line for line in server.log))
            server.log.clear()


def test_the_limit_of_descriptors_is_what_the_system_allows(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(model())
    code = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 700))
sys.argv[0:1] = []
from app.cli import main
import uvicorn
uvicorn.run = lambda *_, **__: print(resource.getrlimit(resource.RLIMIT_NOFILE))
main()
"""
    command = [sys.executable, "-c", code, "app", "serve", f"--root={tmp_path}"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "(700, 700)\n"
