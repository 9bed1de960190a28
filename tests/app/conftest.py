"""Two ways to ask the service: its ASGI application in this process, and a real server over a plain socket.

The first asks exactly what is written, unlike a client library, which resolves dots and encodes again. It holds
every answer against what all answers keep: an exact Content-Length, headers of one line, one shape of error.
"""

import asyncio
import json
import os
import re
import shutil
import socket
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote

import numpy as np
import pytest
from fastapi import FastAPI
from numpy.typing import NDArray
from starlette.types import Message, Scope

from app.server import create_app
from app.settings import Settings
from tests.demo import demo_model
from tests.server import Server

__all__ = ["Answer", "Face", "Serve", "Wire", "check_answer", "check_timing", "path_of", "slug", "write_files"]

Name = str | bytes


@dataclass(frozen=True)
class Answer:
    """What came back: the header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON; lone surrogates and bare NaNs are no JSON."""
        return json.loads(self.body.decode(), parse_constant=_no_constant)

    @property
    def floats(self) -> NDArray[np.float32]:
        """The body as little-endian float32."""
        return np.frombuffer(self.body, "<f4").astype(np.float32)

    @property
    def values(self) -> list[float]:
        """The same as a list, of a 200."""
        assert self.status == 200, self.body
        return [float(value) for value in self.floats]


def _no_constant(name: str) -> Any:
    raise AssertionError(f"{name} is no JSON")


def slug(answer: Answer) -> tuple[int, str]:
    """The status of a problem and the end of its type."""
    return answer.status, answer.json["type"].removeprefix("/problems/")


def path_of(model: str, verb: str, name: str | None = None) -> str:
    """A path of names that are percent-encoded already."""
    return f"/v1/models/{model}/-/{verb}" + ("" if name is None else f"/{name}")


class Face:
    """The service on a folder, asked through ASGI in this process."""

    def __init__(self, root: Path, **settings: Any) -> None:
        self.root = root
        self.app: FastAPI = create_app(Settings(root=root, **{"recheck_seconds": 0, "decode_threads": 2, **settings}))
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()
        self._runner.run(self._stack.enter_async_context(self.app.router.lifespan_context(self.app)))

    def get(self, target: str | bytes, method: str = "GET", headers: Mapping[str, str] | None = None) -> Answer:
        """Ask for a path and query, sent as they are."""
        return self._runner.run(self.ask(target, method, headers))

    def post(self, target: str, body: object) -> Answer:
        """Post bytes, or anything else as JSON."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self._runner.run(self.ask(target, "POST", {"Content-Type": "application/json"}, content))

    def together(self, targets: list[str]) -> list[Answer]:
        """Ask for all of them at the same time."""

        async def every() -> list[Answer]:
            return await asyncio.gather(*(self.ask(target) for target in targets))

        return self._runner.run(every())

    def problem(self, target: str | bytes) -> tuple[int, str]:
        """The status and the slug of the problem that is the answer."""
        return slug(self.get(target))

    async def ask(
        self, target: str | bytes, method: str = "GET", headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> Answer:
        """Ask, and check what every answer must keep."""
        raw = target.encode() if isinstance(target, str) else target
        raw_path, _, query = raw.partition(b"?")
        scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": unquote(raw_path.decode("latin-1")),
            "raw_path": raw_path,
            "query_string": query,
            "root_path": "",
            "headers": [(b"host", b"localhost")]
            + [(k.lower().encode(), v.encode()) for k, v in {"X-Request-ID": "test", **(headers or {})}.items()],
            "client": ("127.0.0.1", 1),
            "server": ("test", 80),
            "state": {},
        }
        asked = False
        sent: list[Message] = []

        async def receive() -> Message:
            nonlocal asked
            if asked:
                await asyncio.Event().wait()  # a client that stays
            asked = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Message) -> None:
            # A copy: what the application lends may change once the send is over.
            sent.append({**message, "body": bytes(message.get("body", b""))})

        await self.app(scope, receive, send)
        return _answer(method, sent)

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something in the loop of the service."""
        self._runner.run(work)

    def close(self) -> None:
        """End the service and its loop."""
        self._runner.run(self._stack.aclose())
        self._runner.close()


def _answer(method: str, sent: list[Message]) -> Answer:
    assert [message["type"] for message in sent[:2]] == ["http.response.start", "http.response.body"]
    assert not sent[-1].get("more_body"), "the answer has no end"
    raw: list[tuple[bytes, bytes]] = sent[0]["headers"]
    assert len({name for name, _ in raw}) == len(raw)
    headers = {name.decode("ascii"): value.decode("latin-1") for name, value in raw}
    check_timing(headers)
    answer = Answer(sent[0]["status"], headers, b"".join(message["body"] for message in sent[1:]))
    check_answer(answer, method)
    return answer


