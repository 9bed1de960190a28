"""The server's HTTP protocol with a patience: connections that make no progress are cut, and there are only so many.

uvicorn waits for ever for a request that never ends and for a client that never reads. Both cost a connection, the
second one also the window that is being sent. A request must arrive within a time; an answer may take any time, as
long as the client takes some bytes of it now and then.
"""

import asyncio
import fcntl
import struct
import termios
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from app.settings import Settings
from app.wire import WIRE, Wire

__all__ = ["PatientProtocol"]

_LOOKS = 4  # within the time that a client may stall
_LEAVE_SECONDS = 0.02  # between looks at what a client has yet to take of its last answer
_MOST_HEADER_BYTES = 64 << 10
# What is read at once, 256 KiB, may be 14,000 requests of 5 KB each in memory, or 50,000 headers of 130 bytes.
_MOST_AHEAD = 16
_MOST_HEADERS = 256


class _TooMany(Exception):
    """More headers, or requests ahead of the one being answered, than are taken; stops the parser."""


class _Unclear(Exception):
    """What could be read in another way: headers behind a body, or a body behind an Upgrade; stops the parser."""


@cache
def _settings() -> Settings:
    return Settings()


class _Joined:
    """What an answer is written to: its head waits for the first bytes of its body, and they leave together.

    That is a call of the system less. And a process that is killed has sent all of a small answer or nothing of it: a
    proxy can ask another one then, which it cannot once it has passed a head on.
    """

    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, leave: Callable[[], object]
    ) -> None:
        self._transport = transport
        self._loop = loop
        self._leave = leave
        self._head = b""
        self._begun = False

    def write(self, data: bytes | memoryview) -> None:
        """Send some bytes: first those of the head, unless they are an interim answer."""
        if self._begun:
            if not self._head:
                self._transport.write(data)
            elif data:
                head, self._head = self._head, b""
                self._transport.writelines((head, data))
        elif bytes(data[:12]) == b"HTTP/1.1 100":
            self._transport.write(data)
        else:
            self._begun, self._head = True, bytes(data)
            self._loop.call_soon(self.flush)  # the body may take a while, or there may be none

    def flush(self) -> None:
        """Send the head, if it still waits."""
        head, self._head = self._head, b""
        if head and not self._transport.is_closing():
            self._transport.write(head)

    def close(self) -> None:
        """End the connection: this answer is its last."""
        self.flush()
        self._leave()

    def is_closing(self) -> bool:
        """Whether the connection ends."""
        return self._transport.is_closing()


