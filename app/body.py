"""The body of an answer of weights: made a few pieces ahead of the socket, and stopped when nobody listens."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.content import Content, Section, content_length
from app.errors import Problem
from app.gate import StreamGate
from app.names import text
from app.observe import record_of
from app.plan import Piece, plan
from app.reader import Chunk, Reader
from app.snapshot import Snapshot
from app.windows import WINDOW_WEIGHTS

__all__ = ["WeightsResponse"]

_log = logging.getLogger("tensortap")
_KEPT_TEXT = 1 << 20
_STALL_SECONDS = 2
_LARGEST_PASSED = WINDOW_WEIGHTS * 4
_NO_PIECE = Piece((), 0)


class WeightsResponse(Response):
    """An ASGI response that streams a content, and releases its snapshot when it is done, however it ends.

    The first chunk is made before the status is sent, so what fails at once is still a problem document. A failure
    after that ends the connection short of its Content-Length: the client can tell, and gets no bytes that are not
    weights.

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
        self._ahead: deque[_Step] = deque()
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
                await self._send(self._chunks(gone), send, gone)
            else:
                await self._enter(gone)
                try:
                    await self._send_stream(gone, send)
                finally:
                    self._gate.leave()
        except _ClientLeft:
            record_of(scope).outcome = "client left"
        except asyncio.CancelledError:
            # The server ends what still runs when its grace is over. Nobody waits for this task: it may just end.
            _log.error("aborted an answer of model %r: the service stops", text(self._snapshot.model_id))
        finally:
            self._over = True
            gone.stop()
            self._snapshot.release()

    async def _enter(self, gone: "_Gone") -> None:
        """Come in at the gate; raises _ClientLeft if the client leaves the queue, where it would keep a place."""
        entering = asyncio.ensure_future(self._gate.enter())
        try:
            await gone.first(entering)
            entering.result()
        except BaseException:
            if not entering.cancel() and not entering.cancelled() and entering.exception() is None:
                self._gate.leave()  # it came in, in the same moment as the end of the wait
            raise

    async def _send_stream(self, gone: "_Gone", send: Send) -> None:
        """Send a body of any length; a text is made to measure it first, and made again if it is too large to keep."""
        if self._length is not None:
            await self._send(self._chunks(gone), send, gone)
            return
        length, kept = 0, list[Chunk]()
        async with aclosing(self._chunks(gone)) as chunks:
            async for chunk in chunks:
                length += len(chunk)
                if length <= _KEPT_TEXT:
                    kept.append(chunk)
        self.raw_headers.append((b"content-length", str(length).encode()))
        await self._send(_each(kept) if length <= _KEPT_TEXT else self._chunks(gone), send, gone)

    async def _send(self, chunks: AsyncGenerator[Chunk], send: Send, gone: "_Gone") -> None:
        started = False
        loop = asyncio.get_running_loop()
        async with aclosing(chunks):
            try:
                async for chunk in chunks:
                    if not started:
                        await self._start(send)
                        started = True
                    stalled = loop.call_later(_STALL_SECONDS, self._let_go) if self._ahead else None
                    # A memoryview of the window goes to the socket as it is: nothing is copied on the way.
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
                    if stalled is not None:
                        # A server waits for its client before it writes, not after: asked to write nothing, it waits
                        # for this chunk to go, so that a stalled client holds one chunk and not two.
                        await send({"type": "http.response.body", "body": b"", "more_body": True})
                        stalled.cancel()
                        if gone.known:
                            raise _ClientLeft
            except (Problem, MemoryError) as error:
                if not started:
                    raise
                _log.error("aborted an answer of model %r: %s", text(self._snapshot.model_id), error)
                return  # short of its Content-Length, at which the server closes the connection
        if not started:
            await self._start(send)
        await send({"type": "http.response.body", "body": b""})

    async def _start(self, send: Send) -> None:
        """Send the status and the headers, with the time that the first chunk took: it is there by now."""
        took = f"first;dur={(perf_counter() - self._began) * 1e3:.1f}".encode()
        headers = [*self.raw_headers, (b"server-timing", took)]
        await send({"type": "http.response.start", "status": self.status_code, "headers": headers})

    async def _chunks(self, gone: "_Gone") -> AsyncGenerator[Chunk]:
        """The chunks of the body in order; raises _ClientLeft when nobody is there to take the next one."""
        ahead = self._ahead
        try:
            for step in self._steps():
                step.chunk = self._begun(step)
                ahead.append(step)
                if len(ahead) > self._read_ahead:
                    yield await self._landed(ahead.popleft(), gone)
            while ahead:
                yield await self._landed(ahead.popleft(), gone)
        finally:
            self._let_go()
            ahead.clear()

    def _steps(self) -> "Iterator[_Step]":
        """The content piece by piece; the first and the last piece of a section are cut to its byte range."""
        for element in self._content:
            if isinstance(element, bytes):
                yield _Step(element)
                continue
            n_items = min(element.selection.n_items, element.source.n_items)
            scan = n_items * element.source.dtype.itemsize > self._reader.cache.budget
            start, skip, left = 0, element.skip, element.n_bytes
            for piece in plan(element.selection, element.source.window_items):
                stop = None
                if left is not None and element.item_bytes is not None:
                    stop = min(piece.n_items * element.item_bytes, skip + left)
                    left -= stop - skip
                yield _Step(element, piece, start, scan, slice(skip, stop))
                start, skip = start + piece.n_items, 0

    def _begun(self, step: "_Step") -> Chunk | asyncio.Future[Chunk]:
        if isinstance(step.element, bytes):
            return step.element
        return self._reader.chunk(step.element, step.piece, step.start, scan=step.scan, wanted=self._is_wanted)

    def _is_wanted(self) -> bool:
        return not self._over

    async def _landed(self, step: "_Step", gone: "_Gone") -> Chunk:
        # A chunk that was let go of while the client stalled is made again.
        chunk = await gone.unless(self._begun(step) if step.chunk is None else step.chunk)
        return chunk[step.cut] if step.cut else chunk

    def _let_go(self) -> None:
        """Drop the chunks made ahead: a client that takes nothing for a while shall not hold their memory."""
        for step in self._ahead:
            chunk, step.chunk = step.chunk, None
            # Taking the error of one that failed meanwhile tells asyncio that it is dealt with.
            if isinstance(chunk, asyncio.Future) and not chunk.cancel() and not chunk.cancelled():
                chunk.exception()


@dataclass(slots=True)
class _Step:
    """Literal bytes, or a piece of a section, and its chunk once that is made or being made."""

    element: bytes | Section
    piece: Piece = _NO_PIECE
    start: int = 0
    scan: bool = False
    cut: slice | None = None
    chunk: Chunk | asyncio.Future[Chunk] | None = None


class _ClientLeft(Exception):
    """The client has closed the connection."""


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

    async def unless(self, chunk: Chunk | asyncio.Future[Chunk]) -> Chunk:
        """The chunk when it is made; raises _ClientLeft if the client leaves before."""
        if not isinstance(chunk, asyncio.Future):
            return chunk
        await self.first(chunk)
        return chunk.result()

    async def first(self, awaited: asyncio.Future[Any]) -> None:
        """Wait until something is done; raises _ClientLeft, and cancels it, if the client leaves before."""
        if awaited.done():
            return
        if not (self.known or self._task is None):
            await asyncio.wait((awaited, self._task), return_when=asyncio.FIRST_COMPLETED)
        if not awaited.done():
            awaited.cancel()
            raise _ClientLeft

    def stop(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass


async def _each(chunks: list[Chunk]) -> AsyncGenerator[Chunk]:
    for chunk in chunks:
        yield chunk
