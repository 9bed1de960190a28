"""The gates: one that streams pass, and one that every request passes.

Streams: so many at a time, a few that wait for a moment, and a refusal for the others. Only answers of more than a
window are streams. What is answered at once passes by, so small requests are served however many large ones wait.

Requests: a few in each turn of the event loop, so that it looks at its sockets in between, and never one that watches
over the service.
"""

import asyncio
from collections import deque

from starlette.types import ASGIApp, Receive, Scope, Send

from app.errors import Unavailable
from app.limits import PROBES

__all__ = ["RequestGate", "StreamGate"]

# Measured with 100 connections that ask for a cached row: without this gate the worst hundredth waits for 740 ms, with
# 16 a turn for 140 ms, as many being served (4,700 a second, 4,400 without). With 4 it is 75 ms, but a quarter fewer.
_A_TURN = 16


class StreamGate:
    """Lets ``most`` streams in; whoever has entered must leave.

    Parameters
    ----------
    most
        Streams at a time.
    queue
        How many more may wait.
    patience
        Seconds that each of those waits.
    """

    def __init__(self, most: int, queue: int, patience: float) -> None:
        self._most = most
        self._queue = queue
        self._patience = patience
        self._open = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def open(self) -> int:
        """How many streams are inside."""
        return self._open

    async def enter(self) -> None:
        """Come in, or wait; raises Unavailable (``overloaded``) when that takes too long or too many wait.

        Who is cancelled while waiting has not entered, and leaves the queue.
        """
        if self._open < self._most:
            self._open += 1
            return
        if len(self._waiting) >= self._queue:
            raise self._refusal()
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            async with asyncio.timeout(self._patience):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self.leave()  # the place came in the same moment as the end of the wait
            elif turn in self._waiting:
                self._waiting.remove(turn)
            if isinstance(error, TimeoutError):
                raise self._refusal() from None
            raise

    def leave(self) -> None:
        """Leave: the place goes to the one who has waited longest."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._open -= 1

    def _refusal(self) -> Unavailable:
        return Unavailable(
            "overloaded",
            f"as many streams are running as may at a time: {self._most}. Try again in a moment, or ask for less: "
            "an answer of up to a window (1 MiB) is no stream.",
            limit=self._most,
        )


class RequestGate:
    """ASGI middleware that lets a few requests begin in each turn of the event loop, in order, and probes at once.

    The loop does all that it has to do before it looks at its sockets again: with hundreds of requests that came
    together, a probe that came a moment later would wait for all of them.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._left = _A_TURN
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._turns = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, when it may begin."""
        if scope["type"] == "http" and scope["path"] not in PROBES:
            loop = asyncio.get_running_loop()
            if not self._turns:
                self._turns = True
                loop.call_soon(self._turn, loop)
            if self._left:
                self._left -= 1
            else:
                turn = loop.create_future()
                self._waiting.append(turn)
                await turn
        await self._app(scope, receive, send)

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self._turns = self._left < _A_TURN or bool(self._waiting)
        self._left = _A_TURN
        while self._waiting and self._left:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                self._left -= 1
        if self._turns:
            loop.call_soon(self._turn, loop)
