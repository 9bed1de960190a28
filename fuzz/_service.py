"""The service on a folder of a few files, in this process, asked exactly what an input says."""

import asyncio
import atexit
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from starlette.types import Message, Scope

from app.server import create_app
from app.settings import Settings
from tests.app.conftest import Answer, check_answer, check_timing, write_files

__all__ = ["Answer", "Service"]

Headers = Sequence[tuple[bytes, bytes]]


class Service:
    """The application on files below a folder of its own, which goes with the process. Settings are the service's."""

    def __init__(self, files: Mapping[str | bytes, bytes], links: Mapping[str, str] | None = None, **settings: Any):
        self._folder = tempfile.TemporaryDirectory(prefix="fuzz-")
        self.root = os.path.join(self._folder.name, "volume")
        os.mkdir(self.root)
        write_files(Path(self.root), files)
        for name, target in (links or {}).items():
            os.symlink(target, os.path.join(self.root, name))
        defaults = {"recheck_seconds": 3600, "decode_threads": 2, "cache_bytes": 16 << 20}
        self._app = create_app(Settings(root=Path(self.root), **{**defaults, **settings}))
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()
        self._runner.run(self._stack.enter_async_context(self._app.router.lifespan_context(self._app)))
        atexit.register(self._close)

    def ask(self, method: str, target: bytes, headers: Iterable[tuple[bytes, bytes]] = (), body: bytes = b"") -> Answer:
        """The answer to a request, held against what every answer keeps; ``target`` is ASCII."""
        return self._runner.run(self._ask(method, target, [*headers], body))

    async def _ask(self, method: str, target: bytes, headers: list[tuple[bytes, bytes]], body: bytes) -> Answer:
        raw_path, _, query = target.partition(b"?")
        scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": unquote(raw_path.decode("ascii")),
            "raw_path": raw_path,
            "query_string": query,
            "root_path": "",
            "headers": [(b"host", b"localhost"), *((name.lower(), value) for name, value in headers)],
            "client": ("127.0.0.1", 1),
            "server": ("test", 80),
            "state": {},
        }
        left = [{"type": "http.request", "body": body, "more_body": False}]
        sent: list[Message] = []

        async def receive() -> Message:
            if not left:
                await asyncio.Event().wait()  # a client that stays
            return left.pop()

        async def send(message: Message) -> None:
            # A copy: what the application lends may change once the send is over.
            sent.append({**message, "body": bytes(message.get("body", b""))})

        await self._app(scope, receive, send)
        return _checked(method, sent)

    def _close(self) -> None:
        self._runner.run(self._stack.aclose())
        self._runner.close()
        self._folder.cleanup()


def _checked(method: str, sent: list[Message]) -> Answer:
    assert [message["type"] for message in sent[:2]] == ["http.response.start", "http.response.body"]
    assert not sent[-1].get("more_body"), "the answer has no end"
    raw: list[tuple[bytes, bytes]] = sent[0]["headers"]
    assert len({name for name, _ in raw}) == len(raw), raw
    headers = {name.decode("ascii"): value.decode("latin-1") for name, value in raw}
    check_timing(headers)
    answer = Answer(sent[0]["status"], headers, b"".join(message["body"] for message in sent[1:]))
    check_answer(answer, method)
    return answer
