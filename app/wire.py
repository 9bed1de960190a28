"""The wire: a connection's socket, for bodies that threads send past the event loop.

The loop's own transport would hold the interpreter while the system copies what it is given, 0.1 to 0.2 ms for a
window, which the threads that decode would spend waiting. And what a thread has just decoded is in its core's cache:
sent from there, it costs half of what it costs a moment later from another core.
"""

import os
import select
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from app.buffers import lend
from app.splice import Pipe

__all__ = ["WIRE", "ClientLeft", "Wire"]

WIRE = "tensortap.wire"
"""The ASGI extension of a connection.

``open``: gives a response its wire, once nothing is left to send before.
``has_left``: tells whether the client has left; what is sent to it then is dropped without a word.
"""

_BRIEFLY_MS = 1


class ClientLeft(Exception):
    """The client has closed the connection."""


class Wire:
    """A socket, for as long as one body takes. Its methods are for one thread at a time.

    Attributes
    ----------
    fd
        A descriptor of its own: the connection may end at any moment, and its number be given to another one.
    waiting
        Bytes that the client should take, while it takes none; for who watches over it.
    """

    def __init__(self, connection: int, account: Callable[[int], object]) -> None:
        self.waiting = 0
        self.account = account
        self._closing = threading.Lock()
        self._pipe: Pipe | None = None
        self._poll = select.poll()
        self.fd = os.dup(connection)
        try:
            self._poll.register(self.fd, select.POLLOUT)
        except BaseException:
            os.close(self.fd)
            raise

    def write(self, view: bytes | memoryview, *, lasting: bool) -> int:
        """Send what the system takes now of ``view``; gives how many bytes that were, 0 if it takes none.

        Parameters
        ----------
        lasting
            The bytes are of the cache and will not change, so that the system need not copy them: half the work. Once
            some bytes of a chunk were sent so, the others must be.

        Raises
        ------
        ClientLeft
            The connection is broken.
        """
        try:
            if lasting and isinstance(view, memoryview) and (pipe := self._filled(view)) is not None:
                return pipe.empty_into(self.fd)
            return os.write(self.fd, view)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise ClientLeft from error

    def is_writable_soon(self) -> bool:
        """Wait a moment, as long as a client that reads takes; whether the system takes more bytes then."""
        return bool(self._poll.poll(_BRIEFLY_MS))

    def cut(self) -> None:
        """End the connection at once, if this is not closed: it would keep it alive. For any thread."""
        with self._closing:
            if self.fd >= 0:
                with suppress(OSError):
                    # No descriptor more is taken for it: there may be none left, and this is how some come back.
                    connection = socket.socket(fileno=self.fd)
                    try:
                        connection.shutdown(socket.SHUT_RDWR)
                    finally:
                        connection.detach()

    def close(self) -> None:
        """Let go of the socket; once, when no thread uses it."""
        with self._closing:
            fd, self.fd = self.fd, -1
        os.close(fd)
        if self._pipe is not None:
            self._pipe.close()

    def _filled(self, view: memoryview) -> Pipe | None:
        """The pipe, with the next bytes of ``view`` in it; None if they cannot go that way."""
        if self._pipe is None:
            try:
                self._pipe = Pipe()
            except OSError:  # no descriptors left
                return None
        return self._pipe if self._pipe.left or (lend(view) and self._pipe.fill(view)) else None
