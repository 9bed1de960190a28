"""Known attacks on services of this kind, against a real server: docs/security.md names each and its tests."""

import gzip
import json
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.app.conftest import Wire, path_of
from tests.builder import ARRAY, STRING, base, kv
from tests.server import Server

SCRIPT = "<!DOCTYPE html><script>alert(1)</script>"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("volume")
    entries = [kv("general.name", STRING, SCRIPT), kv("k", ARRAY, (STRING, [SCRIPT]))]
    (root / "m.gguf").write_bytes(base(entries=entries))
    (root / "page.html.gguf").write_bytes(SCRIPT.encode())
    with Server(root, recheck_seconds=0) as started:
        yield started


def everything(port: int, *sent: bytes) -> bytes:
    """All that comes back until the server closes, or goes silent."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        for data in sent:
            connection.sendall(data)
        received = b""
        try:
            while data := connection.recv(1 << 16):
                received += data
        except (TimeoutError, ConnectionResetError):
            pass
        return received


POST = b"POST /v1/models/m/-/data/w HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
HIDDEN = b"GET /v1/models HTTP/1.1\r\nHost: h\r\nX-Request-ID: hidden\r\n\r\n"
CHUNKED = b"0\r\n\r\n"


@pytest.mark.parametrize(
    "head",
    {
        "a length and chunks": b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n",
        "chunks and a length": b"Transfer-Encoding: chunked\r\nContent-Length: %d\r\n",
        "two lengths": b"Content-Length: 0\r\nContent-Length: %d\r\n",
        "a list of lengths": b"Content-Length: 0, %d\r\n",
        "a length with a sign": b"Content-Length: +%d\r\n",
        "a length in hexadecimal": b"Content-Length: 0x%x\r\n",
        "another coding": b"Transfer-Encoding: xchunked\r\nContent-Length: %d\r\n",
        "a coding with a tab": b"Transfer-Encoding:\tchunked\r\nContent-Length: %d\r\n",
        "a coding twice": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\nContent-Length: %d\r\n",
        "a blank before the colon": b"Transfer-Encoding : chunked\r\nContent-Length: %d\r\n",
        "a folded line": b"X: y\r\n Transfer-Encoding: chunked\r\nContent-Length: %d\r\n",
        "a bare line feed": b"X: y\nTransfer-Encoding: chunked\r\nContent-Length: %d\r\n",
        "a NUL": b"X: y\x00\r\nTransfer-Encoding: chunked\r\nContent-Length: %d\r\n",
    }.items(),
    ids=lambda pair: pair[0] if isinstance(pair, tuple) else None,
)
def test_no_request_is_hidden_in_another(server: Server, head: tuple[str, bytes]) -> None:
    """What two readers could take for one request or for two is refused, or its length is what all would say."""
    body = CHUNKED + HIDDEN
    received = everything(server.port, POST + head[1] % len(body) + b"\r\n", body)
    assert received.startswith(b"HTTP/1.1 400 "), received
    assert b"hidden" not in received
    assert received.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize(
    "chunks",
    [
        b"-1\r\n",
        b"0x5\r\n",
        b"5 \r\nhello\r\n0\r\n\r\n",
        b"ffffffffffffffff0\r\n",
        b"5\nhello\r\n0\r\n\r\n",
        b"5;\rx\r\n",
    ],
)
def test_chunks_that_can_be_read_in_two_ways_end_the_connection(server: Server, chunks: bytes) -> None:
    received = everything(server.port, POST + b"Transfer-Encoding: chunked\r\n\r\n", chunks, HIDDEN)
    assert b"hidden" not in received
    assert received.count(b"HTTP/1.1 ") <= 1


@pytest.mark.parametrize("name", [b"X-API-Key", b"If-Match", b"Host"])
@pytest.mark.parametrize("pause", [0, 0.1])
def test_headers_behind_a_body_are_not_taken(server: Server, name: bytes, pause: float) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n")
        time.sleep(pause)
        connection.sendall(name + b": x\r\n\r\n" + HIDDEN)
        received = b""
        with suppress(ConnectionResetError):
            while data := connection.recv(1 << 16):
                received += data
    assert b"hidden" not in received
    assert b" 412 " not in received
    assert received.count(b"HTTP/1.1 ") <= 1


@pytest.mark.parametrize(
    "request_line",
    [
        b"TRACE /v1/models HTTP/1.1",
        b"CONNECT example.org:443 HTTP/1.1",
        b"PUT /v1/models/m HTTP/1.1",
        b"DELETE /v1/models/m HTTP/1.1",
        b"OPTIONS * HTTP/1.1",
    ],
)
def test_methods_that_could_change_or_echo_something_do_nothing(server: Server, request_line: bytes) -> None:
    received = everything(server.port, request_line + b"\r\nHost: h\r\nX-Secret: s3cret\r\nConnection: close\r\n\r\n")
    assert received[9:12] in (b"400", b"404", b"405")
    assert b"s3cret" not in received


@pytest.mark.parametrize("asked", [b"h2c", b"websocket"])
def test_no_upgrade_is_made(server: Server, asked: bytes) -> None:
    headers = b"Host: h\r\nConnection: Upgrade, close\r\nUpgrade: " + asked + b"\r\n"
    if asked == b"websocket":
        headers += b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    received = everything(server.port, b"GET /v1/models HTTP/1.1\r\n" + headers + b"\r\n")
    assert b" 101 " not in received.partition(b"\r\n")[0]


def test_the_host_of_an_absolute_url_leads_nowhere(server: Server) -> None:
    with Wire(server.port) as wire:
        assert wire.ask(b"http://127.0.0.1:1/v1/models/m/-/data/w").status in (200, 404)
        assert wire.ask(b"/healthz").status == 200


def test_metadata_is_never_a_page(server: Server) -> None:
    with Wire(server.port) as wire:
        for target in ("/v1/models", "/v1/models/m", path_of("m", "metadata"), path_of("m", "metadata", "k")):
            for accept in (b"text/html", b"*/*"):
                answer = wire.ask(target.encode(), headers=b"Accept: " + accept + b"\r\n")
                assert answer.headers["content-type"] == "application/json"
                assert answer.headers["x-content-type-options"] == "nosniff"
        assert SCRIPT in wire.ask(path_of("m", "metadata").encode()).body.decode()
        problem = wire.ask(b"/v1/models/page.html")
        assert (problem.status, problem.headers["content-type"]) == (422, "application/problem+json")
        assert SCRIPT not in wire.ask(b"/docs").body.decode()


def test_a_compressed_body_is_not_expanded(server: Server) -> None:
    bomb = gzip.compress(bytes(200 << 20), 9)
    before = server.memory("VmHWM")
    headers = b"Content-Encoding: gzip\r\nContent-Type: application/json\r\nContent-Length: %d\r\n" % len(bomb)
    with Wire(server.port) as wire:
        wire.send(b"POST /v1/models/m/-/data/w HTTP/1.1\r\nHost: h\r\n" + headers + b"\r\n" + bomb)
        answer = wire.answer()
    assert (answer.status, answer.json["type"]) == (400, "/problems/bad-parameter")
    assert server.memory("VmHWM") - before < 20 << 20


def test_members_whose_hashes_would_collide_cost_no_more_than_others(server: Server) -> None:
    """Integers hash to themselves modulo 2^61 - 1; texts are hashed with a key of the process."""
    collide = json.dumps({"rows": [(2**61 - 1) * place for place in (0, 1, 2, 3)] * 50_000}).encode()
    with Wire(server.port) as wire:
        head = b"POST /v1/models/m/-/data/w HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % len(collide)
        wire.send(head + collide)
        assert wire.answer().json["type"] == "/problems/selection-out-of-range"
    environment = Path(f"/proc/{server.process.pid}/environ").read_bytes()
    assert b"PYTHONHASHSEED" not in environment
