"""A slow, lossy path for tests: a TCP proxy that delays, throttles, cuts and resets, and changes no byte."""

import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, Self

__all__ = ["Fault", "Proxy"]

_PIECE = 256 << 10


@dataclass(frozen=True)
class Fault:
    """What is done to the answers on one connection.

    Attributes
    ----------
    after
        Bytes that come through before it ends; None for no end.
    how
        ``cut`` closes the connection, ``reset`` resets it, ``stall`` keeps it open and lets nothing more through.
    delay
        Seconds before each piece.
    piece
        Bytes that are passed on at a time.
    """

    after: int | None = None
    how: Literal["cut", "reset", "stall"] = "cut"
    delay: float = 0
    piece: int = _PIECE


class Proxy:
    """A proxy to a local port; ``plan`` gives the fault of each connection by its number, from 0.

    ``asked`` is called with the head of each request before that is passed on.

    Attributes
    ----------
    heads
        The head of each request, in the order of arrival.
    passed
        Bytes of answers that came through, heads included.
    ended
        Connections that a fault has ended.
    """

    def __init__(
        self,
        port: int,
        plan: Callable[[int], Fault | None] = lambda _: None,
        asked: Callable[[str], object] = lambda _: None,
    ) -> None:
        self._to = port
        self._plan = plan
        self._asked = asked
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.heads: list[str] = []
        self.passed = 0
        self.ended = 0
        self.connections = 0
        self.stalled = threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._start(self._accept)

    def headers(self, name: str) -> list[str]:
        """The values of a header of all requests that have it."""
        lines = (line for head in self.heads for line in head.split("\r\n"))
        return [line.partition(": ")[2] for line in lines if line.lower().startswith(f"{name.lower()}: ")]

    def close(self) -> None:
        with self._lock:
            sockets = [self._listening, *self._sockets]
        for one in sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self._threads:
            thread.join(10)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
                server = socket.create_connection(("127.0.0.1", self._to))
            except OSError:
                return
            with self._lock:
                fault = self._plan(self.connections) or Fault()
                self.connections += 1
                self._sockets += [client, server]
            self._start(self._up, client, server)
            self._start(self._down, server, client, fault)

    def _up(self, client: socket.socket, server: socket.socket) -> None:
        head = b""
        with suppress(OSError):
            while piece := client.recv(_PIECE):
                *whole, head = (head + piece).split(b"\r\n\r\n")
                heads = [one.decode("latin-1") for one in whole]
                with self._lock:
                    self.heads += heads
                for one in heads:
                    self._asked(one)
                server.sendall(piece)
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)

    def _down(self, server: socket.socket, client: socket.socket, fault: Fault) -> None:
        left = fault.after
        with suppress(OSError):
            while piece := server.recv(fault.piece if left is None else min(fault.piece, left)):
                time.sleep(fault.delay)
                client.sendall(piece)
                with self._lock:
                    self.passed += len(piece)
                if left is not None:
                    left -= len(piece)
                    if left == 0:
                        self._end(fault, client)
                        return
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)

    def _end(self, fault: Fault, client: socket.socket) -> None:
        with self._lock:
            self.ended += 1
        if fault.how == "stall":
            self.stalled.set()
            return
        if fault.how == "reset":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.shutdown(socket.SHUT_RD)  # wakes the thread that reads from it, without which it stays open
            client.close()
        else:
            client.shutdown(socket.SHUT_RDWR)
