"""Hostile clients, as a process of their own: ``python -m bench._hostile KIND PORT COUNT SECONDS ROUNDS``.

``stalled``: so many ask for a large tensor and read nothing. ``half-open``: so many begin a request, in five ways, that
never ends. Both hold what they have for so many seconds, then look at what has become of it. ``dropped``: so many read
a part of a large answer and go, 50 at a time, half of them with a reset. A round is all of this once; 0 rounds are as
many as there are until the end. What it gives is how many clients ended in which way.
"""

import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from random import Random

from bench._files import DATA
from bench._helper import help_with

__all__ = ["LARGE", "attack"]

LARGE = "large-file"
"""The model whose tensor ``w`` hostile clients ask for."""

_NICENESS = 5
_PATIENCE_SECONDS = 60
_AT_A_TIME = 50
_LEAST_READ, _MOST_READ = 64 << 10, 1 << 20
_MOST_UNDERWAY = 8 << 20  # what the system holds of an answer that nobody reads is less
_MOMENT_SECONDS = 1.0
_TRICKLE_SECONDS = 2.0
_LARGE_GET = f"GET {DATA.format(model=LARGE, tensor='w')} HTTP/1.1\r\nHost: bench\r\n\r\n".encode()
_POST = f"POST {DATA.format(model=LARGE, tensor='w')} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
# What is sent at once, and what is sent of each every few seconds.
_HALVES = (
    (b"GET / HT", b""),
    (b"GET /healthz HTTP/1.1\r\nHost: bench\r\nX-Filler: ", b"a"),
    (f"{_POST}Content-Length: 1000\r\n\r\n".encode(), b""),
    (f"{_POST}Transfer-Encoding: chunked\r\n\r\n".encode(), b"1\r\n \r\n"),
    (b"", b""),
)


def attack(over: threading.Event, kind: str, port: int, count: int, seconds: float, rounds: int) -> Counter[str]:
    """Attack in rounds; ``over`` ends a round early."""
    act = {"stalled": _stalled, "half-open": _half_open, "dropped": _dropped}[kind]
    seen: Counter[str] = Counter()
    done = 0
    while not over.is_set() and (done < rounds or not rounds):
        seen.update(act(over, port, count, seconds))
        done += 1
    return seen


def _stalled(over: threading.Event, port: int, count: int, seconds: float) -> Iterator[str]:
    with _Crowd(port, count) as crowd:
        for connection in crowd.connections:
            _send(connection, _LARGE_GET)
        ended_early = over.wait(seconds)
        for connection in crowd.connections:
            yield "left" if ended_early else _drained(connection)


def _half_open(over: threading.Event, port: int, count: int, seconds: float) -> Iterator[str]:
    with _Crowd(port, count) as crowd:
        halves = [_HALVES[number % len(_HALVES)] for number in range(count)]
        for connection, (beginning, _) in zip(crowd.connections, halves, strict=True):
            _send(connection, beginning)
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and not over.wait(min(left, _TRICKLE_SECONDS)):
            for connection, (_, more) in zip(crowd.connections, halves, strict=True):
                _send(connection, more)
        for connection in crowd.connections:
            yield "left" if over.is_set() else "cut" if _is_over(connection) else "held"


def _dropped(over: threading.Event, port: int, count: int, _: float) -> Iterator[str]:
    rng = Random(count)
    draws = [(rng.randint(_LEAST_READ, _MOST_READ), rng.random() < 0.5) for _ in range(count)]

    def drop(draw: tuple[int, bool]) -> str:
        if over.is_set():
            return "not begun"
        n_bytes, by_reset = draw
        try:
            with socket.create_connection(("127.0.0.1", port), _PATIENCE_SECONDS) as connection:
                connection.sendall(_LARGE_GET)
                head = connection.recv(1 << 16)
                if not head.startswith(b"HTTP/1.1 200"):
                    return _status(head) if head else "ended early"
                n_bytes -= len(head)
                while n_bytes > 0 and (received := connection.recv(min(n_bytes, 1 << 16))):
                    n_bytes -= len(received)
                if by_reset:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        except OSError as error:
            return type(error).__name__
        return "ended early" if n_bytes > 0 else "left by reset" if by_reset else "left"

    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        yield from pool.map(drop, draws)


class _Crowd:
    """So many connections; a context manager that closes them."""

    def __init__(self, port: int, count: int) -> None:
        self.connections: list[socket.socket] = []
        for _ in range(count):
            self.connections.append(socket.create_connection(("127.0.0.1", port), _PATIENCE_SECONDS))

    def __enter__(self) -> "_Crowd":
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self.connections:
            connection.close()


def _send(connection: socket.socket, data: bytes) -> None:
    with suppress(OSError):  # it was cut
        connection.sendall(data)


def _is_over(connection: socket.socket) -> bool:
    """Whether the server has ended a connection, after an answer or without one."""
    connection.settimeout(0)
    try:
        while connection.recv(1 << 16):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _drained(connection: socket.socket) -> str:
    """How an answer that nobody read has ended: cut, refused with a status, or not at all."""
    connection.settimeout(_MOMENT_SECONDS)
    count = 0
    try:
        while received := connection.recv(1 << 16):
            if not count and not received.startswith(b"HTTP/1.1 200"):
                return _status(received)
            count += len(received)
            if count > _MOST_UNDERWAY:
                return "held"
    except TimeoutError:
        return "held"
    except OSError:
        return "cut"
    return "cut"


def _status(head: bytes) -> str:
    return head[9:12].decode("ascii", "replace")


def _main() -> None:
    kind, port, count, seconds, rounds = sys.argv[1:]

    def work(over: threading.Event) -> dict[str, int]:
        return attack(over, kind, int(port), int(count), float(seconds), int(rounds))

    help_with(work, niceness=_NICENESS)


if __name__ == "__main__":
    _main()
