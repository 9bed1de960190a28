"""Cases of docs/cases.md in which the bytes on the wire matter.

A real server, and a plain socket, which encodes and resolves nothing.
"""

import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.app.conftest import Wire, check_answer, path_of, slug
from tests.app.test_cases_volume import replace
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
HALVES = (np.arange(700_000) % 2048).astype("<f2").reshape(10, 70_000)


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The path, without its suffix, of a model that lies beside the volume."""
    path = tmp_path_factory.mktemp("wire") / "outside"
    path.with_suffix(".gguf").write_bytes(base())
    return path


@pytest.fixture(scope="module")
def root(outside: Path) -> Path:
    """The volume."""
    root = outside.with_name("root")
    root.mkdir()
    return root


@pytest.fixture(scope="module")
def server(root: Path) -> Iterator[Server]:
    (root / "m.gguf").write_bytes(base())
    (root / "bad.gguf").write_bytes(b"GGU")
    infos = [tensor_info(name, [1], 0, 32 * place) for place, name in enumerate(NAMES)]
    data = b"".join(floats(place) + bytes(28) for place in range(len(NAMES)))
    (root / "names.gguf").write_bytes(base(infos=infos, data=data))
    (root / "f16.gguf").write_bytes(build([("q", [32, 4], 2, bytes(72)), ("large", [70_000, 10], 1, HALVES.tobytes())]))
    tokens = b"".join(string(f"t{number:06}") for number in range(N_TOKENS))
    entry = raw_kv("tokenizer.ggml.tokens", ARRAY, struct.pack("<IQ", STRING, N_TOKENS) + tokens)
    scores = raw_kv("tokenizer.ggml.scores", ARRAY, struct.pack("<IQ", F32, N_TOKENS) + bytes(4 * N_TOKENS))
    (root / "vocabulary.gguf").write_bytes(base(entries=[entry, scores]))
    (root / "cut.gguf").write_bytes(base()[:-1])
    infos = [tensor_info("w", [4, 2], 0, 0), tensor_info("cut", [4, 2], 0, 32)]
    (root / "half.gguf").write_bytes(base(infos=infos, data=F8 + F8[:-1]))
    with Server(root, recheck_seconds=0) as server:
        yield server


@pytest.fixture
def wire(server: Server) -> Iterator[Wire]:
    with Wire(server.port) as wire:
        yield wire


@pytest.mark.case(3, 35)
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
    """Several requests on one connection, each body as long as its header says."""
    whole = wire.ask(target)
    assert (whole.status, len(whole.body)) == (200, length)
    head = wire.ask(target, b"HEAD")
    assert (head.status, head.body) == (200, b"")
    again = wire.ask(target)
    assert again.body == whole.body
    for answer in (head, again):
        assert {**answer.headers, "date": ""} == {**whole.headers, "date": ""}
    assert wire.ask(b"/healthz").json == {"status": "ok"}


@pytest.mark.case(3, 35)
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


@pytest.mark.case(33)
def test_a_url_too_long_for_the_parser_ends_its_connection_and_nothing_else(server: Server, wire: Wire) -> None:
    """The server's parser refuses URLs of 64 KiB and more before the service."""
    # The connection may be cut before the refusal is read.
    with Wire(server.port) as other, suppress(ConnectionError):
        assert other.ask(W + b"?rows=" + b"1," * 100_000 + b"1").status in (400, 414)
    assert wire.ask(W).body == F8


@pytest.mark.case(33)
def test_rows_come_in_the_order_asked_for(wire: Wire) -> None:
    rows = [5, 2, 2, 9]
    answer = wire.ask(b"/v1/models/f16/-/data/large?rows=5,2,2,9")
    assert answer.headers["x-tensor-shape"] == "[4,70000]"
    assert answer.body == HALVES[rows].astype(np.float32).tobytes()


@pytest.mark.case(33)
def test_100_000_rows_are_posted(wire: Wire) -> None:
    rows = [number * 7919 % 10 for number in range(100_000)]
    body = json.dumps({"rows": rows, "cols": 0}).encode()
    head = b"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    wire.send(b"POST /v1/models/f16/-/data/large HTTP/1.1\r\n" + head + body)
    answer = wire.answer()
    assert answer.body == HALVES[rows, 0].astype(np.float32).tobytes()
    assert wire.ask(W).body == F8