class PatientProtocol(HttpToolsProtocol):
    """HTTP/1.1 on one connection; its settings are those of the environment.

    - ``request_seconds``: for a request to arrive whole. Between requests, uvicorn's keep-alive time counts instead.
    - ``stall_seconds``: for which a client that has bytes to take may take none.
    - ``max_connections``: when there are more, requests are marked as ``overloaded`` in their scope's state, which
      `app.limits.RequestRules` answers with 503; when there are twice as many, new ones are cut at once.
    """

    _request_timer: asyncio.TimerHandle | None = None
    _stall_timer: asyncio.TimerHandle | None = None
    _in_head = False
    _in_message = False
    _is_last = False
    _is_leaving = False
    _is_stopping = False
    _came_on = False
    _kept_bytes = 0
    _cycles: list[RequestResponseCycle]
    _unread = 0
    _unread_since = 0.0
    _wire: Wire | None = None
    _streaming: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected: its first request is due."""
        super().connection_made(transport)
        self._cycles = []
        if len(self.connections) > 2 * _settings().max_connections:
            transport.abort()
            return
        self._expect_request()
        self._watch_stall()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._expect_nothing()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        # The server tells its newest request only, which may be one that was sent ahead of the one being answered.
        for cycle in self._cycles:
            cycle.disconnected = True
            cycle.message_event.set()
        if self._wire is not None:
            self._wire.cut()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Some bytes of requests are here."""
        if self._is_last:
            return
        self._came_on = False
        super().data_received(data)
        # The parser keeps what it has of a head, of a trailer or of a line before a chunk until that is whole.
        self._kept_bytes = 0 if self._came_on else self._kept_bytes + len(data)
        if self._kept_bytes > _settings().url_limit + _MOST_HEADER_BYTES:
            self._abort()
        if self._is_answering() or self.timeout_keep_alive_task is not None or self.transport.is_closing():
            return
        if self._came_on and not self._in_message:
            # The end of a request that was answered before it was here, which has ended the keep-alive time.
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )
        else:
            # Also for bytes that begin no request, as line breaks before one: they end that time, too.
            self._expect_request()

    def on_message_begin(self) -> None:
        """The first bytes of a request are here: the others are due."""
        super().on_message_begin()
        self._in_head = self._in_message = self._came_on = True
        self._expect_request()

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header of a request is here."""
        if not self._in_head:
            # One behind a body: the server would take it for one of the head, where no proxy has looked for it.
            raise _Unclear
        if len(self.headers) == _MOST_HEADERS:
            raise _TooMany
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """A request is here but for its body: it can be answered."""
        if len(self.pipeline) == _MOST_AHEAD:
            raise _TooMany
        self._in_head, self._came_on = False, True
        if len(self.connections) > _settings().max_connections:
            self.scope.setdefault("state", {})["overloaded"] = True
        scope = self.scope
        is_for_another_protocol = self.parser.should_upgrade()
        if is_for_another_protocol and _has_body(self.headers):
            raise _Unclear
        super().on_headers_complete()
        if self.cycle is not None and self.cycle.scope is scope:  # its task has not begun
            self._cycles = [cycle for cycle in self._cycles if not cycle.response_complete]
            self._cycles.append(self.cycle)
            self.cycle.transport = joined = _Joined(self.transport, self.loop, self._leave)  # type: ignore[assignment]
            scope["extensions"] = {
                WIRE: {
                    "open": partial(self._open_wire, self.cycle, joined),
                    "has_left": partial(getattr, self.cycle, "disconnected"),
                }
            }
            if is_for_another_protocol:
                # The parser takes what follows in this segment for that protocol's, the body included, and what comes
                # in the next one for a request. So nothing follows: the request is answered, and the connection ends.
                self.cycle.keep_alive = False
                self._is_last = True

    def on_body(self, body: bytes) -> None:
        """Some bytes of a body are here."""
        self._came_on = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        """A request is here, its body included."""
        self._in_message, self._came_on = False, True
        self._expect_nothing()
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """What came is no HTTP, or too much of it, and the parser has stopped. An answer under way gets no other."""
        if self._is_answering():
            self._abort()
        elif not self.transport.is_closing():
            super().send_400_response(msg)

    def shutdown(self) -> None:
        """The service stops: the connection ends when the answer under way has arrived."""
        self._is_stopping = True
        if not self._is_answering():
            self._leave()
        elif not self.cycle.response_started:  # a head that is yet to be sent can say so
            super().shutdown()

    def on_response_complete(self) -> None:
        """An answer is written: the next request that was sent ahead has its turn, unless the service stops."""
        for cycle in self._cycles:
            cast(_Joined, cycle.transport).flush()  # its answer may have had no body
        if self._is_stopping or self._is_leaving:
            self.server_state.total_requests += 1
            self._leave()
            return
        if self._request_timer is not None:
            # A request that was begun ahead has its time from here: before, it may be this side that did not read it.
            self._expect_nothing()
            self._expect_request()
        super().on_response_complete()

    def resume_writing(self) -> None:
        """The transport has room again: the client has taken some bytes."""
        self._unread = 0
        super().resume_writing()

    async def _open_wire(self, cycle: RequestResponseCycle, joined: _Joined) -> Wire | None:
        """The wire for the body of an answer, once nothing is left to send of what was written before.

        None where there can be none: the body goes the way of any other then.
        """
        transport = self.transport
        joined.flush()
        if transport.is_closing():
            return None
        transport.set_write_buffer_limits(high=0)
        await self.flow.drain()
        if transport.is_closing():
            return None
        transport.set_write_buffer_limits()

        def account(n_bytes: int) -> None:
            self._wire = self._streaming = None
            cycle.expected_content_length -= n_bytes

        try:
            self._wire = Wire(transport.get_extra_info("socket").fileno(), account)
        except OSError:  # no descriptor left: the transport has one
            return None
        self._streaming = cycle
        return self._wire

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _expect_request(self) -> None:
        if self._request_timer is None:
            self._request_timer = self.loop.call_later(_settings().request_seconds, self._request_is_late)

    def _expect_nothing(self) -> None:
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None

    def _request_is_late(self) -> None:
        self._request_timer = None
        if self.flow.read_paused or (self._in_head and self._is_answering()):
            # It is sent ahead, while the one before is answered: it may be this side that does not read it.
            self._expect_request()
        else:
            self._abort()

    def _watch_stall(self) -> None:
        """Abort if the client has taken no byte for too long, else look again a little later."""
        patience = _settings().stall_seconds
        # The system holds bytes, too, and takes more only when much of them is gone: its count shows a slow reader.
        unread = self._wire.waiting if self._wire else self.transport.get_write_buffer_size()
        unread += _unacknowledged(self.transport) if unread or self._is_leaving else 0
        now = self.loop.time()
        if unread == 0 or unread != self._unread:
            self._unread, self._unread_since = unread, now
        elif now - self._unread_since >= patience:
            self._abort()
            return
        self._stall_timer = self.loop.call_later(patience / _LOOKS, self._watch_stall)

    def _leave(self) -> None:
        """Take no more requests, end the answers, and close when the client's side has acknowledged everything.

        A container's network ends with its last process, and with it what the system has yet to send of an answer. So a
        stop waits for connections until then, those included whose last answer was over before it.
        """
        if not self._is_leaving:
            self._is_leaving = self._is_last = True
            if not self.transport.is_closing():
                with suppress(OSError):  # the client is gone
                    self.transport.write_eof()
            self._close_when_taken()

    def _close_when_taken(self) -> None:
        if self.transport.is_closing():
            return
        if self.transport.get_write_buffer_size() or _unacknowledged(self.transport):
            self.loop.call_later(_LEAVE_SECONDS, self._close_when_taken)
        else:
            self.transport.close()

    def _abort(self) -> None:
        # Not close: that would wait for the client to take what is left, also where it is closing already.
        self.transport.abort()


def _has_body(headers: Sequence[tuple[bytes, bytes]]) -> bool:
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0")) for name, value in headers
    )


def _unacknowledged(transport: asyncio.Transport) -> int:
    """Bytes that the system has taken for the client and the client's has not acknowledged; 0 where it cannot tell."""
    try:
        fd = transport.get_extra_info("socket").fileno()
        count: int = struct.unpack("i", fcntl.ioctl(fd, termios.TIOCOUTQ, b"\0\0\0\0"))[0]
    except (OSError, ValueError):
        return 0
    return count
