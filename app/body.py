"""The body of an answer of weights: pieces made a few ahead of the socket, and stopped when nobody listens."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.errors import Problem
from app.names import text
from app.observe import record_of
from app.plan import Visit, plan
from app.reader import Piece, Reader
from app.representation import Representation

__all__ = ["WeightsResponse"]

_log = logging.getLogger("tensortap")
_KEPT_TEXT = 1 << 20
_STALL_SECONDS = 2


class WeightsResponse(Response):
    """An ASGI response that streams a representation, and releases its snapshot when it is done, however it ends.

    The first piece is made before the status is sent, so what fails at once is still a problem document. A failure
    after that ends the connection short of its Content-Length: the client can tell, and gets no bytes that are not
    weights.

    Parameters
    ----------
    representation
        What to send; its snapshot must be held for this response.
    reader
        What makes the pieces.
    read_ahead
        Pieces made ahead of the socket. With the one being sent they are all the memory a stream takes.
    cache_control
        The value of that header.
    """

    def __init__(self, representation: Representation, reader: Reader, *, read_ahead: int, cache_control: str) -> None:
        self._representation = representation
        self._reader = reader
        self._read_ahead = read_ahead
        self._length = representation.length
        self._ahead: deque[_Ahead] = deque()
        self.status_code = 200
        self.background = None
        self.body = b""
        headers = {
            "Content-Type": representation.media_type,
            "ETag": representation.etag,
            "Cache-Control": cache_control,
            **representation.headers,
        }
        if self._length is not None:
            headers["Content-Length"] = str(self._length)
        self.raw_headers = [
            (name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer."""
        gone = _Gone(receive)
        try:
            if scope["method"] == "HEAD":
                await self._start(send)
                await send({"type": "http.response.body", "body": b""})
            elif self._length is None:
                await self._send_text(gone, send)
            else:
                await self._send(self._pieces(gone), send, gone)
        except _ClientLeft:
            record_of(scope).outcome = "client left"
        finally:
            gone.stop()
            self._representation.source.snapshot.release()

    async def _send_text(self, gone: "_Gone", send: Send) -> None:
        """Measure a text by making it, then send it: what is small is kept, what is large is made again."""
        length, kept = 0, list[Piece]()
        async with aclosing(self._pieces(gone)) as pieces:
            async for piece in pieces:
                length += len(piece)
                if length <= _KEPT_TEXT:
                    kept.append(piece)
        self.raw_headers.append((b"content-length", str(length).encode()))
        await self._send(_each(kept) if length <= _KEPT_TEXT else self._pieces(gone), send, gone)

    async def _send(self, pieces: AsyncGenerator[Piece], send: Send, gone: "_Gone") -> None:
        started = False
        loop = asyncio.get_running_loop()
        async with aclosing(pieces):
            try:
                async for piece in pieces:
                    if not started:
                        await self._start(send)
                        started = True
                    stalled = loop.call_later(_STALL_SECONDS, self._let_go) if self._ahead else None
                    # A memoryview of the window goes to the socket as it is: nothing is copied on the way.
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                    if stalled is not None:
                        # A server waits for its client before it writes, not after: asked to write nothing, it waits
                        # for this piece to go, so that a stalled client holds one piece and not two.
                        await send({"type": "http.response.body", "body": b"", "more_body": True})
                        stalled.cancel()
                        if gone.known:
                            raise _ClientLeft
            except (Problem, MemoryError) as error:
                if not started:
                    raise
                tensor = self._representation.source.tensor
                _log.error("aborted an answer of tensor %r: %s", text(tensor.name), error)
                return  # short of its Content-Length, at which the server closes the connection
        if not started:
            await self._start(send)
        await send({"type": "http.response.body", "body": b""})

    async def _start(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})

    async def _pieces(self, gone: "_Gone") -> AsyncGenerator[Piece]:
        """The pieces of the body in order; raises _ClientLeft when nobody is there to take the next one."""
        representation = self._representation
        if representation.prefix:
            yield representation.prefix
        items_bytes = representation.selection.n_items * representation.source.dtype.itemsize
        scan = items_bytes > self._reader.cache.budget
        ahead = self._ahead
        start = 0
        try:
            for visit in plan(representation.selection, representation.source.window_items):
                ahead.append(_Ahead(visit, start, self._reader.piece(representation, visit, start, scan=scan)))
                start += visit.n_items
                if len(ahead) > self._read_ahead:
                    yield await self._landed(ahead.popleft(), gone, scan)
            while ahead:
                yield await self._landed(ahead.popleft(), gone, scan)
        finally:
            self._let_go()
            ahead.clear()
        if representation.suffix:
            yield representation.suffix

    async def _landed(self, first: "_Ahead", gone: "_Gone", scan: bool) -> Piece:
        piece = first.piece
        if piece is None:  # let go of while the client stalled
            piece = self._reader.piece(self._representation, first.visit, first.start, scan=scan)
        return await gone.unless(piece)

    def _let_go(self) -> None:
        """Drop the pieces made ahead: a client that takes nothing for a while shall not hold their memory."""
        for one in self._ahead:
            piece, one.piece = one.piece, None
            # Taking the error of one that failed meanwhile tells asyncio that it is dealt with.
            if isinstance(piece, asyncio.Future) and not piece.cancel() and not piece.cancelled():
                piece.exception()


@dataclass(slots=True)
class _Ahead:
    """A visit whose piece is made, or being made, before the socket is ready for it; None once it was let go of."""

    visit: Visit
    start: int
    piece: Piece | asyncio.Future[Piece] | None


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

    async def unless(self, piece: Piece | asyncio.Future[Piece]) -> Piece:
        """The piece when it is made; raises _ClientLeft if the client leaves before."""
        if not isinstance(piece, asyncio.Future):
            return piece
        if not piece.done():
            if self.known or self._task is None:
                piece.cancel()
                raise _ClientLeft
            await asyncio.wait((piece, self._task), return_when=asyncio.FIRST_COMPLETED)
            if not piece.done():
                piece.cancel()
                raise _ClientLeft
        return piece.result()

    def stop(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass


async def _each(pieces: list[Piece]) -> AsyncGenerator[Piece]:
    for piece in pieces:
        yield piece