@pytest.mark.case(32)
@pytest.mark.parametrize("target", [W, b"/v1/models/f16/-/data/large", W + b"?format=json"])
def test_weights_come_as_they_are_whatever_coding_is_accepted(wire: Wire, target: bytes) -> None:
    plain = wire.ask(target)
    for method in (b"GET", b"HEAD"):
        answer = wire.ask(target, method, b"Accept-Encoding: gzip, br\r\n")
        assert "content-encoding" not in answer.headers
        assert answer.headers["etag"] == plain.headers["etag"]
        if method == b"GET":
            assert answer.body == plain.body
        if b"json" not in target:
            assert answer.headers["content-length"] == str(len(plain.body))


@pytest.mark.case(47)
@pytest.mark.parametrize(
    ("wanted", "status", "part"),
    [
        (b"bytes=0-3", 206, slice(0, 4)),
        (b"bytes=-4", 206, slice(-4, None)),
        (b"bytes=99999999-", 416, None),
        (b"bytes=" + b",".join(b"%d-%d" % (2 * place, 2 * place) for place in range(5000)), 200, slice(None)),
        (b"bytes=" + b",".join(b"%d-%d" % (2 * place, 2 * place) for place in range(17)), 200, slice(None)),
        (b"bytes=0-9,5-15", 200, slice(None)),
    ],
    ids=["first", "last", "past the end", "5000", "17", "overlapping"],
)
def test_ranges_on_the_wire(wire: Wire, wanted: bytes, status: int, part: slice | None) -> None:
    target = b"/v1/models/f16/-/data/large"
    whole = wire.ask(target)
    answer = wire.ask(target, headers=b"Range: " + wanted + b"\r\n")
    assert answer.status == status
    if part is None:
        assert answer.headers["content-range"] == f"bytes */{len(whole.body)}"
        assert slug(answer) == (416, "range-not-satisfiable")
    else:
        assert answer.body == whole.body[part]
    assert wire.ask(W).body == F8


@pytest.mark.case(47)
def test_two_ranges_are_two_parts_on_the_wire(wire: Wire) -> None:
    answer = wire.ask(W, headers=b"Range: bytes=0-0,-1\r\n")
    assert answer.status == 206
    kind, _, boundary = answer.headers["content-type"].partition("; boundary=")
    assert kind == "multipart/byteranges"
    parts = answer.body.split(b"--" + boundary.encode())
    assert [part.partition(b"\r\n\r\n")[2] for part in parts[1:3]] == [F8[:1] + b"\r\n", F8[-1:] + b"\r\n"]
    assert b"Content-Range: bytes 0-0/32" in parts[1]
    assert b"Content-Range: bytes 31-31/32" in parts[2]
    assert parts[3] == b"--\r\n"


@pytest.mark.case(25, 47)
def test_what_a_client_knows_of_a_replaced_file_is_stale(root: Path, wire: Wire) -> None:
    path = root / "replaced.gguf"
    path.write_bytes(base())
    target = b"/v1/models/replaced/-/data/w"
    old = wire.ask(target)
    etag = old.headers["etag"].encode()
    assert wire.ask(target, headers=b"If-None-Match: " + etag + b"\r\n").status == 304
    assert wire.ask(target, headers=b"Range: bytes=0-3\r\nIf-Range: " + etag + b"\r\n").status == 206
    assert wire.ask(b"/v1/models/replaced/-/tensors/w").json["ne"] == [4, 2]
    status = path.stat()
    replace(path, base(infos=[tensor_info("w", [2, 4], 0, 0)], data=floats(*range(8, 16))), like=status)
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)
    new = wire.ask(target)
    assert (new.values, new.headers["x-tensor-shape"]) == (list(range(8, 16)), "[4,2]")
    assert new.headers["etag"] != old.headers["etag"]
    assert wire.ask(b"/v1/models/replaced/-/tensors/w").json["ne"] == [2, 4]
    assert wire.ask(target, headers=b"If-None-Match: " + etag + b"\r\n").body == new.body
    assert slug(wire.ask(target, headers=b"If-Match: " + etag + b"\r\n")) == (412, "model-changed")
    whole = wire.ask(target, headers=b"Range: bytes=0-3\r\nIf-Range: " + etag + b"\r\n")
    assert (whole.status, whole.body) == (200, new.body)