def check_timing(headers: dict[str, str]) -> None:
    """Take the Server-Timing out of the headers, which are otherwise the same for the same question, and check it."""
    timing = headers.pop("server-timing", None)
    assert timing is None or re.fullmatch(r"first;dur=\d+\.\d", timing), timing


def check_answer(answer: Answer, method: str) -> None:
    """What every answer keeps."""
    headers = answer.headers
    assert all(name == name.lower() and value.isprintable() for name, value in headers.items()), headers
    assert "transfer-encoding" not in headers
    assert headers["x-content-type-options"] == "nosniff"
    if answer.status == 304:
        assert answer.body == b""
    elif method != "HEAD":
        assert int(headers["content-length"]) == len(answer.body)
    if answer.status >= 400:
        assert headers["content-type"] == "application/problem+json"
        assert headers["cache-control"] == "no-store"
        if method != "HEAD":
            body = answer.json
            assert list(body)[:4] == ["type", "title", "status", "detail"]
            assert re.fullmatch(r"/problems/[a-z]+(-[a-z]+)*", body["type"])
            assert body["status"] == answer.status != 500
            assert body["title"]
            assert len(body["detail"]) < 2000
            assert body["detail"][-1] in ".?)"


Serve = Callable[..., Face]


def write_files(root: Path, files: Mapping[Name, bytes]) -> None:
    """Write files below a folder, by names that may be any bytes."""
    for name, content in files.items():
        path = os.path.join(os.fsencode(root), os.fsencode(name))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(content)


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Face]:
    """One service for many tests, each with files of its own: to make another takes as long as twenty requests."""
    face = Face(tmp_path_factory.mktemp("shared") / "volume")
    yield face
    face.close()


@pytest.fixture
def serve(shared: Face, tmp_path: Path) -> Iterator[Serve]:
    """Serve files: ``serve({"m.gguf": bytes})``, or ``serve(bytes)`` for that one.

    With settings, ``serve(files, **settings)``, it is a service of the test's own.
    """
    with ExitStack() as stack:

        def make(files: Mapping[Name, bytes] | bytes, **settings: Any) -> Face:
            if settings:
                face = Face(tmp_path / "volume", **settings)
                stack.callback(face.close)
            else:
                face = shared
                stack.callback(shutil.rmtree, face.root.parent, ignore_errors=True)
            write_files(face.root, {"m.gguf": files} if isinstance(files, bytes) else files)
            return face

        yield make


@pytest.fixture(scope="session")
def demo_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the demo model."""
    root = tmp_path_factory.mktemp("demo")
    (root / "demo.gguf").write_bytes(demo_model())
    return root


@pytest.fixture(scope="module")
def demo(demo_root: Path) -> Iterator[Face]:
    """The service on the demo model."""
    face = Face(demo_root)
    yield face
    face.close()


@pytest.fixture(scope="module")
def demo_server(demo_root: Path) -> Iterator[Server]:
    """A real server on the demo model."""
    with Server(demo_root, recheck_seconds=0) as server:
        yield server


class Wire:
    """A connection to a server: bytes out, answers in, with nothing left over between them."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        self._reader = self._socket.makefile("rb")

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._socket.sendall(data)

    def ask(self, target: bytes, method: bytes = b"GET", headers: bytes = b"") -> Answer:
        """Send a request and read its answer: as many bytes of body as Content-Length says."""
        if b"x-request-id" not in headers.lower():  # the same for all, so that answers can be compared
            headers += b"X-Request-ID: test\r\n"
        self.send(method + b" " + target + b" HTTP/1.1\r\nHost: localhost\r\n" + headers + b"\r\n")
        return self.answer(method.decode())

    def answer(self, method: str = "GET") -> Answer:
        """Read the next answer."""
        head = self._reader.readline()
        assert re.fullmatch(rb"HTTP/1\.1 \d{3} [^\r\n]*\r\n", head), head
        headers: dict[str, str] = {}
        while (line := self._reader.readline()) != b"\r\n":
            name, colon, value = line.decode("latin-1").rstrip("\r\n").partition(": ")
            assert colon, line
            assert name.lower() not in headers
            headers[name.lower()] = value
        check_timing(headers)
        status = int(head.split()[1])
        size = 0 if method == "HEAD" or status == 304 else int(headers["content-length"])
        answer = Answer(status, headers, self._reader.read(size))
        assert len(answer.body) == size
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._reader.close()
        self._socket.close()
