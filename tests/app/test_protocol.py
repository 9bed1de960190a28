"""Connections that make no progress are cut, and only those; there are only so many. On a real server."""

import asyncio
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from app.protocol import _Joined
from decoders import GGMLType
from tests.app.conftest import Wire, slug
from tests.app.test_streaming import read_answer, write_sparse
from tests.demo import demo_model
from tests.server import Server
from tests.waiting import eventually

MIB = 1 << 20
HEALTHZ = b"GET /healthz HTTP/1.1\r\nHost: test\r\n\r\n"
DATA = "/v1/models/big/-/data/w"
REQUEST_SECONDS, STALL_SECONDS = 0.5, 1.5


@pytest.fixture(scope="module")
def volume(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("volume")
    write_sparse(folder / "big.gguf", GGMLType.F32, 16_384, 256 * MIB)
    (folder / "demo.gguf").write_bytes(demo_model())
    return folder


@pytest.fixture(scope="module")
def server(volume: Path) -> Iterator[Server]:
    with Server(volume, request_seconds=REQUEST_SECONDS, stall_seconds=STALL_SECONDS) as running:
        yield running


def ask(server: Server, path: str, headers: str = "") -> socket.socket:
    """A connection that has sent a request, and whose small buffer leaves the rest of the answer with the server."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
    connection.settimeout(20)
    connection.connect(("127.0.0.1", server.port))
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: test\r\n{headers}\r\n".encode())
    return connection


def connect(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=20)


def open_files_at_rest(server: Server) -> int:
    """How many files the server has open with the model, and without a connection."""
    with ask(server, f"{DATA}?rows=:1", "Connection: close\r\n") as connection:
        read_answer(connection)
        assert is_cut(connection)
    return server.open_files()


def is_cut(connection: socket.socket) -> bool:
    """Whether the connection ends without another byte; waits for that, or for a byte."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def is_healthy(connection: socket.socket) -> bool:
    """Whether /healthz is answered with 200; reads the whole answer."""
    connection.sendall(HEALTHZ)
    received = b""
    while not received.endswith(b"}"):
        chunk = connection.recv(64 << 10)
        assert chunk
        received += chunk
    return received.startswith(b"HTTP/1.1 200 ")


def sends_until_cut(connection: socket.socket, data: bytes, pause: float = 0) -> int:
    """How many times some bytes can be sent, 1000 at most."""
    for n_times in range(1000):
        try:
            connection.sendall(data)
        except ConnectionError:
            return n_times
        time.sleep(pause)
    return 1000


def bytes_until_cut(connection: socket.socket) -> int:
    """How many bytes are there to read before the end."""
    n_bytes = 0
    try:
        while chunk := connection.recv(MIB):
            n_bytes += len(chunk)
    except ConnectionResetError:
        pass
    return n_bytes


@pytest.mark.case(79)
@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"\r\n",
        b"G",
        b"GET / HT",
        b"GET /healthz HTTP/1.1\r\nHost: test\r\n",
        b"POST /v1/models HTTP/1.1\r\nHost: test\r\nContent-Length: 10\r\nExpect: 100-cont\r\n",
    ],
    ids=repr,
)
def test_a_request_that_does_not_come_is_not_waited_for(server: Server, begun: bytes) -> None:
    with connect(server) as fresh, connect(server) as used:
        fresh.sendall(begun)
        assert is_healthy(used)
        if begun:  # without a byte of a new request, this connection is idle, and may be so for longer
            used.sendall(begun)
            assert is_cut(used)
        assert is_cut(fresh)


@pytest.mark.case(79)
def test_a_body_that_does_not_come_is_not_waited_for(server: Server) -> None:
    with connect(server) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: test\r\nContent-Length: 10\r\n\r\nhalf")
        assert 0 < bytes_until_cut(connection) < 1000


@pytest.mark.case(79)
def test_a_head_that_comes_byte_by_byte_is_cut_in_the_end(server: Server) -> None:
    with connect(server) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n")
        assert sends_until_cut(connection, b"x", REQUEST_SECONDS / 10) < 1000


