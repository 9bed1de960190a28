"""Answers that are ready: a few items of cached windows, which need no thread, no queue and no watch on the client.

Most small requests are of this kind. Whatever is not is for `app.body`.
"""

from collections.abc import Mapping
from functools import lru_cache
from time import perf_counter

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.content import Content, Section
from app.plan import only_run, plan
from app.reader import Reader
from app.steps import Chunk, Step

__all__ = ["ReadyResponse", "ready_body"]

_MOST_BYTES = 1 << 16  # what a server takes without waiting for the client
_MOST_CONVERTED = 4096  # items, where each is converted


def ready_body(content: Content, reader: Reader) -> Chunk | None:
    """The whole body of a content, if it is one piece of cached windows and little is left to do; else None."""
    sections = [element for element in content if not isinstance(element, bytes)]
    if len(sections) != 1:
        return None
    (section,) = sections
    chunk = _items(section, reader)
    if chunk is None or len(content) == 1:
        return chunk
    return b"".join(element if isinstance(element, bytes) else chunk for element in content)


def _items(section: Section, reader: Reader) -> Chunk | None:
    source, selection = section.source, section.selection
    n_items = selection.n_items
    most = _MOST_BYTES // source.dtype.itemsize if section.copies_nothing else _MOST_CONVERTED
    if not 0 < n_items <= most:
        return None
    scan = n_items * source.dtype.itemsize > reader.cache.budget
    run = only_run(selection, source.window_items)
    if run is not None:
        number, offset, _ = run
        window = reader.cache.peek(source.key(number), scan=scan)
        if window is None:
            return None
        chunk = section.encode(window[offset : offset + n_items], 0)
    else:
        piece = next(plan(selection, source.window_items))
        made = reader.quick(section, Step(section, piece, scan=scan)) if piece.n_items == n_items else None
        if made is None:
            return None
        chunk = made
    if section.n_bytes is None or len(chunk) == section.n_bytes:
        return chunk
    return chunk[section.skip : section.skip + section.n_bytes]


@lru_cache(maxsize=4096)  # but for the ETag and the shape, all answers of a tensor have the same
def _encoded(name: str, value: str) -> tuple[bytes, bytes]:
    return name.lower().encode("latin-1"), value.encode("latin-1")


class ReadyResponse(Response):
    """An ASGI response of a body that is there: its headers tell its length, and how long it took since ``began``."""

    def __init__(self, status: int, headers: Mapping[str, str], body: Chunk, began: float) -> None:
        self.status_code = status
        self.background = None
        self.body = body
        self.raw_headers = [_encoded(name, value) for name, value in headers.items()]
        self.raw_headers += (
            (b"content-length", b"%d" % len(body)),
            (b"server-timing", b"first;dur=%.1f" % ((perf_counter() - began) * 1e3)),
        )

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        """Send the answer."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body})
