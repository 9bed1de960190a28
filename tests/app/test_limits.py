"""Limits that hold for every request: the host it asks for, the size of its body, and names in headers."""

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app import limits
from app.limits import RequestRules
from app.settings import listed
from tests import builder
from tests.app.conftest import Face, Serve, Wire, slug, write_files
from tests.builder import F8, base
from tests.server import Server

HOSTS = "api.example.org, *.wild.example, [::1], 10.0.0.1"


class Echo:
    """An application that answers with the size of the body that it got."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the body; what ends it early becomes an answer or an error."""
        body = b""
        try:
            body = await Request(scope, receive).body()
        except ClientDisconnect:
            if scope["path"] == "/raises":
                raise
        await Response(str(len(body)))(scope, receive, send)


def rules(allowed_hosts: str = "*") -> RequestRules:
    return RequestRules(Echo(), url_limit=1024, body_limit=100, allowed_hosts=listed(allowed_hosts))


def status_for(host: str, path: str) -> int:
    status, body = answer_to(rules(HOSTS), path, [], (b"host", host.encode("latin-1")))
    assert status == 200 or json.loads(body)["type"] == "/problems/bad-host"
    return status


@pytest.mark.parametrize(
    "host",
    [
        "api.example.org",
        "API.Example.ORG",
        "api.example.org.",
        "api.example.org:8080",
        "a.wild.example",
        "a.b.wild.example:1",
        "[::1]",
        "[::1]:8000",
        "10.0.0.1:80",
    ],
)
def test_an_allowed_host_is_answered(host: str) -> None:
    assert status_for(host, "/v1/models") == 200


@pytest.mark.parametrize(
    "host",
    [
        "",
        "example.org",
        "xapi.example.org",
        "api.example.org.evil.example",
        "wild.example",
        ".wild.example",
        "evilwild.example",
        "[::2]:8000",
        "::1",
        "10.0.0.1.evil.example",
        "*.wild.example@evil.example",
        "caf\xe9.example",
    ],
)
def test_another_host_is_refused_but_for_probes_and_metrics(host: str) -> None:
    assert status_for(host, "/v1/models") == 400
    for probe in ("/healthz", "/readyz", "/metrics"):
        assert status_for(host, probe) == 200


def test_the_host_is_refused_on_every_route_and_any_is_answered_by_default(serve: Serve) -> None:
    face = serve(base(), allowed_hosts=HOSTS)
    for target in ("/v1/models", "/v1/models/m/-/data/w", "/docs", "/nothing"):
        assert face.problem(target) == (400, "bad-host")
    assert face.get("/healthz").status == 200
    assert serve(base()).get("/v1/models").status == 200


def test_a_request_must_name_one_host(demo_root: Path) -> None:
    with Server(demo_root, allowed_hosts="test") as server:
        for hosts, status in ((b"Host: test\r\n", 200), (b"Host: test\r\nHost: test\r\n", 400), (b"", 400)):
            with Wire(server.port) as wire:
                wire.send(b"GET /v1/models HTTP/1.1\r\n" + hosts + b"\r\n")
                answer = wire.answer()
                assert answer.status == status, answer.body


def answer_to(app: ASGIApp, path: str, chunks: list[bytes], *headers: tuple[bytes, bytes]) -> tuple[int, bytes]:
    """The status and body of the answer to a body that comes in chunks."""
    sent: list[Message] = []
    left = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]
    left.append({"type": "http.request", "body": b"", "more_body": False})

    async def receive() -> Message:
        return left.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    scope: Scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": list(headers)}

    async def ask() -> None:
        await app(scope, receive, send)

    asyncio.run(ask())
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    return sent[0]["status"], sent[1]["body"]


CHUNKED = (b"transfer-encoding", b"chunked")


@pytest.mark.parametrize("path", ["/answers", "/raises"])
def test_a_chunked_body_is_counted(path: str) -> None:
    assert answer_to(rules(), path, [b"x" * 60, b"x" * 40], CHUNKED) == (200, b"100")
    assert answer_to(rules(), path, [], CHUNKED) == (200, b"0")
    status, body = answer_to(rules(), path, [b"x" * 60, b"x" * 41, b"x" * 1000], CHUNKED)
    problem = json.loads(body)
    assert (status, problem["type"], problem["limit"]) == (413, "/problems/body-too-large", 100)


