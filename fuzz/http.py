"""Raw bytes on a connection: each gets an answer or the connection is closed, and no request is read in two ways.

An input: a byte that says how the rest is cut into segments, then what a client sends. The server's protocol is given
it over a transport in memory, with an application that notes the requests it sees, and twice: in segments, and as one.
"""

import asyncio
import atexit
import logging
import random
from functools import cache
from typing import Any

from starlette.types import Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.server import ServerState

from app.protocol import PatientProtocol
from fuzz._wire import Reading, Request, read_answers, read_requests

__all__ = ["WORDS", "run", "seeds"]

WORDS = (
    *(
        b"\r\n",
        b"\n",
        b"\r",
        b"GET ",
        b"POST ",
        b"HEAD ",
        b"CONNECT ",
        b"PRI * HTTP/2.0",
        b" HTTP/1.1\r\n",
        b" HTTP/1.0\r\n",
    ),
    *(
        b"Host: a\r\n",
        b"Content-Length: 5\r\n",
        b"Content-Length: +5\r\n",
        b"Content-Length: 5, 5\r\n",
        b"0\r\n\r\n",
        b"5\r\nhello\r\n",
    ),
    *(
        b"Transfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: identity, chunked\r\n",
        b"Transfer-Encoding : chunked\r\n",
        b";x=1",
    ),
    *(
        b"Connection: close\r\n",
        b"Connection: upgrade\r\nUpgrade: websocket\r\n",
        b"Expect: 100-continue\r\n",
        b" folded\r\n",
        b"\0",
    ),
    *(
        b"http://a/b",
        b"/\xff",
        b"*",
        b"0x5",
        b"ffffffffffffffff\r\n",
        b"Content-Length: 18446744073709551616\r\n",
        b"HTTP/9.9",
        b"\x0b",
    ),
)
_ROUNDS = 200
_GET = b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n"
_LENGTH = b"POST /b HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"
_CHUNKED = b"POST /c HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"


def run(data: bytes) -> None:
    """Send, in segments and as one, and hold what was seen against the reading of the bytes."""
    if not data:
        return
    sent = data[1:]
    reading = read_requests(sent)
    whole = _conversation([sent])
    _check(whole, reading)
    pieces = _pieces(sent, data[0])
    if len(pieces) > 1:
        segments = _conversation(pieces)
        _check(segments, reading)
        # What is no request ends the connection at once, with the answers that are still to come.
        if reading.end != "last" and not (whole.was_closed or segments.was_closed):
            assert segments.requests == whole.requests


def seeds() -> list[bytes]:
    """Requests of every kind, and those that are known to be read in two ways."""
    head = b"POST /d HTTP/1.1\r\nHost: a\r\n"
    both = head + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + _GET
    twice = head + b"Content-Length: 4\r\nContent-Length: 5\r\n\r\nhello" + _GET
    streams = [
        *(_GET, _LENGTH, _CHUNKED, _GET + _LENGTH + _CHUNKED + _GET, both, twice, _GET.replace(b"\r\n", b"\n")),
        *(
            _GET.replace(b"Host: a", b"Host: a\r\n folded"),
            _CHUNKED.replace(b"5\r\n", b"5;a=b\r\n"),
            _CHUNKED[:-2] + b"A: b\r\n\r\n",
        ),
        *(
            _CHUNKED.replace(b"5\r\n", b"0x5\r\n"),
            _CHUNKED.replace(b"5\r\nhello", b"5\nhello"),
            _CHUNKED.replace(b"chunked", b"xchunked"),
        ),
        *(
            _LENGTH.replace(b"5", b"+5"),
            _LENGTH.replace(b"5", b"5, 5"),
            _LENGTH.replace(b": 5", b" : 5"),
            b"GET /\r\n\r\n",
            b"\x16\x03\x01",
        ),
        *(
            _GET.replace(b"Host: a", b"Connection: upgrade\r\nUpgrade: x") + _GET,
            _LENGTH.replace(b"Host: a", b"Connection: upgrade\r\nUpgrade: x") + _GET,
            _CHUNKED.replace(b"Host: a", b"Connection: upgrade\r\nUpgrade: x") + _GET,
            b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n" + _GET,
        ),
        *(
            _GET.replace(b"1.1", b"1.0") + _GET,
            _GET.replace(b"Host: a", b"Connection: close") + _GET,
            _LENGTH[:-2],
            _GET[:-2],
        ),
        *(
            _LENGTH.replace(b"Host: a", b"Expect: 100-continue"),
            b"\r\n\r\n" + _GET,
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"HEAD" + _GET[3:],
        ),
    ]
    return [bytes((cut,)) + stream for stream in streams for cut in (0, 7)]