@pytest.mark.case(5)
@pytest.mark.parametrize(("model", "tensor"), [(b"cut", b"w"), (b"half", b"cut")])
def test_a_tensor_that_is_cut_off_is_refused_before_any_200(wire: Wire, model: bytes, tensor: bytes) -> None:
    assert wire.ask(b"/v1/models/%b/-/metadata" % model).status == 200
    lines = wire.ask(b"/v1/models/%b/-/tensors" % model).json["tensors"]
    line = next(line for line in lines if line["name"] == tensor.decode())
    assert (line["readable"], line["fault"]["type"]) == (False, "/problems/tensor-past-end-of-file")
    for query in (b"", b"?rows=0", b"?format=native", b"?rows=0:0"):
        answer = wire.ask(b"/v1/models/%b/-/data/%b%b" % (model, tensor, query))
        assert slug(answer) == (422, "tensor-past-end-of-file")
    assert wire.ask(b"/v1/models/half/-/data/w").body == F8


@pytest.mark.case(35)
def test_pipelined_requests_are_answered_in_order(wire: Wire) -> None:
    targets = [W + b"?rows=0", W + b"?rows=1", b"/nothing", W + b"?format=json", W + b"?rows=0:0", W]
    wire.send(b"".join(b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % target for target in targets))
    answers = [wire.answer() for _ in targets]
    assert [answer.status for answer in answers] == [200, 200, 404, 200, 200, 200]
    assert [answers[0].body, answers[1].body, answers[4].body, answers[5].body] == [F8[:16], F8[16:], b"", F8]


@pytest.mark.case(4, 71)
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
    answer = wire.ask(b"/v1/models/names/-/data/" + encoded)
    assert answer.values == [place]
    assert wire.ask(b"/v1/data?model=names&tensor=" + encoded).body == answer.body
    for of in (answer, wire.ask(b"/v1/models/names/-/tensors/" + encoded), wire.ask(b"/v1/models/" + encoded)):
        assert "x-evil" not in of.headers
        check_answer(of, "GET")


@pytest.mark.case(71)
def test_logs_have_no_raw_line_breaks_of_names(server: Server, wire: Wire) -> None:
    for target in (b"/v1/models/%0D%0AEVIL", b"/v1/models/names/-/data/%0AEVIL", b"/v1/models/m?%0AEVIL=%0DEVIL"):
        assert wire.ask(target).status in (404, 400)
    assert not any(line.startswith("EVIL") or "\r" in line for line in server.log)


@pytest.mark.case(46, 73)
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
        b"/v1/models/{outside}",
        b"/v1/models/{missing}",
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
def test_outside_of_the_volume_there_is_nothing(wire: Wire, outside: Path, target: bytes) -> None:
    """The same answer as for any unknown name."""
    unknown = wire.ask(b"/v1/models/unknown")
    assert slug(unknown) == (404, "no-such-model")
    assert outside.with_suffix(".gguf").exists()
    target = target.replace(b"{outside}", bytes(outside)).replace(b"{missing}", bytes(outside.with_name("missing")))
    answer = wire.ask(target)
    assert (answer.status, answer.body) == (404, unknown.body)


@pytest.mark.case(46)
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
    """Whatever a scanner sends: a 4xx problem, and the connection goes on."""
    wire.send(start)
    answer = wire.answer()
    assert answer.status in (404, 405)
    check_answer(answer, "GET")
    assert wire.ask(b"/healthz").status == 200


@pytest.mark.case(79)
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
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as other:
        other.sendall(start)
        other.shutdown(socket.SHUT_WR)
        answer = b""
        while chunk := other.recv(65536):
            answer += chunk
    assert b" 500 " not in answer.split(b"\r\n")[0]
    assert wire.ask(b"/healthz").status == 200


@pytest.mark.case(79)
def test_silent_senders_keep_nobody_waiting(server: Server, wire: Wire) -> None:
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


@pytest.mark.case(7)
def test_20_clients_may_ask_for_the_metadata_of_a_large_vocabulary_at_once(server: Server) -> None:
    """``/healthz`` answers throughout."""
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


@pytest.mark.case(79)
def test_a_client_may_close_before_it_has_asked(server: Server, wire: Wire) -> None:
    for data in (b"", b"G", b"GET /v1/models HTTP/1.1\r\n", b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n"):
        leaving = socket.create_connection(("127.0.0.1", server.port), timeout=10)
        # Reset, rather than close in order.
        leaving.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with suppress(OSError):
            leaving.sendall(data)
        leaving.close()
    assert wire.ask(b"/healthz").status == 200
    assert not any("Traceback" in line for line in server.log)
