"""Caddy and Traefik in front of replicas, with the settings of deploy/: everything arrives as it does without them."""

import itertools
import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import yaml

from decoders import GGMLType
from tests import builder
from tests.app.test_metrics import DATA
from tests.app.test_streaming import MIB, ROW, ask, take_zeros, write_sparse
from tests.deploy.fleet import settled
from tests.programs.conftest import program
from tests.server import Server, free_port
from tests.waiting import eventually

pytestmark = pytest.mark.programs

DEPLOY = Path(__file__).parents[2] / "deploy"
KINDS = ("caddy", "traefik")
N_ROWS = 4096
M, LARGE = "/v1/models/m/-/data/dense%2Fkernel:0", "/v1/models/large/-/data/w"
LARGE_BYTES, LARGE_END = 209_715_200, builder.floats(*range(ROW))
# What is one name to the service, and what a proxy may take for something else.
ODD_NAMES = (
    "a/b",
    "a//b",
    "a/./b",
    "../a",
    "a;b",
    "a%2Fb",
    "a?b#c",
    "a\\b",
    "nul\0",
    " a+b ",
    "~a:b@c,d",
    "ü",
    "%",
    ".",
    "..",
)


def _replicas(volume: Path, count: int, stack: ExitStack) -> list[Server]:
    with ThreadPoolExecutor() as pool:
        started = [
            pool.submit(Server, volume, cache_bytes=MIB, max_streams=1, stream_queue=1, queue_seconds=0.2)
            for _ in range(count)
        ]
        return [stack.enter_context(one.result()) for one in started]


class Proxy:
    """A proxy with the settings of deploy/, of which only its own address and those of the replicas are others."""

    def __init__(self, kind: str, folder: Path, replicas: list[Server]) -> None:
        self.kind = kind
        self.port = free_port()
        self._log = folder / "log"
        ports = [replica.port for replica in replicas]
        command, environment = self._caddy(folder, ports) if kind == "caddy" else self._traefik(folder, ports)
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, cwd=folder, env={**os.environ, **environment}
            )
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=30)
        deadline = time.monotonic() + 15
        while not self._answers():
            if time.monotonic() > deadline or self.process.poll() is not None:
                self.stop()
                raise RuntimeError(f"{kind} did not start:\n{self._log.read_text()}")
            time.sleep(0.05)

    def _caddy(self, folder: Path, ports: list[int]) -> tuple[list[str], dict[str, str]]:
        text = (DEPLOY / "caddy/Caddyfile").read_text()
        assert text.count("\n:80 {") == text.count("\n{\n") == 1
        text = text.replace("\n:80 {", f"\n:{self.port} {{\n\tbind 127.0.0.1")
        (folder / "Caddyfile").write_text(text.replace("\n{\n", "\n{\n\tadmin off\n\tpersist_config off\n"))
        upstreams = " ".join(f"127.0.0.1:{port}" for port in ports)
        command = [program("caddy"), "run", "--config", "Caddyfile", "--adapter", "caddyfile"]
        return command, {"REPLICAS": upstreams, "HOME": str(folder)}

    def _traefik(self, folder: Path, ports: list[int]) -> tuple[list[str], dict[str, str]]:
        static = yaml.safe_load((DEPLOY / "traefik/traefik.yml").read_text())
        static["entryPoints"]["web"]["address"] = f"127.0.0.1:{self.port}"
        static["providers"]["file"]["filename"] = str(folder / "dynamic.yml")
        static["global"] = {"checkNewVersion": False, "sendAnonymousUsage": False}
        dynamic = yaml.safe_load((DEPLOY / "traefik/dynamic.yml").read_text())
        servers = [{"url": f"http://127.0.0.1:{port}"} for port in ports]
        dynamic["http"]["services"]["tensortap"]["loadBalancer"]["servers"] = servers
        (folder / "traefik.yml").write_text(yaml.safe_dump(static))
        (folder / "dynamic.yml").write_text(yaml.safe_dump(dynamic))
        return [program("traefik"), f"--configFile={folder}/traefik.yml"], {}

    def _answers(self) -> bool:
        try:
            return self.client.get("/v1/models").status_code == 200
        except httpx.TransportError:
            return False

    def memory(self) -> int:
        """Bytes of memory of the proxy now."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def stop(self) -> None:
        """Stop it."""
        self.client.close()
        self.process.kill()
        self.process.wait(10)


@pytest.fixture(scope="module")
def blocks() -> bytes:
    made = np.random.default_rng(7).integers(0, 256, (ROW * N_ROWS // 32, 34), np.uint8)
    made[:, 1] &= 0x3F  # scales below 2
    return made.tobytes()


@pytest.fixture(scope="module")
def volume(blocks: bytes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("volume")
    (folder / "m.gguf").write_bytes(builder.build([("dense/kernel:0", [ROW, N_ROWS], GGMLType.Q8_0, blocks)]))
    odd = [(name, [8], GGMLType.F32, builder.floats(*[number] * 8)) for number, name in enumerate(ODD_NAMES)]
    (folder / "odd.gguf").write_bytes(builder.build(odd))
    write_sparse(folder / "large.gguf", GGMLType.F32, LARGE_BYTES // 4 // ROW, LARGE_BYTES, LARGE_END)
    return folder


@pytest.fixture(scope="module")
def replicas(volume: Path) -> Iterator[list[Server]]:
    with ExitStack() as stack:
        yield _replicas(volume, 3, stack)


@pytest.fixture(scope="module", params=KINDS)
def proxy(
    request: pytest.FixtureRequest, replicas: list[Server], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Proxy]:
    running = Proxy(request.param, tmp_path_factory.mktemp(request.param), replicas)
    yield running
    running.stop()


SAME_HEADERS = (
    "content-length",
    "content-type",
    "etag",
    "x-model-etag",
    "accept-ranges",
    "content-range",
    "x-tensor-shape",
)


def _same(proxy: Proxy, replica: Server, path: str, method: str = "GET", **more: Any) -> httpx.Response:
    direct, there = (client.request(method, path, **more) for client in (replica.client, proxy.client))
    assert there.status_code == direct.status_code
    assert there.content == direct.content
    assert [there.headers.get(name) for name in SAME_HEADERS] == [direct.headers.get(name) for name in SAME_HEADERS]
    return there


def test_a_tensor_comes_whole(proxy: Proxy, replicas: list[Server]) -> None:
    assert len(_same(proxy, replicas[0], M).content) == N_ROWS * ROW * 4


def test_every_name_arrives_as_it_was_sent(proxy: Proxy, replicas: list[Server]) -> None:
    tensors = replicas[0].client.get("/v1/models/odd/-/tensors").json()["tensors"]
    assert len(tensors) == len(ODD_NAMES)
    for number, tensor in enumerate(tensors):
        assert _raw_get(proxy.port, tensor["data"]) == (200, builder.floats(*[number] * 8)), tensor["data"]
        unquoted = tensor["data"].replace("%2F", "/")  # as people write it
        assert _raw_get(proxy.port, unquoted) == _raw_get(replicas[0].port, unquoted), unquoted


def _raw_get(port: int, path: str) -> tuple[int, bytes]:
    """GET with the path as it is: clients tidy some up."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n".encode())
        received = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, body = received.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