def test_a_length_is_refused_before_the_body_is_read() -> None:
    assert answer_to(rules(), "/answers", [b"x" * 100], (b"content-length", b"100")) == (200, b"100")
    status, body = answer_to(rules(), "/answers", [], (b"content-length", b"101"))
    assert (status, json.loads(body)["type"]) == (413, "/problems/body-too-large")
    status, _ = answer_to(rules(), "/answers", [], (b"content-length", b"9" * 5000))
    assert status == 413


def test_on_the_wire_the_connection_lives_on_after_a_body_that_was_too_large(demo_root: Path) -> None:
    path = b"/v1/models/demo/-/data/formats.q4_k"
    with Server(demo_root, body_limit=1000, request_seconds=20) as server, Wire(server.port) as wire:
        wire.send(b"POST " + path + b" HTTP/1.1\r\nHost: test\r\nContent-Length: 1001\r\n\r\n")
        assert slug(wire.answer()) == (413, "body-too-large")
        wire.send(b"x" * 1001)
        assert wire.ask(path).status == 200
        # A body that nobody reads is passed over, whatever its size.
        wire.send(b"GET " + path + b" HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n")
        wire.send((b"800\r\n" + b"x" * 0x800 + b"\r\n") * 20 + b"0\r\n\r\n")
        assert wire.answer().status in (200, 413)
        assert wire.ask(b"/healthz").status == 200


def test_a_client_that_waits_to_send_its_body_is_refused_and_cut(demo_root: Path) -> None:
    """It sends its next request at once, where a client that does not wait would send the body."""
    path = b"/v1/models/demo/-/data/formats.q4_k"
    with Server(demo_root, body_limit=1000) as server, Wire(server.port) as wire:
        wire.send(b"POST " + path + b" HTTP/1.1\r\nHost: test\r\nContent-Length: 1001\r\nExpect: 100-continue\r\n\r\n")
        refused = wire.answer()
        assert slug(refused) == (413, "body-too-large")
        assert refused.headers["connection"] == "close"


LARGE = 100 << 10  # more than what is small; there is room for eight
LIMIT = 2 * LARGE


