"""nginx in front: with the settings of docs/deployment.md, with its own, and as the end of TLS."""

import hashlib
import subprocess
import time
from pathlib import Path

import pytest

from tests.app.test_streaming import MIB, take_zeros
from tests.programs.conftest import DATA, LARGE, LARGE_BYTES, LARGE_END, Proxy
from tests.server import Server

pytestmark = pytest.mark.programs
SLOW_BYTES, BYTES_PER_SECOND = 200_000_000, 20_000_000


def test_a_tensor_comes_whole(proxy: Proxy, digest: str) -> None:
    with proxy.client() as client:
        assert hashlib.sha256(client.get(DATA).content).hexdigest() == digest


@pytest.mark.case(22)
def test_a_slow_client_gets_everything(proxy: Proxy, digest: str, tmp_path: Path) -> None:
    target = tmp_path / "out"
    command = [*proxy.curl, "-sS", "--limit-rate", "20M", "-o", str(target), proxy.url + DATA]
    assert subprocess.run(command, check=False, timeout=60).returncode == 0
    assert hashlib.sha256(target.read_bytes()).hexdigest() == digest


@pytest.mark.case(22, 38)
@pytest.mark.parametrize("proxy", ["default", "tls"], indirect=True)
def test_more_than_3_gb_come_whole_and_nginx_keeps_no_copy(proxy: Proxy, server: Server) -> None:
    """The first 200 MB at 20 MB/s, in which time nginx would fill its disk with the rest; then as fast as it goes."""
    memory, began, looked = server.memory(), time.monotonic(), 0

    def watch(taken: int) -> None:
        nonlocal looked
        if taken < SLOW_BYTES:
            time.sleep(max(0, began + taken / BYTES_PER_SECOND - time.monotonic()))
        if taken - looked > 16 * MIB:
            looked = taken
            assert proxy.disk_bytes() == 0
            assert server.memory() < memory + 48 * MIB

    with proxy.connect() as connection:
        connection.sendall(f"GET {LARGE} HTTP/1.1\r\nHost: test\r\n\r\n".encode())
        take_zeros(connection, LARGE_BYTES, LARGE_END, watch)
    assert proxy.errors() == []


def test_names_ranges_and_conditions_pass_through(proxy: Proxy, server: Server) -> None:
    direct = server.client.head(DATA)
    with proxy.client() as client:
        assert client.head(DATA).headers["etag"] == direct.headers["etag"]
        assert client.get(DATA, headers={"Range": "bytes=4-7"}).status_code == 206
        assert client.get(DATA, headers={"If-None-Match": direct.headers["etag"]}).status_code == 304
        assert client.get("/v1/models/m/-/tensors/dense%2Fkernel:0").json()["name"] == "dense/kernel:0"
