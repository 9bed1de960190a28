"""Streams of a real server: whole and in little memory, stopped when the client leaves, never mixed or padded."""

import hashlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray

from decoders import GGMLType
from tests import builder
from tests.server import Server
from tests.waiting import eventually

MIB = 1 << 20
ROW = 4096


def write_sparse(path: Path, type_id: int, n_rows: int, n_bytes: int, tail: bytes = b"") -> None:
    """A model of one tensor ``w`` of rows of 4096 weights: zeros that take no room on the disk, then ``tail``."""
    infos = [builder.tensor_info("w", [ROW, n_rows], type_id, 0)]
    with path.open("wb") as file:
        file.write(builder.base(infos=infos, data=b""))
        file.truncate(file.tell() + n_bytes)
        file.seek(-len(tail), os.SEEK_END)
        file.write(tail)


def last_blocks() -> NDArray[np.uint8]:
    """One row of Q8_0 blocks, of scale one half."""
    blocks = (np.arange(ROW // 32 * 34) % 100).astype(np.uint8).reshape(-1, 34)
    blocks[:, :2] = np.float16(0.5).reshape(1).view(np.uint8)
    return blocks


def write_f32(path: Path, mib: int, value: float) -> None:
    """A model of one F32 tensor of ``mib`` MiB, all of one value."""
    data = np.full(mib * MIB // 4, value, "<f4").tobytes()
    path.write_bytes(builder.build([("w", [ROW, mib * MIB // 4 // ROW], GGMLType.F32, data)]))


def ask(server: Server, path: str) -> socket.socket:
    """A connection that has sent a request, and whose small buffer leaves the rest of the answer with the server."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
    connection.settimeout(30)
    connection.connect(("127.0.0.1", server.port))
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return connection


def read_answer(connection: socket.socket, start: bytes = b"") -> tuple[int, bytes]:
    """The Content-Length of an answer, and what of its body came before the connection's end or that length."""
    received = bytearray(start)
    while b"\r\n\r\n" not in received:
        chunk = connection.recv(64 << 10)
        assert chunk, "the connection has ended within a head"
        received += chunk
    head, _, body = bytes(received).partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
    chunks = [body]
    taken = len(body)
    while taken < length and (chunk := connection.recv(MIB)):
        chunks.append(chunk)
        taken += len(chunk)
    return length, b"".join(chunks)


def take_zeros(connection: socket.socket, length: int, last: bytes, watch: Callable[[int], object] = int) -> None:
    """Check an answer of so many bytes, all zeros but the ``last``; ``watch`` is told how many there are so far."""
    block, zeros = bytearray(MIB), bytes(MIB)
    head, _, body = connection.recv(4096).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert f"\r\ncontent-length: {length}" in head.decode().lower()
    assert body == bytes(len(body))
    taken = len(body)
    while (left := length - len(last) - taken) > 0:
        n_bytes = connection.recv_into(block, min(left, MIB))
        assert n_bytes
        assert block.startswith(zeros[:n_bytes])
        taken += n_bytes
        watch(taken)
    end = b""
    while len(end) < len(last) and (chunk := connection.recv(len(last) - len(end))):
        end += chunk
    assert end == last


def cpu_seconds(server: Server) -> float:
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wait_until_idle(*servers: Server) -> None:
    """Until servers have used no time for half a second; fails after thirty."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        before = [cpu_seconds(server) for server in servers]
        time.sleep(0.5)
        if all(cpu_seconds(server) - used < 0.05 for server, used in zip(servers, before, strict=True)):
            return
    pytest.fail("a server goes on working for clients that have left")


@pytest.fixture(scope="module")
def volume(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("volume")
    write_sparse(folder / "q8.gguf", GGMLType.Q8_0, 262_144, 262_144 * ROW // 32 * 34, last_blocks().tobytes())
    return folder


@pytest.fixture(scope="module")
def server(volume: Path) -> Iterator[Server]:
    with Server(volume, cache_bytes=64 * MIB) as running:
        yield running


@pytest.mark.case(38, 66)
def test_a_tensor_of_4_gib_streams_whole_in_little_memory(server: Server) -> None:
    last = (last_blocks()[:, 2:].astype("<f4") / 2).tobytes()
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(b"GET /v1/models/q8/-/data/w HTTP/1.1\r\nHost: localhost\r\n\r\n")
        take_zeros(connection, 4 << 30, last)
    assert server.memory("VmHWM") < (64 + 150) * MIB


@pytest.mark.case(66)
def test_the_last_row_comes_at_once(server: Server) -> None:
    """The row after 4 GiB of others is one window away."""
    before = cpu_seconds(server)
    answer = server.client.get("/v1/models/q8/-/data/w?rows=-1")
    assert np.frombuffer(answer.content, "<f4")[:4].tolist() == [1.0, 1.5, 2.0, 2.5]
    assert cpu_seconds(server) - before < 1


@pytest.mark.case(12)
def test_a_stalled_client_that_reads_again_gets_every_byte(tmp_path: Path) -> None:
    """What was decoded ahead is let go of while nobody reads, and made again after."""
    values = np.arange(24 * MIB // 4, dtype="<f4")
    (tmp_path / "m.gguf").write_bytes(builder.build([("w", [ROW, 1536], GGMLType.F32, values.tobytes())]))
    with Server(tmp_path, cache_bytes=0) as server, ask(server, "/v1/models/m/-/data/w") as connection:
        start = connection.recv(1000)
        time.sleep(3)
        length, body = read_answer(connection, start)
        assert length == values.nbytes
        assert hashlib.sha256(body).digest() == hashlib.sha256(values.tobytes()).digest()


@pytest.mark.case(25)
def test_a_file_replaced_in_mid_stream_gives_all_old_then_all_new(tmp_path: Path) -> None:
    """Same size, same mtime, renamed over the old one."""
    write_f32(tmp_path / "m.gguf", 32, 1.0)
    write_f32(tmp_path / "new", 32, 2.0)
    status = (tmp_path / "m.gguf").stat()
    os.utime(tmp_path / "new", ns=(status.st_atime_ns, status.st_mtime_ns))
    with Server(tmp_path, recheck_seconds=0) as server:
        etag = server.client.head("/v1/models/m/-/data/w").headers["etag"]
        with ask(server, "/v1/models/m/-/data/w") as connection:
            start = connection.recv(1000)
            (tmp_path / "new").rename(tmp_path / "m.gguf")
            answer = server.client.get("/v1/models/m/-/data/w?rows=0:1")
            assert set(np.frombuffer(answer.content, "<f4")) == {2.0}
            length, body = read_answer(connection, start)
            assert len(body) == length == 32 * MIB
            assert set(np.frombuffer(body, "<f4")) == {1.0}
        answer = server.client.get("/v1/models/m/-/data/w")
        assert set(np.frombuffer(answer.content, "<f4")) == {2.0}
        assert answer.headers["etag"] != etag


@pytest.mark.case(39)
def test_a_file_overwritten_in_mid_stream_is_not_mixed_in(tmp_path: Path) -> None:
    """The same size, written in place: nothing of the new content reaches the old answer."""
    write_f32(tmp_path / "m.gguf", 64, 1.0)
    with Server(tmp_path, cache_bytes=0) as server, ask(server, "/v1/models/m/-/data/w") as connection:
        start = connection.recv(1000)
        write_f32(tmp_path / "m.gguf", 64, 2.0)
        length, body = read_answer(connection, start)
        assert len(body) < length
        assert set(np.frombuffer(body[: len(body) // 4 * 4], "<f4")) == {1.0}


def test_an_answer_that_was_taken_whole_is_complete_in_the_log(tmp_path: Path) -> None:
    """Also where the client closes the connection at once after its last byte."""
    write_f32(tmp_path / "m.gguf", 6, 1.0)
    with Server(tmp_path) as server:
        path = f"http://127.0.0.1:{server.port}/v1/models/m/-/data/w?dtype=float16"

        def take(times: int) -> None:
            for _ in range(times):
                with httpx.Client(headers={"Connection": "close"}) as client:
                    assert len(client.get(path).content) == 3 * MIB

        clients = [threading.Thread(target=take, args=(25,)) for _ in range(4)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        eventually(lambda: sum("tensor=w" in line for line in server.log) >= 100)
        lines = [line for line in server.log if "tensor=w" in line]
        assert [line for line in lines if "outcome=complete" not in line or f"bytes_sent={3 * MIB}" not in line] == []
        assert not any("Traceback" in line for line in server.log)


def test_many_clients_of_one_cold_tensor_all_get_it(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 256, (ROW * 64 // 32, 34), dtype=np.uint8)
    values[:, 1] &= 0x3F
    (tmp_path / "m.gguf").write_bytes(builder.build([("w", [ROW, 64], GGMLType.Q8_0, values.tobytes())]))
    with Server(tmp_path) as server:
        bodies: list[bytes] = []
        clients = [
            threading.Thread(target=lambda: bodies.append(server.client.get("/v1/models/m/-/data/w").content))
            for _ in range(10)
        ]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        assert len(bodies) == 10
        assert len(set(bodies)) == 1
        assert len(bodies[0]) == ROW * 64 * 4
