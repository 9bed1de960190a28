"""What keeps the threads of a read from touching memory that is the caller's again."""

from __future__ import annotations

import threading
from types import TracebackType

__all__ = ["Gate", "Stopped"]


class Stopped(Exception):
    """The read is over: another part of it has failed, or it was interrupted."""


class Gate:
    """Threads of a read touch memory only inside of the gate, and wait for the network outside.

    So a read that fails, or is interrupted, ends at once, although a thread of it may wait for a server that has
    stalled: that thread finds the gate closed when it wakes up.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._inside = 0
        self.closed = threading.Event()

    def close(self) -> None:
        """Let nobody in any more, and wait until all who are inside have left."""
        with self._changed:
            self.closed.set()
            while self._inside:
                self._changed.wait()

    def __enter__(self) -> None:
        with self._changed:
            if self.closed.is_set():
                raise Stopped
            self._inside += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._changed:
            self._inside -= 1
            if not self._inside:
                self._changed.notify_all()
