"""Cases of docs/cases.md about connections, processes and memory, on real servers."""

import hashlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import httpx
import numpy as np
import pytest
from starlette.middleware.base import BaseHTTPMiddleware

import decoders
from app.settings import Settings
from decoders import GGMLType
from tests.app.conftest import Serve, Wire
from tests.app.test_streaming import MIB, ROW, ask, read_answer, take_zeros, wait_until_idle, write_f32, write_sparse
from tests.builder import F8, base, build, floats, tensor_info
from tests.decoders.helpers import make_blocks
from tests.server import Server
from tests.waiting import eventually

DATA = "/v1/models/{}/-/data/w"
F32_ROWS, F32_BYTES = 200_000, 3_276_800_000
LAST_ROW = floats(*range(ROW))
Q8_ROWS = 134_217_730
Q8_BLOCK = np.float16(0.5).tobytes() + bytes(range(32))
IQ_TYPES = [type_ for type_ in GGMLType if type_.name.startswith("IQ") and decoders.info(type_).decodable]

NAMESPACE = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]


@pytest.fixture(scope="module")
def volume(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("volume")
    write_sparse(folder / "gib.gguf", GGMLType.F32, 65_536, 1 << 30)
    write_sparse(folder / "f32.gguf", GGMLType.F32, F32_ROWS, F32_BYTES, LAST_ROW)
    with (folder / "q8.gguf").open("wb") as file:
        file.write(base(infos=[tensor_info("w", [32, Q8_ROWS], GGMLType.Q8_0, 0)], data=b""))
        file.seek((Q8_ROWS - 1) * 34, os.SEEK_CUR)
        file.write(Q8_BLOCK)
    (folder / "m.gguf").write_bytes(base())
    return folder


@pytest.fixture(scope="module")
def servers(volume: Path) -> Iterator[list[Server]]:
    """Two, which cut who reads nothing after six seconds: one counts and logs all it can, one counts nothing."""
    common = {"cache_bytes": 0, "stall_seconds": 6}
    with (
        Server(volume, **common, log_format="json") as watched,
        Server(volume, **common, metrics="false") as plain,
    ):
        yield [watched, plain]


def is_served(server: Server) -> bool:
    """Whether others are: probes, the list, metadata and rows."""
    with httpx.Client(base_url=server.url, timeout=10) as client:
        asked = [client.get(path) for path in ("/healthz", "/v1/models", "/v1/models/m/-/metadata", DATA.format("m"))]
    return [answer.status_code for answer in asked] == [200] * 4 and asked[-1].content == F8


def is_below(measured: Callable[[], int], most: int) -> bool:
    return measured() < most


def has_cut(server: Server, clients: int, since: int) -> bool:
    """Whether so many clients are logged as gone since a line of the log."""
    return "".join(server.log[since:]).count("client left") >= clients


def holdings(server: Server) -> dict[str, int]:
    """What a process may gather: descriptors, mappings, threads, and MiB of memory."""
    process = Path(f"/proc/{server.process.pid}")
    return {
        "descriptors": server.open_files(),
        "mappings": len((process / "maps").read_text().splitlines()),
        "threads": len(os.listdir(process / "task")),
        "MiB": server.memory() // MIB,
    }


def windows_decoded(server: Server) -> int:
    metrics = server.client.get("/metrics").text
    found = re.search(r'^tensortap_windows_decoded_total\{type="F32"\} (\S+)$', metrics, re.MULTILINE)
    assert found
    return int(float(found[1]))


@pytest.mark.case(10, 49)
def test_clients_that_leave_stop_the_work_and_leave_nothing_behind(servers: list[Server]) -> None:
    def leave(server: Server, times: int) -> None:
        for _ in range(times):
            with ask(server, DATA.format("gib")) as connection:
                taken = 0
                while taken < 64 << 10:
                    chunk = connection.recv(64 << 10)
                    assert chunk
                    taken += len(chunk)

    for server in servers:
        leave(server, 20)
    wait_until_idle(*servers)
    decoded = windows_decoded(servers[0])
    before = [holdings(server) for server in servers]
    for server in servers:
        leave(server, 200)
    wait_until_idle(*servers)
    # Of 1024 windows: those that the system takes for the client, at most 4 MiB, those made ahead, and one underway.
    assert windows_decoded(servers[0]) - decoded < 200 * 12
    for server, held in zip(servers, before, strict=True):
        now = holdings(server)
        assert now["descriptors"] <= held["descriptors"]
        # The pool may come to its three threads, each with a stack and a heap, later than in the first twenty.
        assert now["threads"] <= held["threads"] + 3
        assert now["mappings"] <= held["mappings"] + 20
        assert now["MiB"] <= held["MiB"] + 32
        assert is_served(server)


@pytest.mark.case(12, 49)
def test_50_clients_that_read_nothing_hold_a_window_each_and_are_cut(servers: list[Server]) -> None:
    for server in servers:
        assert is_served(server)
    wait_until_idle(*servers)
    before = [holdings(server) for server in servers]
    logged = [len(server.log) for server in servers]
    with ExitStack() as stack:
        for server in servers:
            for _ in range(50):
                stack.enter_context(ask(server, DATA.format("gib")))
        for server, held in zip(servers, before, strict=True):
            assert is_served(server)
            # A window for each, and what 50 connections and the allocator take, once what was made ahead of a client
            # that takes nothing is let go of, which is after two seconds.
            most = (held["MiB"] + 50 + 40) * MIB
            eventually(partial(is_below, server.memory, most))
            assert server.open_files() >= held["descriptors"] + 50  # all of them are there still
        for server, start in zip(servers, logged, strict=True):
            eventually(partial(has_cut, server, 50, start))
    for server, held in zip(servers, before, strict=True):
        eventually(partial(is_below, server.open_files, held["descriptors"] + 1))
        eventually(partial(is_below, server.memory, (held["MiB"] + 50) * MIB))


@pytest.mark.case(49)
def test_no_middleware_stands_between_a_stream_and_its_client(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Starlette's own runs the application in a task of its own, and hides from it that a client has left."""

    async def fail(*_: object) -> None:
        raise AssertionError("a BaseHTTPMiddleware is in the way")

    monkeypatch.setattr(BaseHTTPMiddleware, "__call__", fail)
    face = serve(base(), cors_origins="*", allowed_hosts="localhost")
    for target, status in ((DATA.format("m"), 200), ("/v1/models", 200), ("/metrics", 200), ("/nothing", 404)):
        assert face.get(target, headers={"Origin": "https://example.org"}).status == status


@pytest.mark.case(13)
def test_60_slow_readers_leave_the_rest_of_the_service_alone(volume: Path) -> None:
    with Server(volume, max_streams=40, stream_queue=10, queue_seconds=0.5) as server, ExitStack() as stack:
        readers = [stack.enter_context(ask(server, DATA.format("gib"))) for _ in range(60)]
        assert is_served(server)
        refused = 0
        for reader in readers:
            head = reader.recv(4096)
            if head.startswith(b"HTTP/1.1 503 "):
                refused += 1
                assert re.search(rb"\r\nretry-after: [1-9]\d*\r\n", head)
                _, body = read_answer(reader, head)
                assert json.loads(body)["type"] == "/problems/overloaded"
            else:
                assert head.startswith(b"HTTP/1.1 200 ")
        assert refused == 20
        assert is_served(server)


@pytest.mark.case(38)
def test_more_than_2_gib_of_float32_stream_whole_in_flat_memory(servers: list[Server]) -> None:
    server = servers[0]
    wait_until_idle(server)
    memory, looked = server.memory(), 0

    def is_flat(taken: int) -> None:
        nonlocal looked
        if taken - looked > 256 * MIB:
            looked = taken
            assert server.memory() < memory + 32 * MIB

    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(f"GET {DATA.format('f32')} HTTP/1.1\r\nHost: test\r\n\r\n".encode())
        take_zeros(connection, F32_BYTES, LAST_ROW, is_flat)


@pytest.mark.case(66)
def test_the_last_of_134_million_rows_comes_at_once(servers: list[Server]) -> None:
    assert (servers[1].client.get("/v1/models/q8/-/tensors/w").json()["bytes"]) == 4_563_402_820
    with Wire(servers[1].port) as wire:
        target = DATA.format("q8").encode()
        assert wire.ask(target + b"?rows=-1").values == [value / 2 for value in range(32)]
        assert wire.ask(target + b"?rows=134217729").values == [value / 2 for value in range(32)]
        assert wire.ask(target + b"?rows=134217728").values == [0.0] * 32


@pytest.mark.case(39)
def test_a_file_that_fails_in_mid_stream_ends_the_answer_short(tmp_path: Path) -> None:
    """Fewer bytes than promised, all of them right, and one line in the log."""
    names = ("cut", "shorter")
    for name in names:
        write_f32(tmp_path / f"{name}.gguf", 32, 1.0)
    with Server(tmp_path, cache_bytes=0) as server:
        for name in names:
            path = tmp_path / f"{name}.gguf"
            with ask(server, DATA.format(name)) as connection:
                start = b""
                while len(start) < 2 * MIB:
                    chunk = connection.recv(64 << 10)
                    assert chunk
                    start += chunk
                if name == "cut":
                    os.truncate(path, path.stat().st_size - 22 * MIB)
                else:
                    write_f32(path, 10, 2.0)  # in place
                length, body = read_answer(connection, start)
                assert length == 32 * MIB
                # Past what was sent or read before, there is nothing: no zeros, no text, nothing of another file.
                assert MIB < len(body) <= 12 * MIB
                assert set(np.frombuffer(body[: len(body) // 4 * 4], "<f4")) == {1.0}
                assert connection.recv(1) == b""
        assert server.client.get("/healthz").status_code == 200

        def lines() -> list[str]:
            return [line for line in server.log if "ERROR" in line or "Traceback" in line]

        eventually(lambda: len(lines()) >= 2)
        assert len(lines()) == 2, lines()
        for name, line in zip(names, lines(), strict=True):
            assert f"aborted an answer of model {name!r}" in line


@pytest.mark.case(26)
def test_sigterm_refuses_new_connections_and_ends_a_stuck_one_after_its_grace(volume: Path) -> None:
    with Server(volume, grace_seconds=2) as server, ask(server, DATA.format("gib")) as stuck:
        stuck.recv(1000)
        server.process.send_signal(signal.SIGTERM)

        def is_refused() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", server.port)) != 0

        eventually(is_refused)
        assert server.process.poll() is None
        assert stuck.recv(1000)
        assert server.stop(timeout=15) == 0
    assert not any("Traceback" in line for line in server.log)
    assert any("aborted an answer of model 'gib': the service stops" in line for line in server.log)
    assert any("outcome=aborted" in line for line in server.log)


def _may_have_namespaces() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*NAMESPACE, "true"], check=False, capture_output=True).returncode == 0


@pytest.mark.case(26)
@pytest.mark.skipif(not _may_have_namespaces(), reason="the system makes no process namespaces here")
def test_the_first_process_of_a_container_stops_on_sigterm(volume: Path) -> None:
    """The system drops what a first process has no handler for, so that nothing would stop it before SIGKILL."""
    serve = [sys.executable, "-m", "app", "serve", f"--root={volume}", "--port=0", "--grace-seconds=1"]
    process = subprocess.Popen([*NAMESPACE, *serve], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        started = next(line for line in process.stderr if "running on http://" in line)
        port = int(re.findall(r":(\d+)", started)[-1])
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        (first,) = map(int, children.read_text().split())
        assert re.search(r"^NSpid:.*\t1$", Path(f"/proc/{first}/status").read_text(), re.MULTILINE)
        with socket.create_connection(("127.0.0.1", port), timeout=20) as stuck:
            stuck.sendall(f"GET {DATA.format('gib')} HTTP/1.1\r\nHost: test\r\n\r\n".encode())
            stuck.recv(1000)
            os.kill(first, signal.SIGTERM)
            process.stderr.read()
            assert process.wait(20) in (0, 143)
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def write_iq_models(folder: Path, windows: int) -> dict[str, str]:
    """A model for each IQ type, of random blocks and so many windows; gives the SHA-256 of each one decoded."""
    digests = {}
    for type_ in IQ_TYPES:
        weights = windows << 18
        blocks = make_blocks(type_, weights // decoders.info(type_).block_weights, "random", seed=int(type_))
        (folder / f"{type_.name}.gguf").write_bytes(build([("w", [ROW, weights // ROW], type_, blocks.tobytes())]))
        digests[type_.name] = hashlib.sha256(decoders.dequantize(blocks, type_).tobytes()).hexdigest()
    return digests


def workers_of(server: Server) -> set[str]:
    """The process ids of what a server has started."""
    pid = server.process.pid
    return set(Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


def decode_at_once(server: Server, digests: dict[str, str], clients: int, seconds: float) -> None:
    """Let clients ask for whole tensors, each for all of them and for at least so long, and check every answer."""
    until = time.monotonic() + seconds
    names = [*digests]

    def ask_for_all(place: int) -> None:
        n_answers = 0
        with httpx.Client(base_url=server.url, timeout=120) as client:
            while n_answers < len(names) or time.monotonic() < until:
                name = names[(place + n_answers) % len(names)]
                assert hashlib.sha256(client.get(DATA.format(name)).content).hexdigest() == digests[name]
                n_answers += 1

    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(ask_for_all, range(clients)))


@pytest.mark.case(48)
def test_two_workers_live_through_16_clients_of_slow_types(tmp_path: Path) -> None:
    assert len(IQ_TYPES) == 9
    digests = write_iq_models(tmp_path, windows=1)
    with Server(tmp_path, workers=2, cache_bytes=0) as server:
        eventually(lambda: server.client.get("/healthz").status_code == 200)
        before = workers_of(server)
        decode_at_once(server, digests, clients=16, seconds=0)
        assert workers_of(server) == before
        assert server.stop() == 0
    assert "died" not in "".join(server.log)


@pytest.mark.case(37)
def test_each_request_renews_the_time_of_an_idle_connection(volume: Path) -> None:
    """Together the pauses are longer than that time, each is a tenth of it."""
    with Server(volume, keep_alive_seconds=2) as server, Wire(server.port) as wire:
        for _ in range(12):
            assert wire.ask(b"/healthz").status == 200
            time.sleep(0.2)
        assert wire.ask(DATA.format("m").encode()).body == F8


@pytest.mark.case(37)
def test_connections_stay_open_longer_than_nginx_keeps_them() -> None:
    """``keepalive_timeout`` of an upstream is 60 seconds where a configuration does not say otherwise."""
    assert Settings.model_fields["keep_alive_seconds"].default > 60
    deployment = (Path(__file__).parents[2] / "docs" / "deployment.md").read_text(encoding="utf-8")
    assert "keepalive_timeout" not in "".join(re.findall(r"^    .*\n", deployment, re.MULTILINE))
    assert "TENSORTAP_KEEP_ALIVE_SECONDS" in deployment
