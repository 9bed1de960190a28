"""Cases in which the bytes on the wire matter: a real server and a plain socket, which encodes and resolves nothing.

Numbers are those of the project's table of cases.
"""

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest

from tests.app.conftest import Wire, check_answer, path_of, slug
from tests.builder import ARRAY, F8, F32, STRING, base, build, floats, raw_kv, string, tensor_info
from tests.server import Server

W = path_of("m", "data", "w").encode()
NAMES = [
    b"dense/kernel:0",
    b"a%2Fb",
    b"x/rows",
    b"\n",
    b"\r\nX-Evil: 1",
    "\u202e".encode(),
    b"w\xff",
    b"\0",
    b"..",
    b"",
]
N_TOKENS = 262_144


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("wire")
    (folder / "outside.gguf").write_bytes(base())
    root = folder / "root"
    root.mkdir()
    (root / "m.gguf").write_bytes(base())
    (root / "bad.gguf").write_bytes(b"GGU")
    infos = [tensor_info(name, [1], 0, 32 * place) for place, name in enumerate(NAMES)]
    data = b"".join(floats(place) + bytes(28) for place in range(len(NAMES)))
    (root / "names.gguf").write_bytes(base(infos=infos, data=data))
    (root / "f16.gguf").write_bytes(build([("q", [32, 4], 2, bytes(72)), ("large", [70_000, 10], 1, bytes(1_400_000))]))
    tokens = b"".join(string(f"t{number:06}") for number in range(N_TOKENS))
    entry = raw_kv("tokenizer.ggml.tokens", ARRAY, struct.pack("<IQ", STRING, N_TOKENS) + tokens)
    scores = raw_kv("tokenizer.ggml.scores", ARRAY, struct.pack("<IQ", F32, N_TOKENS) + bytes(4 * N_TOKENS))
    (root / "vocabulary.gguf").write_bytes(base(entries=[entry, scores]))
    with Server(root, recheck_seconds=0) as server:
        yield server


@pytest.fixture
def wire(server: Server) -> Iterator[Wire]:
    with Wire(server.port) as wire:
        yield wire


@pytest.mark.parametrize(
    ("target", "length"),
    [
        (W, 32),
        (W + b"?format=npy", 160),
        (W + b"?rows=0:0", 0),
        (W + b"?rows=0:0&format=npy", 128),
        (W + b"?format=native", 32),
        (W + b"?dtype=float16", 16),
        (W + b"?dtype=bfloat16", 16),
        (b"/v1/models/f16/-/data/large", 2_800_000),
        (b"/v1/models/f16/-/data/large?rows=9,0,3:5", 1_120_000),
        (b"/v1/models/f16/-/data/large?format=native", 1_400_000),
        (b"/v1/models/f16/-/data/q?format=native&rows=1:3", 36),
    ],
)
def test_the_length_is_exact_and_head_has_the_same_headers(wire: Wire, target: bytes, length: int) -> None:
    """Cases 3 and 35: several requests on one connection, each body as long as its header says."""
    whole = wire.ask(target)
    assert (whole.status, len(whole.body)) == (200, length)
    head = wire.ask(target, b"HEAD")
    assert (head.status, head.body) == (200, b"")
    again = wire.ask(target)
    assert again.body == whole.body
    for answer in (head, again):
        assert {**answer.headers, "date": ""} == {**whole.headers, "date": ""}
    assert wire.ask(b"/healthz").json == {"status": "ok"}


@pytest.mark.parametrize(
    "target",
    [
        b"/v1/models",
        b"/v1/models/m",
        b"/v1/models/m/-/metadata",
        b"/v1/models/vocabulary/-/metadata",
        b"/v1/models/m/-/metadata/general.architecture",
        b"/v1/models/m/-/tensors",
        b"/v1/models/m/-/tensors/w",
        b"/v1/data?model=m&tensor=w",
        W + b"?format=json",
        b"/v1/models/f16/-/data/large?format=json&rows=0:2",
        b"/healthz",
        b"/readyz",
        b"/openapi.json",
        b"/docs",
        b"/v1/models/none",
        b"/v1/models/bad",
        b"/nothing",
        W + b"?rows=99",
        W + b"?strat=3",
        W + b"?rows=" + b"1," * 20_000 + b"1",
    ],
)
def test_a_connection_stays_usable_after_every_kind_of_answer(wire: Wire, target: bytes) -> None:
    """Cases 3 and 35."""
    first = wire.ask(target)
    head = wire.ask(target, b"HEAD")
    assert (head.status, head.body) == (first.status, b"")
    unknown = {"content-length"} if b"format=json" in target else set()
    assert {k: v for k, v in first.headers.items() if k not in {"date", *unknown}} == {
        k: v for k, v in head.headers.items() if k != "date"
    }
    wire.send(b"POST " + target + b" HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc")
    refused = 400 if b"/-/data/" in target else 405  # what is posted is no selection
    assert wire.answer().status in ((refused,) if first.status == 200 else (400, 404, 405, 414))
    assert wire.ask(target).body == first.body


