"""What the chart's annotations make of nginx and HAProxy: a tensor stays with one replica, and its name stays as it is.

There is no ingress controller here. The controllers write these lines into the configurations of their proxies, and so
do these tests.
"""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest

from decoders import GGMLType
from tests import builder
from tests.deploy._kubernetes import of_kind, rendered
from tests.programs.conftest import program
from tests.server import Server, free_port, is_open
from tests.waiting import eventually

pytestmark = pytest.mark.programs

NAMES = [f"layer/{number}:weight" for number in range(60)]  # so many that each replica has some, whatever its port
ROWS, ROW = 8, 32
WEIGHTS = np.arange(ROWS * ROW, dtype="<f4")
QUERIES = ["", "?rows=0", "?rows=3:5&cols=:4", "?format=json", "?dtype=float16", "?rows=7&format=npy"]


def path_of(name: str) -> str:
    return "/v1/models/m/-/data/" + name.replace("/", "%2F").replace(":", "%3A")


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    folder = tmp_path_factory.mktemp("models")
    tensors = [(name, [ROW, ROWS], GGMLType.F32, WEIGHTS.tobytes()) for name in NAMES]
    (folder / "m.gguf").write_bytes(builder.build(tensors, [("general.architecture", builder.STRING, "llama")]))
    with ExitStack() as stack:
        yield [stack.enter_context(Server(folder)) for _ in range(3)]


def annotations_of(controller: str, folder: Path) -> dict[str, str]:
    """The chart's annotations, without their prefix."""
    ingress = of_kind(rendered({"ingress": {"enabled": True, "controller": controller}}, folder), "Ingress")
    return {name.partition("/")[2]: value for name, value in ingress["metadata"]["annotations"].items()}


def nginx(controller: str, folder: Path, port: int, replicas: list[Server]) -> list[str]:
    given = annotations_of(controller, folder)
    if controller == "nginx":
        method = given.pop("lb-method")
    else:
        method = f"hash {given.pop('upstream-hash-by')} consistent"
        given = {"client-max-body-size" if name == "proxy-body-size" else name: value for name, value in given.items()}
    lines = " ".join(f"{name.replace('-', '_')} {value};" for name, value in given.items())
    servers = " ".join(f"server 127.0.0.1:{replica.port};" for replica in replicas)
    places = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    (folder / "nginx.conf").write_text(
        f"user root; daemon off; pid {folder}/pid; error_log {folder}/error.log; events {{}}\n"
        f"http {{ access_log off; {' '.join(f'{place}_temp_path {folder}/{place};' for place in places)}\n"
        f"upstream replicas {{ {method}; {servers} }}\n"
        f"server {{ listen 127.0.0.1:{port}; {lines} add_header X-Replica $upstream_addr;\n"
        "location / { proxy_http_version 1.1; proxy_pass http://replicas; } } }\n"
    )
    return ["nginx", "-c", f"{folder}/nginx.conf", "-e", f"{folder}/error.log"]


def haproxy(controller: str, folder: Path, port: int, replicas: list[Server]) -> list[str]:
    given = annotations_of(controller, folder)
    if controller == "haproxy":
        lines = ["balance roundrobin", *given["backend-config-snippet"].splitlines()]  # its default, before the snippet
    else:
        lines = [f"balance {given['balance-algorithm']}", given["config-backend"]]
    servers = [f"server SRV_{number} 127.0.0.1:{replica.port}" for number, replica in enumerate(replicas, 1)]
    backend = ["mode http", f"timeout server {given['timeout-server']}", *lines, *servers]
    sections = {
        "defaults": ["mode http", "timeout connect 5s", "timeout client 50s"],
        "frontend in": [f"bind 127.0.0.1:{port}", "default_backend replicas"],
        "backend replicas": ["http-response set-header X-Replica %[srv_name]", *backend],
    }
    text = "".join("\n  ".join([name, *inside]) + "\n" for name, inside in sections.items())
    (folder / "haproxy.cfg").write_text(text)
    return ["haproxy", "-db", "-f", f"{folder}/haproxy.cfg"]


PROXIES: dict[str, Callable[[str, Path, int, list[Server]], list[str]]] = {
    "nginx": nginx,
    "ingress-nginx": nginx,
    "haproxy": haproxy,
    "haproxy-ingress": haproxy,
}


@contextmanager
def proxy(controller: str, folder: Path, replicas: list[Server]) -> Iterator[httpx.Client]:
    port = free_port()
    command = PROXIES[controller](controller, folder, port, replicas)
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([program(command[0]), *command[1:]], stdout=log, stderr=log)
    try:
        eventually(lambda: is_open(port))
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            yield client
    finally:
        process.terminate()
        process.wait(10)


def places(client: httpx.Client) -> dict[str, str]:
    """The replica of each tensor, which is one."""
    found = {}
    for name in NAMES:
        answers = [client.get(path_of(name) + query) for query in QUERIES]
        answers += [client.head(path_of(name)), client.post(path_of(name), json={"rows": [1, 2]})]
        assert {answer.status_code for answer in answers} == {200}
        assert answers[0].content == WEIGHTS.tobytes()
        (found[name],) = {answer.headers["X-Replica"] for answer in answers}
    return found


@pytest.mark.parametrize("controller", PROXIES)
def test_a_tensor_stays_with_one_replica(controller: str, replicas: list[Server], tmp_path: Path) -> None:
    with proxy(controller, tmp_path, replicas) as client:
        before = places(client)
    assert len(set(before.values())) == 3
    with proxy(controller, tmp_path, replicas[:2]) as client:
        after = places(client)
    (gone,) = set(before.values()) - set(after.values())
    kept = [name for name in NAMES if before[name] != gone]
    assert [after[name] for name in kept] == [before[name] for name in kept]


@pytest.mark.parametrize("controller", PROXIES)
def test_a_large_body_comes_through(controller: str, replicas: list[Server], tmp_path: Path) -> None:
    body = b'{"rows": [1]' + b" " * (15 << 20) + b"}"
    with proxy(controller, tmp_path, replicas) as client:
        answer = client.post(path_of(NAMES[0]), content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 200
    assert answer.content == WEIGHTS[ROW : 2 * ROW].tobytes()
