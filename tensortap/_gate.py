"""What keeps the threads of a read from touching memory that is the caller's again, and from being too many."""

from __future__ import annotations

import threading
from types import TracebackType

__all__ = ["Gate", "Slots", "Stopped"]


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


class Slots:
    """How many attempts there may be at a time; each is taken for the read that has the gate."""

    def __init__(self, most: int) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._free = most
        self._taken: dict[Gate, int] = {}
        self._is_open = False

    def take(self, gate: Gate) -> None:
        """Wait for a free one; raises Stopped if the read is over before."""
        with self._changed:
            while not (self._free > 0 or self._is_open or gate.closed.is_set()):
                self._changed.wait()
            if gate.closed.is_set():
                raise Stopped
            self._free -= 1
            self._taken[gate] = self._taken.get(gate, 0) + 1

    def give(self, gate: Gate) -> None:
        """Give one back, if `give_all` has not."""
        with self._changed:
            if gate in self._taken:
                self._give(gate, 1)

    def give_all(self, gate: Gate) -> None:
        """Give all of a closed gate back, and wake who waits there."""
        with self._changed:
            self._give(gate, self._taken.get(gate, 0))

    def open(self) -> None:
        """Let everybody take one from now on: what is closed gives each its error."""
        with self._changed:
            self._is_open = True
            self._changed.notify_all()

    def _give(self, gate: Gate, n: int) -> None:
        self._free += n
        left = self._taken.pop(gate, 0) - n
        if left > 0:
            self._taken[gate] = left
        self._changed.notify_all()