def test_a_url_too_long_for_the_parser_ends_its_connection_and_nothing_else(server: Server, wire: Wire) -> None:
    """Case 33: 100,000 indices in the URL. The server's parser refuses URLs of 64 KiB and more before the service."""
    # The connection may be cut before the refusal is read.
    with Wire(server.port) as other, suppress(ConnectionError):
        assert other.ask(W + b"?rows=" + b"1," * 100_000 + b"1").status in (400, 414)
    assert wire.ask(W).body == F8


def test_pipelined_requests_are_answered_in_order(wire: Wire) -> None:
    """Case 35."""
    targets = [W + b"?rows=0", W + b"?rows=1", b"/nothing", W + b"?format=json", W + b"?rows=0:0", W]
    wire.send(b"".join(b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % target for target in targets))
    answers = [wire.answer() for _ in targets]
    assert [answer.status for answer in answers] == [200, 200, 404, 200, 200, 200]
    assert [answers[0].body, answers[1].body, answers[4].body, answers[5].body] == [F8[:16], F8[16:], b"", F8]


@pytest.mark.parametrize(
    ("encoded", "place"),
    [
        (b"dense%2Fkernel:0", 0),
        (b"dense/kernel:0", 0),
        (b"a%252Fb", 1),
        (b"x/rows", 2),
        (b"%0A", 3),
        (b"%0D%0AX-Evil:%201", 4),
        (b"%E2%80%AE", 5),
        (b"w%FF", 6),
        (b"%00", 7),
        (b"%2E%2E", 8),
        (b"..", 8),
        (b"", 9),
    ],
)
def test_names_arrive_as_they_are_sent(wire: Wire, encoded: bytes, place: int) -> None:
    """Cases 4 and 71."""
    answer = wire.ask(b"/v1/models/names/-/data/" + encoded)
    assert answer.values == [place]
    assert wire.ask(b"/v1/data?model=names&tensor=" + encoded).body == answer.body
    for of in (answer, wire.ask(b"/v1/models/names/-/tensors/" + encoded), wire.ask(b"/v1/models/" + encoded)):
        assert "x-evil" not in of.headers
        check_answer(of, "GET")


def test_logs_have_no_raw_line_breaks_of_names(server: Server, wire: Wire) -> None:
    """Case 71."""
    for target in (b"/v1/models/%0D%0AEVIL", b"/v1/models/names/-/data/%0AEVIL", b"/v1/models/m?%0AEVIL=%0DEVIL"):
        assert wire.ask(target).status in (404, 400)
    assert not any(line.startswith("EVIL") or "\r" in line for line in server.log)


@pytest.mark.parametrize(
    "target",
    [
        b"/v1/models/../../etc/passwd",
        b"/v1/models/../outside",
        b"/v1/models/%2e%2e%2fetc",
        b"/v1/models/%2e%2e%2foutside",
        b"/v1/models/..%5c..",
        b"/v1/models//etc/passwd",
        b"/v1/models/%2Fetc%2Fpasswd",
        b"/v1/models/{absolute}",
        b"/v1/models/./m",
        b"/v1/models/x/../m",
        b"/v1/models/a%00b.gguf",
        b"/v1/models/m%00",
        b"/v1/models/m/",
        b"/v1/models/m.gguf/",
        b"/v1/models/" + b"n" * 5000,
        b"/v1/models/" + b"n/" * 2500,
        b"/v1/models/%FF",
    ],
)
def test_outside_of_the_volume_there_is_nothing(wire: Wire, tmp_path: Path, target: bytes) -> None:
    """Cases 46 and 73: the same answer as for any unknown name."""
    unknown = wire.ask(b"/v1/models/unknown")
    assert slug(unknown) == (404, "no-such-model")
    answer = wire.ask(target.replace(b"{absolute}", str(tmp_path).encode()))
    assert (answer.status, answer.body) == (404, unknown.body)


