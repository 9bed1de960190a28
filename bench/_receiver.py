"""A client that only counts bytes, as a process of its own: ``python -m bench._receiver``.

It obeys lines on its standard input. ``PORT PATH`` connects to that port of this machine and answers ``ready``; the
next line, ``go``, sends a GET of the path and answers ``BYTES START END``: the bytes of the body, and the monotonic
clock when the request was sent and when the last byte had come. The body goes into one buffer, over and over.
"""

import socket
import sys
import time

__all__ = ["receive"]

_BUFFER_BYTES = 1 << 20
_MOST_HEADER_BYTES = 1 << 16


def receive(connection: socket.socket, path: str, buffer: memoryview) -> tuple[int, float, float]:
    """Send a GET, read its answer to the end, and give the bytes of its body, when it was sent and when it had come.

    Raises ConnectionError if the answer is not a 200 with a Content-Length, or ends before it.
    """
    start = time.monotonic()
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: bench\r\n\r\n".encode())
    head = b""
    while b"\r\n\r\n" not in head:
        received = connection.recv_into(buffer)
        head += buffer[:received]
        if not received or len(head) > _MOST_HEADER_BYTES + _BUFFER_BYTES:
            raise ConnectionError(f"no answer to {path}: {head[:200]!r}")
    head, _, body = head.partition(b"\r\n\r\n")
    length = _content_length(head, path)
    count = len(body)
    while count < length:
        received = connection.recv_into(buffer)
        if not received:
            raise ConnectionError(f"{path}: {count} of {length} bytes came")
        count += received
    return count, start, time.monotonic()


def _content_length(head: bytes, path: str) -> int:
    status, *fields = head.split(b"\r\n")
    if status.split()[1] == b"200":
        for name, _, value in (field.partition(b":") for field in fields):
            if name.lower() == b"content-length":
                return int(value)
    raise ConnectionError(f"{path}: no 200 with a Content-Length, but {head[:200]!r}")


def _obey() -> None:
    buffer = memoryview(bytearray(_BUFFER_BYTES))
    for line in sys.stdin:
        port, path = line.split()
        with socket.create_connection(("127.0.0.1", int(port))) as connection:
            print("ready", flush=True)
            sys.stdin.readline()
            print(*receive(connection, path, buffer), flush=True)


if __name__ == "__main__":
    _obey()
