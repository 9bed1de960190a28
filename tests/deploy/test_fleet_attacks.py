"""Clients with bad intentions before the fleet's nginx: none makes another get wrong bytes, headers or rights."""

import json
import os
import re
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import numpy as np
import pytest

from decoders import GGMLType
from tests import builder
from tests.deploy.fleet import DEPLOY, MODEL, Fleet, data, model, settled, weights
from tests.programs.conftest import program
from tests.waiting import eventually

pytestmark = pytest.mark.programs
CONFIGURATION = (DEPLOY / "nginx" / "tensortap.conf").read_text(encoding="utf-8")
COMPOSE = (DEPLOY / "compose.scale.yml").read_text(encoding="utf-8")
MIB = 1 << 20
SLICE, N_STALLED = 2 * MIB, 200
LENGTHS = (SLICE - 4, SLICE, SLICE + 4, 2 * SLICE - 4, 2 * SLICE)
KEY, OTHER_KEY = "key-of-the-team-1", "key-of-others-22"
PAGE, OTHER_PAGE = "https://a.example", "https://b.example"


def _volume(folder: Path) -> Path:
    path = folder / "volume" / f"{MODEL}.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(model())
    random = np.random.default_rng(1)
    rows = [(f"t{length}", [length // 4 + 1], GGMLType.F32, random.random(length // 4 + 1, np.float32).tobytes())
            for length in LENGTHS]  # fmt: skip
    (folder / "volume" / "lengths.gguf").write_bytes(
        builder.build(rows, [("general.architecture", builder.STRING, "llama")])
    )
    return folder / "volume"


@pytest.fixture(scope="module")
def open_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Without keys; for two origins and two hosts."""
    folder = tmp_path_factory.mktemp("open")
    settings = {"cors_origins": f"{PAGE},{OTHER_PAGE}", "allowed_hosts": "127.0.0.1,localhost"}
    with Fleet(folder, [_volume(folder)] * 2, settings=settings) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def locked_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """With a key for the models of the team, and one for others."""
    folder = tmp_path_factory.mktemp("locked")
    (folder / "keys").write_text(f"{KEY} team/*\n{OTHER_KEY} other/*\n")
    with Fleet(folder, [_volume(folder)] * 2, settings={"api_keys_file": folder / "keys"}) as fleet:
        yield fleet


def _send(fleet: Fleet, request: str) -> tuple[int, dict[str, str], bytes]:
    """Send what no client library would; gives status, headers and body of the answer."""
    with fleet.connect() as connection, connection.makefile("rb") as stream:
        connection.sendall(request.encode())
        status = int(stream.readline().split()[1])
        lines = (line.decode("latin-1").rstrip() for line in iter(stream.readline, b"\r\n"))
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        return status, headers, stream.read(int(headers["content-length"]))


def _get(path: str, *headers: str) -> str:
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: localhost", "Connection: close", *headers, "", ""])


@pytest.mark.parametrize(
    "twice",
    [
        ("X-API-Key:", f"X-API-Key: {KEY}"),
        ("X-API-Key: 0", f"X-API-Key: {KEY}"),
        ("X-API-Key: 0", f"Authorization: Bearer {KEY}"),
    ],
)
def test_no_form_of_giving_a_key_opens_the_model_to_others(locked_fleet: Fleet, twice: tuple[str, ...]) -> None:
    path = f"{data(0)}?rows=0"
    for _ in range(3):  # until the cache has it
        assert _send(locked_fleet, _get(path, *twice))[0] == 200
    assert _send(locked_fleet, _get(path))[0] == 401
    assert _send(locked_fleet, _get(path, "X-API-Key: 0"))[0] == 401


@pytest.mark.parametrize(
    "path",
    [
        f"{data(1)}?rows=0",
        f"/v1/models/{MODEL}.gguf/-/data/t01?rows=0",
        "/v1/models/team%2Ffleet/-/data/t01?rows=0",
        f"/v1/data?model={MODEL}&tensor=t01&rows=0",
        "/v1/data?model=team%2Ffleet&tensor=t01&rows=0",
    ],
)
def test_what_the_cache_holds_is_refused_in_every_form(locked_fleet: Fleet, path: str) -> None:
    with httpx.Client(base_url=locked_fleet.url) as client:
        for _ in range(3):
            answer = client.get(path, headers={"X-API-Key": KEY})
            assert answer.content == weights()[1][:1].tobytes()
        assert answer.headers["x-cache-status"] == "HIT"
        etag, version = answer.headers["etag"], answer.headers["x-model-etag"]
        forged = {"X-Model-Version": version, "X-Model-ETag": version}
        for more in ({}, {"Range": "bytes=0-3"}, {"If-None-Match": etag}, {"If-Match": version}, forged):
            for method in ("GET", "HEAD"):
                assert client.request(method, path, headers=more).status_code == 401
                refused = client.request(method, path, headers={"X-API-Key": OTHER_KEY, **more})
                assert refused.status_code in (403, 404), (method, more)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/models/other/x/-/../../../team/fleet/-/data/t01?rows=0",
        "/v1/models/other/x/-/%2e%2e/%2e%2e/%2e%2e/team/fleet/-/data/t01?rows=0",
        f"/v1/models/other/x/-/../../../../v1/data?model={MODEL}&tensor=t01&rows=0",
        f"/v1//models/{MODEL}/-/data/t01?rows=0",
        "/-/version",
        "//-/version",
        "/a/../-/version",
        "/v1/models/x/-/data/../../../../../-/version",
        "/-/version?rows=0",
        "/-/problem",
        "//-/problem",
        "/metrics",
        "//metrics",
        "/a/../metrics",
        "/%6detrics?",
        "/docs",
        "/openapi.json",
    ],
)
def test_a_path_that_nginx_reads_in_another_way_leads_nowhere(open_fleet: Fleet, path: str) -> None:
    for _ in range(3):
        status, headers, body = _send(open_fleet, _get(path))
        assert (status, json.loads(body)["status"]) == (404, 404)
        assert headers["content-type"] == "application/problem+json"


def test_a_page_reads_what_its_origin_may_read_also_from_the_cache(open_fleet: Fleet) -> None:
    origins = [None, PAGE, OTHER_PAGE, "https://evil.example"]
    names = ("access-control-allow-origin", "access-control-expose-headers", "vary")
    replica = f"http://{open_fleet.replicas[0].authority}"
    with httpx.Client(base_url=open_fleet.url) as client, httpx.Client(base_url=replica) as direct:
        asked = [{"Origin": origin} if origin else {} for origin in origins]
        told = [[direct.get(data(2), headers=one).headers.get(name) for name in names] for one in asked]
        assert [one[0] for one in told] == [None, PAGE, OTHER_PAGE, None]
        for first, headers in enumerate(asked):  # whoever was first, with a row of its own
            path = f"{data(2)}?rows={first}"
            for _ in range(3):
                client.get(path, headers=headers)
            answers = [client.get(path, headers=one).headers for one in asked]
            assert [[answer.get(name) for name in names] for answer in answers] == told
            assert {answer["x-cache-status"] for answer in answers} == {"HIT"}


def test_a_host_that_replicas_refuse_gets_nothing_from_the_cache(open_fleet: Fleet) -> None:
    path = f"{data(3)}?rows=0"
    for _ in range(3):
        assert _send(open_fleet, _get(path))[0] == 200
    assert _send(open_fleet, _get(path).replace("localhost", "evil.example"))[0] == 400
    assert _send(open_fleet, _get(f"http://evil.example{path}"))[0] == 400


def test_the_form_that_is_kept_is_that_of_the_key(open_fleet: Fleet) -> None:
    with httpx.Client(base_url=open_fleet.url) as client:
        for number, twice in enumerate((("*/*", "application/json"), ("application/json", "*/*"))):
            path = f"{data(4)}?rows={number}&cols=:4"
            for _ in range(3):
                _send(open_fleet, _get(path, *(f"Accept: {which}" for which in twice)))
            for accept in (*twice, ", ".join(twice)):
                direct = httpx.get(f"http://{open_fleet.replicas[0].authority}{path}", headers={"Accept": accept})
                assert client.get(path, headers={"Accept": accept}).content == direct.content


def test_ends_of_slices(open_fleet: Fleet) -> None:
    """Answers whose lengths are those of slices, nearly or exactly, whole and in parts about the ends of slices."""
    with httpx.Client(base_url=open_fleet.url) as client, httpx.Client(
        base_url=f"http://{open_fleet.replicas[0].authority}"
    ) as direct:  # fmt: skip
        for length in LENGTHS:
            path = f"/v1/models/lengths/-/data/t{length}?cols=1:"
            whole = direct.get(path).content
            end = len(whole)
            assert end == length
            assert client.get(path).content == whole
            parts = (f"{SLICE - 1}-{SLICE}", f"{SLICE}-", f"{end - 1}-", f"{end}-", f"-{end}", f"-{SLICE + 1}")
            for part in (*parts, "-0", f"0-{SLICE - 1}", "9223372036854775807-", "5-2"):
                wanted = direct.get(path, headers={"Range": f"bytes={part}"})
                got = client.get(path, headers={"Range": f"bytes={part}"})
                told = [(answer.status_code, answer.headers.get("content-range")) for answer in (got, wanted)]
                assert told[0] == told[1], part
                assert got.status_code == 416 or got.content == wanted.content


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        ("GET\r\n\r\n", 400),
        (_get("/v1/models/%zz"), 400),
        (_get("/healthz", "Host: b"), 400),
        (_get("/healthz").replace("GET", "TRACE"), 405),
        (_get("/healthz").replace("GET", "POST").replace("\r\n\r\n", "\r\nContent-Length: 99999999\r\n\r\n"), 413),
        (_get(data(0)).replace("GET", "POST").replace("\r\n\r\n", "\r\nContent-Length: 99999999\r\n\r\n"), 413),
        (_get("/" + "a" * 50_000), 414),
        (_get("/healthz", f"X-A: {'a' * 50_000}"), 431),
        (_get("/healthz").replace("HTTP/1.1", "HTTP/9.1"), 505),
    ],
)
def test_what_nginx_refuses_is_a_problem_document(open_fleet: Fleet, request_text: str, status: int) -> None:
    got, headers, body = _send(open_fleet, request_text)
    assert got == status
    assert headers["content-type"] == "application/problem+json"
    assert headers["x-request-id"]
    problem = json.loads(body)
    assert problem["status"] == status
    assert problem["type"].startswith("/problems/")
    assert {"title", "detail"} <= set(problem)


def test_a_fleet_without_replicas_says_so(tmp_path: Path) -> None:
    with Fleet(tmp_path, [_volume(tmp_path)] * 2) as fleet, httpx.Client(base_url=fleet.url) as client:
        for replica in fleet.replicas:
            assert replica.process is not None
            replica.process.kill()
            replica.wait()
        for path in ("/v1/models", data(0)):
            for method in ("GET", "POST"):
                answer = client.request(method, path)
                assert (answer.status_code, answer.json()["type"]) == (502, "/problems/no-replica")


def test_a_request_without_a_host_is_answered(open_fleet: Fleet) -> None:
    for _ in range(3):
        status, _, body = _send(open_fleet, f"GET {data(5)}?rows=0 HTTP/1.0\r\n\r\n")
        assert (status, body) == (200, weights()[5][:1].tobytes())


def test_the_id_that_a_client_gives_is_that_of_the_answer(open_fleet: Fleet) -> None:
    with httpx.Client(base_url=open_fleet.url) as client:
        for number in range(4):
            answer = client.get(f"{data(6)}?rows=0", headers={"X-Request-ID": f"mine-{number}"})
            assert answer.headers["x-request-id"] == f"mine-{number}"
        assert answer.headers["x-cache-status"] == "HIT"
        made = client.get(f"{data(6)}?rows=0", headers={"X-Request-ID": "not ours"}).headers["x-request-id"]
        assert re.fullmatch("[0-9a-f]{32}", made)


def test_an_id_that_nginx_makes_is_in_the_log_of_the_replica(open_fleet: Fleet) -> None:
    with httpx.Client(base_url=open_fleet.url) as client:
        made = client.get(f"{data(6)}?rows=77").headers["x-request-id"]
    line = f"request_id={made} method=GET path={data(6)}"
    eventually(lambda: any(line in replica.log() for replica in open_fleet.replicas))


def test_what_nobody_is_to_keep_is_not_kept(tmp_path: Path) -> None:
    volume, folder = tmp_path / "volume", tmp_path / "fleet"
    (volume / MODEL).parent.mkdir(parents=True)
    folder.mkdir()
    (volume / f"{MODEL}.gguf").write_bytes(model())
    with (
        Fleet(folder, [volume], settings={"cache_control": "no-store"}) as fleet,
        httpx.Client(base_url=fleet.url) as client,
    ):
        answers = [client.get(f"{data(0)}?rows=0") for _ in range(4)]
    assert {answer.status_code for answer in answers} == {200}
    assert {answer.headers["x-cache-status"] for answer in answers} == {"MISS"}


def test_clients_that_do_not_read_cost_little_memory(open_fleet: Fleet) -> None:
    with httpx.Client(base_url=open_fleet.url) as client:
        for _ in range(3):
            assert client.get(data(8)).status_code == 200
    with ExitStack() as stack:
        for _ in range(N_STALLED):
            connection = stack.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # of use only before it is connected
            connection.connect(("127.0.0.1", open_fleet.port))
            connection.sendall(_get(data(8)).encode())
            assert connection.recv(1)
        taken = settled(lambda: _memory_bytes(open_fleet))
    assert MIB < taken < N_STALLED * (1 << 19)


def _memory_bytes(fleet: Fleet) -> int:
    """The memory of nginx's processes, what they share counted once, and what is of files not at all."""
    rollups = [Path(f"/proc/{process}/smaps_rollup").read_text() for process in fleet.proxies()]
    found = [kb for rollup in rollups for kb in re.findall(r"^Pss_(?:Anon|Shmem): +(\d+) kB", rollup, re.MULTILINE)]
    return sum(int(kb) << 10 for kb in found)


def test_as_many_requests_as_have_room_are_taken_and_more_are_told_to_come_again(open_fleet: Fleet) -> None:
    (most,) = map(int, re.findall(r"limit_conn tensortap_requests (\d+);", CONFIGURATION))
    (memory,) = re.findall(r"mem_limit: (\d+)g", COMPOSE.partition("\n  nginx:")[2])
    assert most * 2 * MIB <= int(memory) << 30
    (connections,) = re.findall(r"worker_connections (\d+);", (DEPLOY / "nginx/nginx.conf").read_text())
    assert most * 4 <= int(connections)
    (free,) = re.findall(r"min_free=(\d+)g", CONFIGURATION)
    assert _most_bodies() * 16 * MIB <= int(free) << 30
    begun = _get("/v1/models", "Content-Length: 9").replace("GET", "POST").encode()  # and no more of it
    with ExitStack() as stack:
        for _ in range(most):
            stack.enter_context(open_fleet.connect()).sendall(begun)

        def is_full() -> bool:
            if _send(open_fleet, _get("/v1/models"))[0] == 503:
                return True
            stack.enter_context(open_fleet.connect()).sendall(begun)  # for one that found those of the test before
            return False

        eventually(is_full)
        for path in ("/v1/models", f"{data(9)}?rows=0"):
            status, headers, body = _send(open_fleet, _get(path))
            assert (status, json.loads(body)["type"]) == (503, "/problems/overloaded")
            assert int(headers["retry-after"]) > 0
        for probe in ("/healthz", "/readyz"):
            assert _send(open_fleet, _get(probe))[0] == 200
    eventually(lambda: _send(open_fleet, _get("/v1/models"))[0] == 200)
    # All of them are gone before another test counts its own.
    settled(lambda: sum(len(os.listdir(f"/proc/{process}/fd")) for process in open_fleet.proxies()))


def _most_bodies() -> int:
    (most,) = map(int, re.findall(r"limit_conn tensortap_bodies (\d+);", CONFIGURATION))
    return most


@pytest.mark.parametrize("announced", ["Content-Length: 16000000", "Transfer-Encoding: chunked"])
def test_bodies_that_take_all_of_their_room_keep_only_others_with_bodies_out(open_fleet: Fleet, announced: str) -> None:
    rows = b'{"rows": [1]'
    with httpx.Client(base_url=open_fleet.url) as client, ExitStack() as stack:
        begun = _get(data(9), announced).replace("GET", "POST").encode()
        for _ in range(_most_bodies()):
            stack.enter_context(open_fleet.connect()).sendall(begun)

        def is_full() -> bool:
            if client.post(data(9), content=rows + b" " * 16_384 + b"}").status_code == 503:
                return True
            stack.enter_context(open_fleet.connect()).sendall(begun)  # for one that found those of the test before
            return False

        eventually(is_full)
        for body in (rows + b" " * 9000 + b"}", rows + b"}"):
            assert client.post(data(9), content=body).content == weights()[9][1:2].tobytes()
        assert client.get(f"{data(9)}?rows=1").content == weights()[9][1:2].tobytes()
        stack.close()
        eventually(lambda: client.post(data(9), content=rows + b" " * 16_384 + b"}").status_code == 200)


def test_bodies_are_kept_on_the_volume_and_where_there_is_no_room_nginx_says_so(open_fleet: Fleet) -> None:
    (folder,) = re.findall(r"client_body_temp_path (\S+);", (DEPLOY / "nginx/nginx.conf").read_text())
    (volume,) = re.findall(r"- slices:(\S+)", COMPOSE)
    assert folder == f"{volume}/body"
    bodies = open_fleet.folder / "cache" / "body"
    bodies.rename(bodies.with_name("away"))
    try:
        with httpx.Client(base_url=open_fleet.url) as client:
            for path in ("/v1/models", data(9)):
                answer = client.post(path, content=b'{"rows": [1]' + b" " * MIB + b"}")
                assert (answer.status_code, answer.json()["type"]) == (500, "/problems/internal-error")
                assert answer.headers["content-type"] == "application/problem+json"
    finally:
        bodies.with_name("away").rename(bodies)
    with httpx.Client(base_url=open_fleet.url) as client:
        assert client.post(data(9), content=b'{"rows": [1]' + b" " * MIB + b"}").content == weights()[9][1:2].tobytes()


def test_long_urls_fill_no_log(open_fleet: Fleet) -> None:
    path = f"{data(7)}?rows={','.join(map(str, np.arange(5000) % 400 + 100))}&cols=0"
    with httpx.Client(base_url=open_fleet.url) as client:
        for _ in range(3):
            assert len(client.get(path).content) == 20_000
    assert [line for line in open_fleet.errors() if "not enough for cache key" in line] == []


@pytest.mark.parametrize("replicas", [None, "", " ", "a:8000; error_log off", "a:8000\nb:8000", "a&b:8000", "$host"])
def test_replicas_that_are_none_are_refused(replicas: str | None) -> None:
    environment = {"PATH": os.environ["PATH"], **({} if replicas is None else {"REPLICAS": replicas})}
    command = ["sh", str(DEPLOY / "nginx" / "start.sh")]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=10, check=False)
    assert run.returncode == 2
    assert f"REPLICAS is '{replicas or ''}'" in run.stderr


@pytest.mark.parametrize(
    ("names", "address"),
    [
        ("nameserver 10.89.0.1\nnameserver 10.0.0.1\n", "10.89.0.1"),
        ("search here\nnameserver fe80::1%eth0\nnameserver fd00::35\n", "[fd00::35]"),
        ("", "127.0.0.1"),
    ],
)
@pytest.mark.parametrize("version", ["1.27.3", "1.30.0", "1.26.3"])
def test_names_are_asked_of_whom_the_system_asks(names: str, address: str, version: str, tmp_path: Path) -> None:
    nginx = tmp_path / "nginx"
    nginx.write_text(f'#!/bin/sh\n[ "$1" != -v ] || echo nginx version: nginx/{version} >&2\n')
    nginx.chmod(0o755)
    (tmp_path / "resolv.conf").write_text(names)
    steps = f"""mount -t tmpfs none /run
        mount --bind {tmp_path}/resolv.conf "$(readlink -f /etc/resolv.conf)"
        sh {DEPLOY}/nginx/start.sh
        cat /run/nginx/replicas.conf"""
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "REPLICAS": "a:8000 b:8000"}
    command = ["unshare", "--mount", "sh", "-euc", steps]
    written = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=10, check=True).stdout
    is_known = version != "1.26.3"
    assert re.findall(r"^resolver (\S+) valid=5s;$", written, re.MULTILINE) == [address] * is_known
    servers = re.findall(r"^ +server (\S+) max_fails=2 fail_timeout=5s( resolve)?;$", written, re.MULTILINE)
    assert servers == [(name, " resolve" * is_known) for name in ("a:8000", "b:8000")]


def test_the_health_check_tells_whether_replicas_answer(tmp_path: Path) -> None:
    """By what nginx's images have; whatever proxies there are."""
    (line,) = re.findall(r"test: (\[.*\])", COMPOSE.partition("\n  nginx:")[2])
    kind, name, *arguments = json.loads(line)
    assert (kind, name) == ("CMD", "curl")
    with Fleet(tmp_path, [_volume(tmp_path)]) as fleet:
        command = [program(name), *(argument.replace("http://127.0.0.1", fleet.url) for argument in arguments)]
        environment = {"http_proxy": "http://127.0.0.1:9"}

        def check() -> int:
            return subprocess.run(command, env=environment, capture_output=True, timeout=10, check=False).returncode

        assert check() == 0
        process = fleet.replicas[0].process
        assert process is not None
        process.kill()
        process.wait()
        assert check() != 0