class _Conversation:
    """What came of a connection: the requests that the application saw whole, how many it began to see, the answers."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.begun = 0
        self.written = b""
        self.is_closed = False
        self.was_closed = False  # by the server, not by the client that leaves in the end
        self.faults: list[dict[str, Any]] = []


class _Transport(asyncio.Transport):
    """A connection whose client takes every byte at once."""

    def __init__(self, conversation: _Conversation) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 80)})
        self._conversation = conversation
        self.is_paused = False

    def write(self, data: Any) -> None:
        if not self._conversation.is_closed:  # what comes after the end goes nowhere
            self._conversation.written += bytes(data)

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self._conversation.is_closed

    def close(self) -> None:
        self._conversation.is_closed = True

    abort = close

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False


@cache
def _runner() -> asyncio.Runner:
    runner = asyncio.Runner()
    atexit.register(runner.close)
    return runner


def _conversation(pieces: list[bytes]) -> _Conversation:
    conversation = _Conversation()
    # What the server says of a request that is none is not for the eyes of whoever runs this.
    logger = logging.getLogger("uvicorn.error")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        _runner().run(_converse(pieces, conversation))
    finally:
        logger.setLevel(level)
    assert not conversation.faults, conversation.faults
    return conversation


async def _converse(pieces: list[bytes], conversation: _Conversation) -> None:
    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
        body = bytearray()
        conversation.begun += 1
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message["body"]
            more = message["more_body"]
        conversation.requests.append(Request(scope["method"].encode(), target, bytes(body)))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b"o", "more_body": True})
        await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b"k"})

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: conversation.faults.append(context))
    state = ServerState()
    config = Config(application, log_config=None, access_log=False, ws="none", lifespan="off")
    config.load()
    protocol = PatientProtocol(config, state, {}, loop)
    transport = _Transport(conversation)
    protocol.connection_made(transport)
    for piece in pieces:
        for _ in range(_ROUNDS):
            if not transport.is_paused:
                break
            await asyncio.sleep(0)
        assert conversation.is_closed or not transport.is_paused, "the server reads no more"
        if not conversation.is_closed:
            protocol.data_received(piece)
        await _settled(state, conversation)
    conversation.was_closed = conversation.is_closed
    protocol.connection_lost(None)
    await _settled(state, conversation)
    assert not state.tasks, "a request has no end"


async def _settled(state: ServerState, conversation: _Conversation) -> None:
    """Let the application answer what it can."""
    before = None
    for _ in range(_ROUNDS):
        now = (len(state.tasks), len(conversation.written), len(conversation.requests), conversation.begun)
        if now == before:
            return
        before = now
        for _ in range(6):  # steps of the loop: more than a request takes from one await to the next
            await asyncio.sleep(0)


def _pieces(data: bytes, cut: int) -> list[bytes]:
    """The data in segments that follow from ``cut``; 0 leaves it whole."""
    if cut == 0 or len(data) < 2:
        return [data]
    chance = random.Random(cut)
    places = sorted({chance.randrange(1, len(data)) for _ in range(1 + cut % 12)})
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


def _check(conversation: _Conversation, reading: Reading) -> None:
    seen, wanted = conversation.requests, reading.requests
    statuses = read_answers(conversation.written, [one.method for one in seen])
    assert len(seen) <= len(wanted), f"more was seen than was sent: {seen}"
    for one, other in zip(seen, wanted, strict=False):
        assert (one.method, one.body) == (other.method, other.body)
        assert b"://" in other.target or one.target == other.target.partition(b"#")[0].removesuffix(b"?")
    if len(seen) < len(wanted):
        assert conversation.was_closed, "a request was not answered"
    if reading.end == "refused":  # or it waits for more of what will be none, for as long as its patience lasts
        assert conversation.was_closed or conversation.begun == len(wanted)
    if len(statuses) > len(seen):
        assert statuses.pop() == 400
        assert conversation.was_closed
    assert len(statuses) == len(seen) or conversation.was_closed
    assert all(status == 200 for status in statuses)