def test_ranges_conditions_heads_and_errors_are_those_of_the_service(proxy: Proxy, replicas: list[Server]) -> None:
    replica = replicas[0]
    etag = replica.client.head(M).headers["etag"]
    assert _same(proxy, replica, M, "HEAD").status_code == 200
    assert _same(proxy, replica, M, headers={"Range": "bytes=4-1000007"}).status_code == 206
    assert _same(proxy, replica, M, headers={"Range": f"bytes={1 << 40}-"}).status_code == 416
    assert _same(proxy, replica, M, headers={"If-None-Match": etag}).status_code == 304
    assert _same(proxy, replica, M, headers={"If-Match": '"other"'}).status_code == 412
    assert (
        _same(proxy, replica, f"{M}?rows=0", headers={"Accept-Encoding": "gzip"}).headers.get("content-encoding")
        is None
    )
    wrong = _same(proxy, replica, "/v1/models/m/-/data/none")
    assert (wrong.status_code, wrong.headers["content-type"]) == (404, "application/problem+json")


def test_a_posted_selection_and_a_long_url_pass(proxy: Proxy, replicas: list[Server]) -> None:
    rows = [row * 7 % N_ROWS for row in range(3000)]
    body = json.dumps({"rows": rows, "cols": "0:2"}).encode()
    posted = _same(proxy, replicas[0], M, "POST", content=body.ljust(16 * MIB - 1000))
    assert (posted.status_code, len(posted.content)) == (200, 3000 * 8)
    assert proxy.client.post(M, content=bytes(17 * MIB)).status_code == 413
    listed = f"{M}?cols=0:2&rows={','.join(map(str, rows))}"[:32000].rpartition(",")[0]
    assert _same(proxy, replicas[0], listed).status_code == 200