class Reading:
    """An application that reads a body and then waits to be told to go on: to its answer, or to an error."""

    def __init__(self) -> None:
        self.got: list[int] = []
        self.go_on = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read, wait, and answer in the way that the path names."""
        self.got.append(len(await Request(scope, receive).body()))
        await self.go_on.wait()
        if scope["path"] == "/listens":
            await receive()
        if scope["path"] == "/fails":
            raise RuntimeError
        await Response("read")(scope, receive, send)


class Post:
    """A request with a body that arrives as it is told to, and the messages of its answer."""

    def __init__(self, app: ASGIApp, path: str = "/", length: int | None = LARGE, *, chunked: bool = False) -> None:
        header = (b"content-length", str(length).encode())
        scope: Scope = {"type": "http", "method": "POST", "path": path, "query_string": b""}
        scope["headers"] = [CHUNKED] if chunked else [] if length is None else [header]
        self._arriving: asyncio.Queue[Message] = asyncio.Queue()
        self.sent: list[Message] = []
        self.task = asyncio.ensure_future(app(scope, self._arriving.get, self._send))

    async def _send(self, message: Message) -> None:
        self.sent.append(message)

    def arrive(self, size: int, *, more: bool = False) -> None:
        self._arriving.put_nowait({"type": "http.request", "body": bytes(size), "more_body": more})

    def leave(self) -> None:
        self._arriving.put_nowait({"type": "http.disconnect"})

    @property
    def status(self) -> int | None:
        return self.sent[0]["status"] if self.sent else None

    def assert_refused(self) -> None:
        assert self.status == 503
        headers = dict(self.sent[0]["headers"])
        assert (headers[b"retry-after"], headers[b"connection"]) == (b"1", b"close")
        problem = json.loads(self.sent[1]["body"])
        assert (problem["type"], problem["limit"]) == ("/problems/overloaded", 4 * LIMIT)


async def settle() -> None:
    """Let everything run that can."""
    for _ in range(20):
        await asyncio.sleep(0)


def in_loop(test: Callable[[Reading, RequestRules], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """A test of rules around a `Reading`, in a loop; every request must have ended by its end."""

    async def run() -> None:
        app = Reading()
        rules = RequestRules(app, url_limit=1024, body_limit=LIMIT, allowed_hosts=["*"])
        await test(app, rules)
        app.go_on.set()
        # Nothing is held: as much as at the start finds room, and has its turn.
        posts = [Post(rules) for _ in range(8)]
        for post in posts:
            post.arrive(LARGE)
        await asyncio.wait_for(asyncio.gather(*(post.task for post in posts)), 10)
        assert [post.status for post in posts] == [200] * 8

    return lambda: asyncio.run(run())


@in_loop
async def test_a_body_without_room_is_refused_before_it_is_read(app: Reading, rules: RequestRules) -> None:
    posts = [Post(rules) for _ in range(8)]
    await settle()
    refused = Post(rules)
    await settle()
    refused.assert_refused()
    # The connection is held until the client has sent everything or leaves: it would be reset else.
    assert not refused.task.done()
    refused.arrive(LARGE, more=True)
    refused.leave()
    await refused.task
    assert refused.sent[-1] == {"type": "http.response.body", "body": b""}
    # Others are answered meanwhile: without a body, with a small one, probes with any.
    app.go_on.set()
    for path, length in (("/", None), ("/", 0), ("/", 64 << 10), ("/healthz", LARGE)):
        post = Post(rules, path, length)
        post.arrive(length or 0)
        await post.task
        assert post.status == 200
    for post in posts:
        post.leave()
    results = await asyncio.gather(*(post.task for post in posts), return_exceptions=True)
    assert [type(result) for result in results] == [ClientDisconnect] * 8


@in_loop
async def test_a_chunked_body_takes_room_as_it_arrives(app: Reading, rules: RequestRules) -> None:
    app.go_on.set()
    growing = Post(rules, chunked=True)
    for _ in range(3):
        growing.arrive(20 << 10, more=True)
    await settle()
    posts = [Post(rules) for _ in range(8)]
    await settle()
    assert not any(post.sent for post in posts)
    growing.arrive(20 << 10, more=True)  # what makes it a large one
    await settle()
    growing.assert_refused()
    growing.leave()
    for post in posts:
        post.arrive(LARGE)
    await asyncio.gather(growing.task, *(post.task for post in posts))
    assert [post.status for post in posts] == [200] * 8
    large = Post(rules, chunked=True)
    large.arrive(LIMIT, more=True)
    large.arrive(1, more=True)
    await large.task
    assert large.status == 413


@pytest.mark.parametrize("path", ["/answers", "/listens", "/fails"])
def test_the_application_gets_one_large_body_at_a_time(path: str) -> None:
    @in_loop
    async def test(app: Reading, rules: RequestRules) -> None:
        posts = [Post(rules, path) for _ in range(3)]
        for post in posts:
            post.arrive(LARGE)
        await settle()
        assert app.got == [LARGE]
        small = Post(rules, "/answers", 10)
        small.arrive(10)
        await settle()
        assert app.got == [LARGE, 10]
        app.go_on.set()
        await settle()
        # One that listens has made what it answers, though nothing is sent yet.
        assert app.got == [LARGE, 10, LARGE, LARGE]
        assert not any(post.sent for post in posts) or path == "/answers"
        for post in posts:
            post.leave()
        await asyncio.gather(small.task, *(post.task for post in posts), return_exceptions=True)

    test()


def test_a_turn_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_TURN_SECONDS", 0.01)

    @in_loop
    async def test(app: Reading, rules: RequestRules) -> None:
        first, second = Post(rules), Post(rules)
        first.arrive(LARGE)
        await settle()
        second.arrive(LARGE)
        await second.task
        second.assert_refused()
        app.go_on.set()
        await first.task
        assert (first.status, app.got) == (200, [LARGE])
        monkeypatch.undo()

    test()


def test_on_the_wire_slow_bodies_keep_others_out_for_the_time_of_a_request(demo_root: Path) -> None:
    path = b"/v1/models/demo/-/data/formats.q4_k"
    content = b'{"rows":[0]' + b" " * (LARGE - 12) + b"}"
    head = b"POST " + path + b" HTTP/1.1\r\nHost: test\r\n"
    whole = head + b"Content-Length: %d\r\n\r\n" % LARGE + content
    with Server(demo_root, body_limit=LIMIT, request_seconds=3) as server, ExitStack() as stack:
        for _ in range(8):
            slow = stack.enter_context(Wire(server.port))
            slow.send(whole[:-1])
        with Wire(server.port) as wire:
            # Sent whole before anything is read: the answer is there all the same.
            wire.send(whole)
            refused = wire.answer()
            assert slug(refused) == (503, "overloaded")
            assert (refused.headers["retry-after"], refused.headers["connection"]) == ("1", "close")
        with Wire(server.port) as wire:
            assert wire.ask(path).status == 200
            wire.send(head + b'Content-Length: 12\r\n\r\n{"rows":[0]}')
            expected = wire.answer()
            assert expected.status == 200
        deadline = time.monotonic() + 60
        while True:
            with Wire(server.port) as wire:
                wire.send(whole)
                if (answer := wire.answer()).status == 200:
                    break
            assert slug(answer) == (503, "overloaded")
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert answer.body == expected.body


# Names that would end a header's line, its quotes or its character set.
NAMES = [
    b"crlf\r\nSet-Cookie: a=b\r\n\r\n<html>",
    b"lf\nX-Evil: 1",
    b"quote\".exe\"; filename*=UTF-8''evil.exe",
    b"back\\slash\\",
    "n\u00e4me \u2603 \U0001f980".encode(),
    "right\u202egnp.exe".encode(),
    "line\u2028next\u0085".encode(),
    b"latin\xe9\xff\x80",
    b"esc\x1b[31m\x00\x7f",
    b"../../etc/passwd",
    b"percent%0d%0aX-Evil: 1",
]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Face]]:
    root = tmp_path_factory.mktemp("hostile")
    tensors = [(name, [4, 2], 0, F8) for name in NAMES]
    files: dict[str | bytes, bytes] = {
        name.replace(b"/", b"_").replace(b"\0", b"_") + b".gguf": builder.build(tensors) for name in NAMES[:9]
    }
    write_files(root, files)
    face = Face(root)
    with Server(root) as server:
        yield server, face
    face.close()


@pytest.mark.case(71)
def test_no_name_breaks_out_of_a_header(hostile: tuple[Server, Face]) -> None:
    server, face = hostile
    models = [one["href"] for one in face.get("/v1/models").json["models"]]
    assert len(models) == 9
    expected = {
        "accept-ranges",
        "cache-control",
        "content-disposition",
        "content-length",
        "content-type",
        "date",
        "etag",
        "last-modified",
        "vary",
        "x-accel-buffering",
        "x-model-etag",
        "x-content-type-options",
        "x-request-id",
        "x-tensor-dtype",
        "x-tensor-shape",
        "x-tensor-type",
    }
    with Wire(server.port) as wire:
        for model in models:
            tensors = face.get(f"{model}/-/tensors").json["tensors"]
            assert len(tensors) == len(NAMES)
            for tensor in tensors:
                for form in ("raw", "npy", "json"):
                    answer = wire.ask(f"{tensor['data']}?format={form}".encode())
                    assert answer.status == 200
                    assert set(answer.headers) <= expected
                    disposition = answer.headers["content-disposition"]
                    assert disposition.isascii()
                    assert disposition.isprintable()
                    kind, _, rest = disposition.partition('; filename="')
                    name, _, extended = rest.partition('"')
                    assert kind == "attachment"
                    assert name.endswith({"raw": ".bin"}.get(form, f".{form}"))
                    assert not set('/\\"%') & set(name)
                    assert extended == "" or extended.startswith("; filename*=UTF-8''")
                    assert '"' not in extended


@pytest.mark.case(71)
def test_a_missing_name_breaks_out_of_no_header_either(hostile: tuple[Server, Face]) -> None:
    server, _ = hostile
    with Wire(server.port) as wire:
        for evil in (b"a%0d%0aX-Evil:%201", b"a%0aX-Evil:%201", b"a%22%ff", b"a%E2%80%A8b"):
            for target in (b"/v1/models/" + evil, b"/" + evil, b"/v1/data?tensor=w&model=" + evil):
                answer = wire.ask(target)
                assert answer.status == 404
                assert set(answer.headers) <= {
                    "cache-control",
                    "content-length",
                    "content-type",
                    "date",
                    "vary",
                    "x-content-type-options",
                    "x-request-id",
                }
    assert "X-Evil" not in [line.partition(":")[0].strip() for line in server.log]