@pytest.mark.parametrize(
    "start",
    [
        b"GET //etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET http://localhost/v1/models/../x HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /v1%2Fmodels%2Fnone HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /v1/models%2F..%2Fm HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /v1/models/m/-/data HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /v1/models/m/-/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /v1/models/m/-/metadata%2Fx HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /v1/models/m/-/%2E%2E/x HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"OPTIONS /v1/models HTTP/1.1\r\nHost: localhost\r\nOrigin: b\r\n\r\n",
        b"DELETE /v1/models/m HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"PUT /v1/models HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    ],
)
def test_strange_requests_are_problems(wire: Wire, start: bytes) -> None:
    """Case 46, and whatever else a scanner sends: a 4xx problem, and the connection goes on."""
    wire.send(start)
    answer = wire.answer()
    assert answer.status in (404, 405)
    check_answer(answer, "GET")
    assert wire.ask(b"/healthz").status == 200


@pytest.mark.parametrize(
    "start",
    [
        b"GET / HT\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
        b"GET /v1/models/\r\nX: y HTTP/1.1\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nBad\x00: x\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
def test_what_is_no_http_ends_its_connection_and_nothing_else(server: Server, wire: Wire, start: bytes) -> None:
    """Case 79, of senders that are broken."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as other:
        other.sendall(start)
        other.shutdown(socket.SHUT_WR)
        answer = b""
        while chunk := other.recv(65536):
            answer += chunk
    assert b" 500 " not in answer.split(b"\r\n")[0]
    assert wire.ask(b"/healthz").status == 200


def test_silent_senders_keep_nobody_waiting(server: Server, wire: Wire) -> None:
    """Case 79."""
    assert wire.ask(W).body == F8  # the model and this connection are open from here on
    before = server.open_files()
    with ExitStack() as stack:
        for _ in range(500):
            silent = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=10))
            silent.sendall(b"GET / HT")
        for _ in range(20):
            assert wire.ask(W).body == F8
        assert wire.ask(b"/healthz").status == 200
    _settles(server, before)


def test_clients_that_leave_early_leave_nothing_behind(server: Server, wire: Wire) -> None:
    """Always: no descriptor stays open after answers, refusals, and clients that hang up."""
    for target in (W, b"/v1/models/f16/-/data/large", b"/v1/models/names"):
        wire.ask(target)
    before = server.open_files()
    for place in range(60):
        target = (b"/v1/models/f16/-/data/large", W + b"?rows=99", b"/v1/models/bad", b"/v1/models")[place % 4]
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as leaving:
            leaving.sendall(b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % target)
            if place % 8 < 4:
                leaving.recv(100)
    _settles(server, before)
    assert wire.ask(W).body == F8


def _settles(server: Server, before: int) -> None:
    """Wait for the server to have no more descriptors than before."""
    for _ in range(100):
        if server.open_files() <= before:
            return
        time.sleep(0.05)
    assert server.open_files() <= before


def test_20_clients_may_ask_for_the_metadata_of_a_large_vocabulary_at_once(server: Server) -> None:
    """Case 7: and ``/healthz`` answers throughout."""
    answers: list[httpx.Response] = []
    alive: list[int] = []
    done = threading.Event()

    def ask(place: int) -> None:
        with httpx.Client(base_url=server.url, timeout=60) as client:
            key = "/tokenizer.ggml.tokens" if place % 5 == 0 else ""
            answers.append(client.get(f"/v1/models/vocabulary/-/metadata{key}"))

    def watch() -> None:
        with httpx.Client(base_url=server.url, timeout=5) as client:
            while not done.is_set():
                alive.append(client.get("/healthz").status_code)

    clients = [threading.Thread(target=ask, args=(place,)) for place in range(20)]
    watcher = threading.Thread(target=watch)
    watcher.start()
    for client in clients:
        client.start()
    for client in clients:
        client.join(60)
    done.set()
    watcher.join(10)
    assert [answer.status_code for answer in answers] == [200] * 20
    assert {len(answer.json().get("items", [])) for answer in answers} == {0, N_TOKENS}
    assert len(alive) >= 2
    assert set(alive) == {200}


def test_a_client_may_close_before_it_has_asked(server: Server, wire: Wire) -> None:
    """Case 79."""
    for data in (b"", b"G", b"GET /v1/models HTTP/1.1\r\n", b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n"):
        leaving = socket.create_connection(("127.0.0.1", server.port), timeout=10)
        # Reset, rather than close in order.
        leaving.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with suppress(OSError):
            leaving.sendall(data)
        leaving.close()
    assert wire.ask(b"/healthz").status == 200
    assert not any("Traceback" in line for line in server.log)