def test_a_slow_client_gets_200_mb_and_the_proxy_keeps_little(proxy: Proxy) -> None:
    began, before, most = time.monotonic(), proxy.memory(), 0

    def watch(taken: int) -> None:
        nonlocal most
        most = max(most, proxy.memory())
        if taken < 10_000_000:  # these at 10 MB/s, in which time all of it would come from the replica
            time.sleep(max(0, began + taken / 10_000_000 - time.monotonic()))

    with socket.create_connection(("127.0.0.1", proxy.port), timeout=30) as connection:
        connection.sendall(f"GET {LARGE} HTTP/1.1\r\nHost: test\r\n\r\n".encode())
        take_zeros(connection, LARGE_BYTES, LARGE_END, watch)
    assert most < before + 32 * MIB


def test_caddy_asks_the_same_replica_again_and_traefik_all_in_turn(proxy: Proxy, replicas: list[Server]) -> None:
    def counts() -> list[float]:
        return [
            _metric(one, f'tensortap_requests_total{{outcome="complete",route="{DATA}",status="200"}}')
            for one in replicas
        ]

    before = settled(counts)  # what tests before have asked is counted
    for _ in range(30):
        assert proxy.client.get(f"{M}?rows=5").status_code == 200
    eventually(lambda: sum(counts()) == sum(before) + 30)  # a request is counted a moment after its answer
    shares = sorted(now - then for now, then in zip(counts(), before, strict=True))
    assert shares == [0, 0, 30] if proxy.kind == "caddy" else min(shares) >= 8


def _metric(replica: Server, sample: str) -> float:
    lines = [line.rpartition(" ") for line in replica.client.get("/metrics").text.splitlines()]
    return sum(float(value) for name, _, value in lines if name == sample)


def test_a_replica_that_refuses_a_stream_still_answers_the_rest(proxy: Proxy, replicas: list[Server]) -> None:
    with ExitStack() as stack:
        for replica in replicas:
            stack.enter_context(ask(replica, LARGE))  # the one stream that each takes, read by nobody
        eventually(lambda: all(_metric(replica, "tensortap_streams_open") == 1 for replica in replicas))
        for _ in range(len(replicas) + 1):
            refused = proxy.client.get(LARGE)
            assert (refused.status_code, refused.json()["type"]) == (503, "/problems/overloaded")
            assert int(refused.headers["retry-after"]) > 0
            assert {proxy.client.get(f"{M}?rows={row}").status_code for row in range(6)} == {200}


def test_figures_are_for_those_inside(proxy: Proxy) -> None:
    assert proxy.client.get("/metrics").status_code == 404


@pytest.fixture(params=KINDS)
def own(request: pytest.FixtureRequest, volume: Path, tmp_path: Path) -> Iterator[tuple[Proxy, list[Server]]]:
    """A proxy and replicas that may be killed."""
    with ExitStack() as stack:
        replicas = _replicas(volume, 3, stack)
        proxy = Proxy(request.param, tmp_path, replicas)
        stack.callback(proxy.stop)
        yield proxy, replicas


def test_killed_replicas_are_routed_around(own: tuple[Proxy, list[Server]]) -> None:
    """One is killed while nothing is asked: nobody notices. Another under load: what was begun may fail, no more."""
    proxy, replicas = own
    for row in range(10):
        assert proxy.client.get(f"{M}?rows={row}").status_code == 200
    replicas[0].process.kill()
    replicas[0].process.wait(10)
    # First what a proxy sends again by itself, should it meet a kept connection to the dead, until it has met all that
    # a POST could: it asks replicas in turn, or by path and query.
    for row in range(10):
        assert proxy.client.get(f"{M}?rows={row}").status_code == 200
        assert proxy.client.head(M).status_code == 200
    for row in range(10):
        assert proxy.client.post(M, json={"rows": [row]}).status_code == 200
    rows, over = itertools.count(), threading.Event()
    statuses: list[tuple[float, int]] = []

    def client() -> None:
        with closing(httpx.Client(base_url=proxy.client.base_url, timeout=30)) as asking:
            while not over.is_set():
                began = time.monotonic()
                try:
                    statuses.append((began, asking.get(f"{M}?rows={next(rows) % N_ROWS}").status_code))
                except httpx.TransportError:
                    statuses.append((began, 0))

    clients = [threading.Thread(target=client) for _ in range(4)]
    for thread in clients:
        thread.start()
    try:
        eventually(lambda: len(statuses) > 50)
        replicas[1].process.kill()
        replicas[1].process.wait(10)
        killed, at_kill = time.monotonic(), len(statuses)
        eventually(lambda: len(statuses) > at_kill + 300)
    finally:
        over.set()
        for thread in clients:
            thread.join(30)
    assert not any(thread.is_alive() for thread in clients)
    late = [status for began, status in statuses if began > killed]
    assert len(late) > 250
    assert set(late) == {200}
    assert sum(status != 200 for _, status in statuses) <= len(clients)
