"""The body of an answer of weights: made a few pieces ahead of the socket, and stopped when nobody listens."""

import asyncio
import logging
from collections.abc import Iterator, Mapping
from contextlib import suppress
from time import perf_counter
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.content import Content, content_length
from app.errors import Problem, exhausted
from app.gate import StreamGate
from app.names import text
from app.observe import record_of
from app.reader import Reader
from app.snapshot import Snapshot
from app.steps import Chunk, Step, steps_of
from app.stream import Stream
from app.windows import WINDOW_WEIGHTS
from app.wire import WIRE, ClientLeft, Wire

__all__ = ["WeightsResponse"]

_log = logging.getLogger("tensortap")
_KEPT_TEXT = 1 << 20
_LARGEST_PASSED = WINDOW_WEIGHTS * 4


class WeightsResponse(Response):
    """An ASGI response that streams a content, and releases its snapshot when it is done, however it ends.

    The first chunk is made before the status is sent, and all chunks of an answer of no more than a window: what fails
    before that is still a problem document. A failure after it ends the connection short of its Content-Length: the
    client can tell, and gets no bytes that are not weights.

    Parameters
    ----------
    status, headers
        What comes before the body; the Content-Length is added.
    content
        What to send.
    snapshot
        Where it is read from; it must be held for this response.
    reader
        What makes the chunks.
    gate
        What an answer of more than a window must pass.
    read_ahead
        Pieces made ahead of the socket. With the one being sent they are all the memory a stream takes.
    """

    def __init__(
        self,
        status: int,
        headers: Mapping[str, str],
        content: Content,
        snapshot: Snapshot,
        reader: Reader,
        gate: StreamGate,
        *,
        read_ahead: int,
    ) -> None:
        self._content = content
        self._snapshot = snapshot
        self._reader = reader
        self._gate = gate
        self._read_ahead = read_ahead
        self._length = content_length(content)
        self._began = perf_counter()
        self._over = False
        self.status_code = status
        self.background = None
        self.body = b""
        self.raw_headers = [
            (name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()
        ]
        if self._length is not None:
            self.raw_headers.append((b"content-length", str(self._length).encode()))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer."""
        gone = _Gone(receive)
        try:
            if scope["method"] == "HEAD":
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                await send({"type": "http.response.body", "body": b""})
            elif self._length is not None and self._length <= _LARGEST_PASSED:
                await self._pass(send, gone)
            else:
                await self._enter(gone)
                try:
                    steps = self._steps() if self._length is not None else await self._measured(gone)
                    await self._send(steps, send, gone, scope)
                finally:
                    self._gate.leave()
        except ClientLeft:
            record_of(scope).outcome = "client left"
        except asyncio.CancelledError:
            # The server ends what still runs when its grace is over. Nobody waits for this task: it may just end.
            if record_of(scope).status is None:
                raise
            _log.error("aborted an answer of model %r: the service stops", text(self._snapshot.model_id))
        finally:
            self._over = True
            gone.stop()
            self._snapshot.release()

    async def _enter(self, gone: "_Gone") -> None:
        """Come in at the gate; raises ClientLeft if the client leaves the queue, where it would keep a place."""
        entering = asyncio.ensure_future(self._gate.enter())
        try:
            await gone.first(entering)
            entering.result()
        except BaseException:
            if not entering.cancel() and not entering.cancelled() and entering.exception() is None:
                self._gate.leave()  # it came in, in the same moment as the end of the wait
            raise

    def _steps(self) -> Iterator[Step]:
        return steps_of(self._content, self._reader.cache.budget)

    async def _measured(self, gone: "_Gone") -> Iterator[Step]:
        """The steps of a text, which is made to measure it, and made again if it is too large to keep."""
        length, kept = 0, list[Step]()
        for step in self._steps():
            chunk = await self._made(step, gone)
            length += len(chunk)
            if length <= _KEPT_TEXT:
                kept.append(Step(bytes(chunk)))
        self._length = length
        self.raw_headers.append((b"content-length", str(length).encode()))
        return iter(kept) if length <= _KEPT_TEXT else self._steps()

    async def _pass(self, send: Send, gone: "_Gone") -> None:
        """Send an answer of no more than a window, which is whole before it begins.

        What fails is a problem document then, wherever it fails, and small answers leave the process in one piece: a
        proxy can ask another replica for what this one is killed over.
        """
        chunks: list[Chunk] = []
        for step in self._steps():
            if chunks:
                chunks[-1] = bytes(chunks[-1])  # a view would keep all of its window in memory
            chunks.append(await self._made(step, gone))
        await self._start(send)
        await send({"type": "http.response.body", "body": chunks[0] if len(chunks) == 1 else b"".join(chunks)})

    async def _send(self, steps: Iterator[Step], send: Send, gone: "_Gone", scope: Scope) -> None:
        """Send the steps of a stream, over the wire if the server has one for it."""
        started = False
        try:
            for step in steps:
                step.chunk = await self._made(step, gone)
                if not started:
                    await self._start(send)
                    started = True
                    if (extension := scope.get("extensions", {}).get(WIRE)) is not None:
                        await send({"type": "http.response.body", "body": b"", "more_body": True})
                        if (wire := await extension["open"]()) is not None:
                            await self._stream(step, steps, wire, scope, gone)
                            break
                # A memoryview of the window goes to the socket as it is: nothing is copied on the way.
                await send({"type": "http.response.body", "body": step.chunk, "more_body": True})
                step.chunk = None
                if gone.known:
                    raise ClientLeft
        except Exception as error:
            problem = error if isinstance(error, Problem) else exhausted(error)
            if not started or problem is None:
                raise
            _log.error("aborted an answer of model %r: %s", text(self._snapshot.model_id), problem)
            return  # short of its Content-Length, at which the server closes the connection
        if not started:
            await self._start(send)
        await send({"type": "http.response.body", "body": b""})

    async def _stream(self, first: Step, steps: Iterator[Step], wire: Wire, scope: Scope, gone: "_Gone") -> None:
        stream = Stream(first, steps, wire, self._reader, self._snapshot, self._read_ahead)
        try:
            done = stream.start()
            with suppress(ClientLeft):  # it may have done so with all that it wanted
                await gone.first(done)
            stream.stop()
            await stream.ended
            if stream.sent != self._length:
                if done.cancelled():
                    raise ClientLeft
                done.result()
        finally:
            stream.stop()
            wire.account(stream.sent)
            record_of(scope).bytes_sent += stream.sent

    async def _start(self, send: Send) -> None:
        """Send the status and the headers, with the time that the first chunk took: it is there by now."""
        took = f"first;dur={(perf_counter() - self._began) * 1e3:.1f}".encode()
        headers = [*self.raw_headers, (b"server-timing", took)]
        await send({"type": "http.response.start", "status": self.status_code, "headers": headers})

    async def _made(self, step: Step, gone: "_Gone") -> Chunk:
        """The chunk of a step; raises ClientLeft if the client leaves before it is made."""
        chunk = self._reader.begin(step, self._is_wanted)
        if not isinstance(chunk, asyncio.Future):
            return chunk
        await gone.first(chunk)
        return chunk.result()

    def _is_wanted(self) -> bool:
        return not self._over


class _Gone:
    """Knows when the client has left; looks only once there is something to wait for."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._task: asyncio.Task[None] | None = None

    @property
    def known(self) -> bool:
        """Whether the client is known to have left."""
        if self._task is None:
            self._task = asyncio.create_task(self._watch())
        return self._task.done()

    async def first(self, awaited: asyncio.Future[Any]) -> None:
        """Wait until something is done; raises ClientLeft, and cancels it, if the client leaves before."""
        if awaited.done():
            return
        if not (self.known or self._task is None):
            await asyncio.wait((awaited, self._task), return_when=asyncio.FIRST_COMPLETED)
        if not awaited.done():
            awaited.cancel()
            raise ClientLeft

    def stop(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
