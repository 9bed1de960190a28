"""A service that answers what a test tells it: a model with one tensor, and any answers about its weights."""

import json
import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

__all__ = ["ETAG", "VERSION", "WEIGHTS", "Stub", "answer", "problem"]

VERSION = '"the version"'
ETAG = '"of the body"'
WEIGHTS: NDArray[np.float32] = np.arange(1000, dtype=np.float32).reshape(10, 100)

Answering = Callable[[str], bytes]


def answer(status: int = 200, content: bytes = b"", length: int | str | None = None, **headers: str) -> bytes:
    """An answer; names of headers have ``_`` for ``-``. ``length`` states another length than the content has."""
    lines = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(content) if length is None else length}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + content


def problem(status: int, slug: str, detail: str = "Because.", **headers: str) -> bytes:
    """An answer with a problem document."""
    document = {"type": f"/problems/{slug}", "title": slug, "status": status, "detail": detail, "more": 7}
    return answer(status, json.dumps(document).encode(), Content_Type="application/problem+json", **headers)


class Stub:
    """A server on a free port, with the model ``m`` and its tensor ``w``, the F32 array `WEIGHTS`.

    Attributes
    ----------
    script
        Answers to the next requests for weights, one for each: bytes, or a function of the head of the request. After
        an answer that is shorter than it says, the connection is closed. Later requests get the weights.
    answers
        By path, an answer in place of the stub's own.
    asked
        The heads of all requests for weights.
    heads
        The heads of all requests.
    """

    def __init__(self, *script: bytes | Answering, answers: Mapping[str, bytes] | None = None) -> None:
        self.script = list(script)
        self.answers = dict(answers or {})
        self.asked: list[str] = []
        self.heads: list[str] = []
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @staticmethod
    def weights(head: str) -> bytes:
        """What the service would answer to a request for the weights, or a range of them."""
        body = WEIGHTS.tobytes()
        found = re.search(r"range: bytes=(\d+)-(\d+)", head, re.IGNORECASE)
        about = {"ETag": ETAG, "X_Model_ETag": VERSION}
        if found is None:
            return answer(200, body, **about)
        first, last = int(found[1]), int(found[2])
        return answer(206, body[first : last + 1], Content_Range=f"bytes {first}-{last}/{len(body)}", **about)

    @staticmethod
    def cut(n_bytes: int) -> Answering:
        """The same, but for the last bytes of it."""
        return lambda head: Stub.weights(head)[:-n_bytes]

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

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            with self._lock:
                self._sockets.append(connection)
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            for head in _heads(connection):
                sent = self._answer(head)
                connection.sendall(sent)
                start, _, body = sent.partition(b"\r\n\r\n")
                stated = re.search(rb"Content-Length: (\d+)", start)
                if stated is None or int(stated[1]) != len(body):
                    return

    def _answer(self, head: str) -> bytes:
        self.heads.append(head)
        path = head.split(" ")[1]
        if path.startswith("/v1/models/m/-/data/w"):
            with self._lock:
                self.asked.append(head)
                next_one = self.script.pop(0) if self.script else self.weights
            return next_one if isinstance(next_one, bytes) else next_one(head)
        if path in self.answers:
            return self.answers[path]
        document = _DOCUMENTS.get(path)
        if document is None:
            return problem(404, "no-such-model")
        return answer(200, json.dumps(document).encode(), X_Model_ETag=VERSION)


def _heads(connection: socket.socket) -> Iterator[str]:
    """The heads of the requests on a connection; bodies are passed over."""
    data = b""
    while True:
        while b"\r\n\r\n" not in data:
            piece = connection.recv(65536)
            if not piece:
                return
            data += piece
        head, _, data = data.partition(b"\r\n\r\n")
        text = head.decode("latin-1")
        length = re.search(r"content-length: (\d+)", text, re.IGNORECASE)
        while length is not None and len(data) < int(length[1]):
            data += connection.recv(65536)
        data = data[int(length[1]) :] if length is not None else data
        yield text


_DOCUMENTS: dict[str, Any] = {
    "/v1/models": {"models": [{"id": "m"}]},
    "/v1/models/m": {
        "id": "m",
        "files": [{"byte_order": "little"}],
        "links": {"tensors": "/v1/models/m/-/tensors", "metadata": "/v1/models/m/-/metadata"},
        "parameters": WEIGHTS.size,
        "bytes": WEIGHTS.nbytes,
    },
    "/v1/models/m/-/metadata": {"metadata": []},
    "/v1/models/m/-/tensors": {
        "tensors": [
            {
                "name": "w",
                "shape": list(WEIGHTS.shape),
                "type": "F32",
                "type_id": 0,
                "file": 0,
                "bytes": WEIGHTS.nbytes,
                "data": "/v1/models/m/-/data/w",
            }
        ]
    },
}