@pytest.mark.case(79)
def test_a_head_without_end_takes_no_memory(volume: Path) -> None:
    with Server(volume, request_seconds=60) as server:
        before = server.memory("VmHWM")
        for begun in (b"GET /healthz HTTP/1.1\r\nX: ", b"GET /"):
            with connect(server) as connection:
                connection.sendall(begun)
                assert sends_until_cut(connection, b"x" * MIB) < 64
        assert server.memory("VmHWM") - before < 16 * MIB
        # What is long but has an end is answered.
        with Wire(server.port) as wire:
            assert wire.ask(b"/healthz", headers=b"X: " + b"x" * (32 << 10) + b"\r\n").status == 200


def test_a_trailer_without_end_takes_no_memory(volume: Path) -> None:
    """Nor does a line before a chunk: the parser keeps either until it is whole."""
    head = (
        b"POST /v1/models/demo/-/data/output_norm.weight HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    with Server(volume, request_seconds=60) as server:
        before = server.memory("VmHWM")
        for begun in (b"0\r\nX: ", b"2\r\n{}\r\n0\r\nX", b"5;"):
            with connect(server) as connection:
                connection.sendall(head + begun)
                assert sends_until_cut(connection, b"x" * MIB) < 64
        assert server.memory("VmHWM") - before < 16 * MIB


@pytest.mark.case(37)
def test_an_idle_connection_lives_on_between_requests(server: Server) -> None:
    with Wire(server.port) as wire:
        for _ in range(3):
            assert wire.ask(b"/healthz").status == 200
            time.sleep(2 * REQUEST_SECONDS)


@pytest.mark.case(37)
def test_an_idle_connection_ends_after_its_time(volume: Path) -> None:
    with Server(volume, keep_alive_seconds=1, request_seconds=60) as server, connect(server) as connection:
        assert is_healthy(connection)
        assert is_cut(connection)


@pytest.mark.case(12)
@pytest.mark.parametrize("sent_ahead", [b"", HEALTHZ])
def test_a_client_that_reads_nothing_is_cut_and_gives_its_memory_back(server: Server, sent_ahead: bytes) -> None:
    def settled(files: int) -> bool:
        return server.open_files() <= files

    files, memory = open_files_at_rest(server), server.memory()
    n_lines = len(server.log)
    stalled = [ask(server, DATA) for _ in range(8)]
    for connection in stalled:
        connection.sendall(sent_ahead)
    eventually(lambda: sum("client left" in line for line in server.log[n_lines:]) >= 8 and settled(files))
    assert server.memory() < memory + 16 * MIB
    for connection in stalled:
        with connection:
            assert bytes_until_cut(connection) < 64 * MIB


@pytest.mark.case(12)
def test_an_answer_that_is_over_but_for_its_last_bytes_is_cut_as_well(server: Server) -> None:
    """Where the last bytes lie depends on the size: with the system, or here, where a close waits for them for ever."""
    files = open_files_at_rest(server)
    with ExitStack() as stack:
        for n_rows in range(1, 400, 3):  # steps of 48 KiB, less than what may lie here without anybody waiting for room
            connection = stack.enter_context(ask(server, f"{DATA}?rows=:{n_rows}", "Connection: close\r\n"))
            connection.recv(1)
        eventually(lambda: server.open_files() <= files)


@pytest.mark.case(12)
def test_a_slow_reader_gets_everything(server: Server) -> None:
    """Each pause is shorter than the patience; all of them together are longer."""
    with ask(server, f"{DATA}?rows=:512") as connection:
        received = b""
        for n_steps in range(1, 9):
            while len(received) < n_steps * 256 << 10:
                chunk = connection.recv(64 << 10)
                assert chunk
                received += chunk
            time.sleep(STALL_SECONDS / 4)
        length, body = read_answer(connection, received)
    assert length == len(body) == 8 * MIB


def test_many_requests_sent_ahead_take_no_memory(volume: Path) -> None:
    with Server(volume, request_seconds=60) as server:
        before = server.memory("VmHWM")
        for _ in range(4):
            with ask(server, DATA) as connection:
                connection.recv(1)
                with suppress(ConnectionError):
                    connection.sendall(b"GET / HTTP/1.1\r\n\r\n" * 60_000)
                assert bytes_until_cut(connection) < 64 * MIB
        assert server.memory("VmHWM") - before < 32 * MIB
        # Some are answered, in order.
        with Wire(server.port) as wire:
            wire.send(HEALTHZ * 17)
            assert [wire.answer().status for _ in range(17)] == [200] * 17


def test_many_headers_take_no_memory(volume: Path) -> None:
    with Server(volume, request_seconds=60) as server, ExitStack() as stack:
        before = server.memory("VmHWM")
        for _ in range(32):
            connection = stack.enter_context(connect(server))
            with suppress(ConnectionError):
                connection.sendall(b"GET /healthz HTTP/1.1\r\n" + b"a:b\r\n" * 18_000)
            assert bytes_until_cut(connection) < 1000
        assert server.memory("VmHWM") - before < 32 * MIB
        with Wire(server.port) as wire:
            assert wire.ask(b"/healthz", headers=b"a: b\r\n" * 200).status == 200


def test_what_is_no_http_ends_the_answer_before_it_and_adds_nothing_to_it(server: Server) -> None:
    with ask(server, DATA) as connection:
        received = connection.recv(32 << 10)
        connection.sendall(b"\x00\x01 nonsense\r\n\r\n")
        while True:
            try:
                chunk = connection.recv(MIB)
            except ConnectionResetError:
                break
            if not chunk:
                break
            received += chunk
    head, _, body = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert len(body) < 64 * MIB
    assert not any(body)  # the weights are zeros


def test_a_request_sent_ahead_does_not_end_the_answer_before_it(server: Server) -> None:
    with ask(server, f"{DATA}?rows=:512") as connection:
        received = connection.recv(32 << 10)
        connection.sendall(HEALTHZ + HEALTHZ + HEALTHZ[:20])
        # Its time is over as often as it may be, the last time just before the answer is.
        for _ in range(5):
            received += connection.recv(32 << 10)
            time.sleep(REQUEST_SECONDS * 0.395)
        length, body = read_answer(connection, received)
        assert length == 8 * MIB
        connection.sendall(HEALTHZ[20:])
        rest = body[length:]
        while rest.count(b"HTTP/1.1 200 OK") < 3 or not rest.endswith(b"}"):
            chunk = connection.recv(64 << 10)
            assert chunk
            rest += chunk


def test_a_connection_is_kept_though_a_body_came_after_its_answer(volume: Path) -> None:
    """Many clients send a head and its body apart, and a refusal need not wait for the body."""
    with Server(volume, request_seconds=0.5) as server, connect(server) as connection:
        connection.sendall(b"POST /nothing HTTP/1.1\r\nHost: test\r\nContent-Length: 4\r\n\r\n")
        assert connection.recv(64 << 10).startswith(b"HTTP/1.1 404 ")
        connection.sendall(b"body")
        time.sleep(1)
        assert is_healthy(connection)


@pytest.mark.case(79)
def test_connections_over_the_limit_are_told_so_and_probes_are_answered(volume: Path) -> None:
    with Server(volume, max_connections=4, request_seconds=60) as server:
        held = [connect(server) for _ in range(3)]
        with Wire(server.port) as fourth, Wire(server.port) as fifth, Wire(server.port) as sixth:
            assert fourth.ask(b"/healthz").status == 200
            answer = fifth.ask(b"/v1/models")
            assert slug(answer) == (503, "overloaded")
            assert (answer.headers["retry-after"], answer.headers["connection"]) == ("1", "close")
            assert sixth.ask(b"/healthz").status == 200
            more = [connect(server) for _ in range(8)]
            assert is_cut(more[-1])
            assert sixth.ask(b"/readyz").status == 200
        for connection in held + more:
            connection.close()
        eventually(lambda: server.client.get("/v1/models").status_code == 200)


UPGRADE = b"POST %s HTTP/1.1\r\nHost: test\r\nConnection: upgrade\r\nUpgrade: h2c\r\n%s\r\n"


@pytest.mark.parametrize("pause", [0, 0.2])
@pytest.mark.parametrize(
    ("framing", "body"),
    [
        (b"Content-Length: %d\r\n" % len(HEALTHZ), HEALTHZ),
        (b"Transfer-Encoding: chunked\r\n", b"%x\r\n%s\r\n0\r\n\r\n" % (len(HEALTHZ), HEALTHZ)),
    ],
)
def test_a_body_is_never_read_as_a_request(server: Server, framing: bytes, body: bytes, pause: float) -> None:
    with connect(server) as connection:
        connection.sendall(UPGRADE % (b"/v1/models/demo/-/data/output_norm.weight", framing))
        time.sleep(pause)
        with suppress(ConnectionError):
            connection.sendall(body)
        received = b"".join(iter(lambda: received_of(connection), b""))
    assert received.count(b"HTTP/1.1 ") <= 1
    assert b"200 OK" not in received


@pytest.mark.parametrize("pause", [0, 0.2])
def test_a_request_for_another_protocol_is_answered_and_is_the_last(server: Server, pause: float) -> None:
    with connect(server) as connection:
        connection.sendall((UPGRADE % (b"/healthz", b"")).replace(b"POST", b"GET") + HEALTHZ)
        time.sleep(pause)
        with suppress(ConnectionError):
            connection.sendall(HEALTHZ)
        received = b"".join(iter(lambda: received_of(connection), b""))
    assert received.startswith(b"HTTP/1.1 200 OK")
    assert b"\r\nconnection: close\r\n" in received
    assert received.count(b"HTTP/1.1 ") == 1


def test_what_is_no_request_does_not_go_into_the_answer_before_it(server: Server) -> None:
    with ask(server, f"{DATA}?rows=:512") as connection:
        received = connection.recv(32 << 10)
        connection.sendall(b"no request\r\n\r\n")
        while chunk := received_of(connection):
            received += chunk
    head, _, body = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK")
    assert not any(body)  # zeros are what the file has


def received_of(connection: socket.socket) -> bytes:
    """The next bytes, or none where the connection has ended."""
    try:
        return connection.recv(MIB)
    except ConnectionResetError:
        return b""


class Recorder(asyncio.Transport):
    """A transport that keeps what it is given, call by call."""

    def __init__(self) -> None:
        self.calls: list[bytes] = []
        self.closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.calls.append(bytes(data))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.calls.append(b"".join(list_of_data))

    def close(self) -> None:
        self.closing = True

    def is_closing(self) -> bool:
        return self.closing


def test_the_head_of_an_answer_leaves_with_the_first_bytes_of_its_body() -> None:
    """In one call: of a small answer, a process that is killed has sent everything or nothing."""

    async def answers() -> list[list[bytes]]:
        loop, seen = asyncio.get_running_loop(), []
        bodies: list[list[bytes]] = [[b"body"], [b"body", b"more"], [b"", b"body"], [b""], []]
        for body in bodies:
            transport = Recorder()
            joined = _Joined(transport, loop, transport.close)
            for part in (b"HTTP/1.1 200 OK", *body):
                joined.write(part)
            joined.close()
            assert transport.closing
            seen.append(transport.calls)
        transport = Recorder()
        joined = _Joined(transport, loop, transport.close)
        joined.write(b"HTTP/1.1 100 Continue")
        assert transport.calls == [b"HTTP/1.1 100 Continue"]
        joined.write(b"HTTP/1.1 200 OK")
        await asyncio.sleep(0.01)  # no body comes for a while
        joined.write(b"body")
        seen.append(transport.calls)
        gone = Recorder()
        joined = _Joined(gone, loop, gone.close)
        joined.write(b"HTTP/1.1 200 OK")
        gone.closing = True
        joined.flush()
        seen.append(gone.calls)
        return seen

    head = b"HTTP/1.1 200 OK"
    assert asyncio.run(answers()) == [
        [head + b"body"],
        [head + b"body", b"more"],
        [head + b"body"],
        [head],
        [head],
        [b"HTTP/1.1 100 Continue", head, b"body"],
        [],
    ]
