"""The gate that streams pass: so many at a time, a few that wait for a moment, and a refusal for the others.

Only answers of more than a window are streams. What is answered at once passes by, so small requests are served
however many large ones wait.
"""

import asyncio
from collections import deque

from app.errors import Unavailable

__all__ = ["StreamGate"]


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
