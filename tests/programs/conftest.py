"""The programs that people use, on a server with a model large enough to be cut off in the middle of."""

import hashlib
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import pytest

import decoders
from decoders import GGMLType
from tests import builder
from tests.app.test_streaming import write_sparse
from tests.server import Server, free_port, is_open
from tests.waiting import eventually

ROW, N_ROWS = 4096, 4096  # 64 MiB decoded
DATA = "/v1/models/m/-/data/dense%2Fkernel:0"
LARGE, LARGE_BYTES = "/v1/models/large/-/data/w", 3_276_800_000
LARGE_END = builder.floats(*range(ROW))
DOCUMENT = Path(__file__).parents[2] / "docs" / "deployment.md"


@pytest.fixture(scope="session")
def blocks() -> bytes:
    made = np.random.default_rng(7).integers(0, 256, (ROW * N_ROWS // 32, 18), np.uint8)
    made[:, 1] &= 0x3F  # scales below 2
    return made.tobytes()


@pytest.fixture(scope="session")
def digest(blocks: bytes) -> str:
    """The SHA-256 of the tensor as raw float32."""
    return hashlib.sha256(decoders.dequantize(blocks, GGMLType.Q4_0).tobytes()).hexdigest()


@pytest.fixture(scope="session")
def server(blocks: bytes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("volume")
    tensors = [("dense/kernel:0", [ROW, N_ROWS], GGMLType.Q4_0, blocks)]
    (folder / "m.gguf").write_bytes(builder.build(tensors, [("general.architecture", builder.STRING, "llama")]))
    write_sparse(folder / "large.gguf", GGMLType.F32, LARGE_BYTES // 4 // ROW, LARGE_BYTES, LARGE_END)
    with Server(folder, cache_bytes=1 << 20, cors_origins="*") as running:
        yield running


def program(name: str) -> str:
    """The path of a program that must be there: these tests are run where it is."""
    path = shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert path is not None, f"{name} is not installed: make programs installs it"
    return path


@dataclass(frozen=True)
class Proxy:
    """An nginx in front of the server: its process, port, folder, and what trusts its certificate if it has one."""

    pid: int
    port: int
    folder: Path
    trust: ssl.SSLContext | None

    @property
    def url(self) -> str:
        """Where it is."""
        return f"{'https' if self.trust else 'http'}://127.0.0.1:{self.port}"

    @property
    def curl(self) -> list[str]:
        """curl, and the flags that it needs to trust this one."""
        return [program("curl"), *(["--cacert", f"{self.folder}/certificate.pem"] if self.trust else [])]

    def client(self) -> httpx.Client:
        """A client that trusts it."""
        return httpx.Client(base_url=self.url, timeout=60, verify=self.trust or True)

    def connect(self) -> socket.socket:
        """A connection, TLS included."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        return self.trust.wrap_socket(connection, server_hostname="127.0.0.1") if self.trust else connection

    def errors(self) -> list[str]:
        """What it has logged of errors."""
        return (self.folder / "error.log").read_text().splitlines()

    def disk_bytes(self) -> int:
        """How much of answers it has on its disk now: in files that have no name any more."""
        workers = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        files = [file for worker in workers for file in Path(f"/proc/{worker}/fd").iterdir()]
        return sum(map(self._bytes_of_answer, files))

    def _bytes_of_answer(self, file: Path) -> int:
        with suppress(FileNotFoundError):  # closed since it was listed
            if os.readlink(file).startswith(f"{self.folder}/proxy/"):
                return file.stat().st_size
        return 0


def _documented() -> str:
    """The configuration that the documentation gives."""
    block, _ = re.findall(r"```nginx\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    assert isinstance(block, str)
    return block


def _certificate(folder: Path) -> ssl.SSLContext:
    """Make a key and a certificate of this machine; gives what trusts it."""
    command = [program("openssl"), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "certificate.pem"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return ssl.create_default_context(cafile=str(folder / "certificate.pem"))


def _nginx(stack: ExitStack, kind: str, folder: Path, server: Server) -> Proxy:
    port = free_port()
    plain = "server { listen 80; location / { proxy_pass http://127.0.0.1:8000; } }"
    sites = plain if kind == "default" else _documented()
    trust = _certificate(folder) if kind == "tls" else None
    tls = f" ssl; ssl_certificate {folder}/certificate.pem; ssl_certificate_key {folder}/key.pem" if trust else ""
    sites = sites.replace("127.0.0.1:8000", f"127.0.0.1:{server.port}")
    sites = sites.replace("listen 80", f"listen 127.0.0.1:{port}{tls}")
    (folder / "nginx.conf").write_text(
        f"daemon off; pid {folder}/pid; error_log {folder}/error.log; events {{}}\n"
        f"http {{ access_log off; client_body_temp_path {folder}; proxy_temp_path {folder}/proxy; "
        f"fastcgi_temp_path {folder}; uwsgi_temp_path {folder}; scgi_temp_path {folder};\n{sites}\n}}\n"
    )
    process = subprocess.Popen([program("nginx"), "-c", folder / "nginx.conf"], stderr=subprocess.DEVNULL)
    stack.callback(process.wait, 10)
    stack.callback(process.terminate)
    eventually(lambda: is_open(port))
    return Proxy(process.pid, port, folder, trust)


@pytest.fixture(scope="session")
def proxies(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Proxy]]:
    """nginx with the settings of the documentation, with its own, and with those of the documentation behind TLS."""
    with ExitStack() as stack:
        kinds = ("documented", "default", "tls")
        yield {kind: _nginx(stack, kind, tmp_path_factory.mktemp(kind), server) for kind in kinds}


@pytest.fixture(params=["documented", "default", "tls"])
def proxy(request: pytest.FixtureRequest, proxies: dict[str, Proxy]) -> Proxy:
    """Each of them."""
    return proxies[request.param]
