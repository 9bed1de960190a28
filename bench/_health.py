"""Asks for /healthz every 100 ms on one connection: ``python -m bench._health PORT``.

It has a process of its own and, where that is allowed, a higher priority than others, so that what it measures is the
server. It gives the milliseconds of each answer, and how late it was itself at worst.
"""

import socket
import sys
import threading
import time

from bench._helper import help_with

__all__ = ["ask_until"]

_EVERY_SECONDS = 0.1
_PATIENCE_SECONDS = 30
_NICENESS = -5
_REQUEST = b"GET /healthz HTTP/1.1\r\nHost: bench\r\n\r\n"
_BODY = b'{"status":"ok"}'


def ask_until(over: threading.Event, port: int) -> dict[str, object]:
    """Ask until ``over`` is set. ``failed`` counts answers that were none; a new connection is made after each."""
    milliseconds: list[float] = []
    failed, latest = 0, 0.0
    connection: socket.socket | None = None
    due = time.monotonic()
    while not over.is_set():
        if (wait := due - time.monotonic()) > 0:
            time.sleep(wait)
        begin = time.monotonic()
        latest = max(latest, begin - due) if wait > 0 else latest
        try:
            if connection is None:
                connection = socket.create_connection(("127.0.0.1", port), _PATIENCE_SECONDS)
            connection.sendall(_REQUEST)
            answer = b""
            while not answer.endswith(_BODY):
                received = connection.recv(4096)
                if not received:
                    raise ConnectionError("no whole answer")
                answer += received
            milliseconds.append((time.monotonic() - begin) * 1e3)
        except OSError:
            failed += 1
            if connection is not None:
                connection.close()
            connection = None
        due = max(due + _EVERY_SECONDS, time.monotonic())
    if connection is not None:
        connection.close()
    return {"milliseconds": milliseconds, "failed": failed, "latest": latest * 1e3}


if __name__ == "__main__":
    help_with(lambda over: ask_until(over, int(sys.argv[1])), niceness=_NICENESS)
