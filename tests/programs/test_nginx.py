"""nginx in front, with the settings of docs/deployment.md and with its own."""

import hashlib
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.programs.conftest import DATA, program
from tests.server import Server

pytestmark = pytest.mark.programs
DOCUMENT = Path(__file__).parent.parent.parent / "docs" / "deployment.md"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def documented() -> str:
    """The configuration that the documentation gives."""
    (block,) = re.findall(r"((?:^    .*\n)+)", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)
    assert isinstance(block, str)
    return block


@pytest.fixture(scope="module", params=["documented", "default"])
def proxy(request: pytest.FixtureRequest, server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("nginx")
    port = free_port()
    plain = f"server {{ listen 80; location / {{ proxy_pass http://127.0.0.1:{server.port}; }} }}"
    sites = documented() if request.param == "documented" else plain
    sites = sites.replace("127.0.0.1:8000", f"127.0.0.1:{server.port}").replace("listen 80", f"listen 127.0.0.1:{port}")
    (folder / "nginx.conf").write_text(
        f"daemon off; pid {folder}/pid; error_log {folder}/error.log; events {{}}\n"
        f"http {{ access_log off; client_body_temp_path {folder}; proxy_temp_path {folder}/proxy; "
        f"fastcgi_temp_path {folder}; uwsgi_temp_path {folder}; scgi_temp_path {folder};\n{sites}\n}}\n"
    )
    process = subprocess.Popen([program("nginx"), "-c", folder / "nginx.conf"], stderr=subprocess.DEVNULL)
    for _ in range(100):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.05)
    yield f"http://127.0.0.1:{port}"
    process.terminate()
    process.wait(10)


def test_a_tensor_comes_whole(proxy: str, digest: str) -> None:
    answer = httpx.get(proxy + DATA, timeout=60)
    assert hashlib.sha256(answer.content).hexdigest() == digest


def test_a_slow_client_gets_everything_and_nginx_keeps_no_copy(proxy: str, digest: str, tmp_path: Path) -> None:
    """Case 22."""
    target = tmp_path / "out"
    command = [program("curl"), "-sS", "--limit-rate", "20M", "-o", str(target), proxy + DATA]
    assert subprocess.run(command, check=False, timeout=60).returncode == 0
    assert hashlib.sha256(target.read_bytes()).hexdigest() == digest


def test_names_ranges_and_conditions_pass_through(proxy: str, server: Server) -> None:
    direct = server.client.head(DATA)
    assert httpx.head(proxy + DATA).headers["etag"] == direct.headers["etag"]
    assert httpx.get(proxy + DATA, headers={"Range": "bytes=4-7"}).status_code == 206
    assert httpx.get(proxy + DATA, headers={"If-None-Match": direct.headers["etag"]}).status_code == 304
    assert httpx.get(f"{proxy}/v1/models/m/-/tensors/dense%2Fkernel:0").json()["name"] == "dense/kernel:0"


def test_idle_connections_are_not_cut_before_nginx_does(proxy: str) -> None:
    """Case 37, for as long as a test may take."""
    with httpx.Client(base_url=proxy) as client:
        for _ in range(3):
            assert client.get("/healthz").status_code == 200
            time.sleep(1)
