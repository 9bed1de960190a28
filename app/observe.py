"""Observation: one record of each request, made outside of all that answers it, and handed to those who keep records.

`Observe` belongs inside `NameSegments`, whose copy of the scope is the one that the router marks with its route, and
outside everything else, so that it sees every answer, those of other middleware included.
"""

import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Literal

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.names import text
from app.wire import WIRE

__all__ = ["Observe", "Outcome", "RequestRecord", "note_names", "record_of"]

_log = logging.getLogger("tensortap")

Outcome = Literal["complete", "client left", "aborted"]

_HEADER = b"x-request-id"
# What a file says is never taken for a page or a script, whatever a browser thinks that it looks like.
_NOSNIFF = (b"x-content-type-options", b"nosniff")
# What needs no quoting in any log, header or URL; ids of other programs (UUIDs, ULIDs, W3C and AWS traces) are so.
_SAFE_ID = re.compile(rb"[A-Za-z0-9._~:/+=@-]{1,128}")
_SELECTING = ("rows", "cols", "slice")


@dataclass(slots=True)
class RequestRecord:
    """What is known of one request.

    The names and the selection are as the client gave them, of any length and with any character: who writes them down
    must escape them. Nothing else of the query and none of the headers but the id is here: they may hold secrets.

    Attributes
    ----------
    request_id
        From the request's ``X-Request-ID``, or made here; 1 to 128 characters that are safe anywhere.
    path
        The path as it was asked for, still percent-encoded, without the query.
    route
        The template of the route that took it, or ``unmatched``.
    status
        The status sent; None if no answer was begun.
    bytes_sent
        Bytes of the body that the server has taken.
    outcome
        ``complete``: the server has taken the whole answer. ``client left``: the client closed the connection before.
        ``aborted``: the service ended the answer before. None until the request is over.
    seconds
        From the request's headers to the end of the answer.
    """

    request_id: str = ""
    method: str = ""
    path: str = ""
    route: str = "unmatched"
    status: int | None = None
    bytes_sent: int = 0
    outcome: Outcome | None = None
    seconds: float = 0.0
    model: str | None = None
    tensor: str | None = None
    selection: str | None = None


def record_of(scope: Scope) -> RequestRecord:
    """The record of the request that a scope is of; one that nobody reads where nobody observes."""
    record = scope.get("state", {}).get("record")
    return record if isinstance(record, RequestRecord) else RequestRecord()


def note_names(scope: Scope, names: Mapping[str, bytes], query: Mapping[str, str]) -> None:
    """Put the model, the tensor and the selection that a request names, in its path or its query, into its record.

    ``names`` are those of its path; ``query`` has its parameters, with surrogate escapes for bytes that are no UTF-8.
    """
    record = record_of(scope)
    record.model = _name("model", names, query)
    record.tensor = _name("tensor", names, query)
    if query:
        record.selection = "&".join([f"{name}={query[name]}" for name in _SELECTING if name in query]) or None


def _name(name: str, names: Mapping[str, bytes], query: Mapping[str, str]) -> str | None:
    if name in names:
        return text(names[name])
    return text(query[name].encode("utf-8", "surrogateescape")) if name in query else None


class Observe:
    """ASGI middleware that makes the record of each request and gives its answer two headers.

    ``X-Request-ID``, and one that keeps browsers from guessing what an answer is.

    Parameters
    ----------
    sinks
        Called with each record, in order, when its request is over. An error of one is logged and goes no further.
    on_stream
        Called with 1 when an answer of more than one piece begins, and with -1 when it ends.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        sinks: Sequence[Callable[[RequestRecord], object]],
        on_stream: Callable[[int], object] | None = None,
    ) -> None:
        self._app = app
        self._sinks = tuple(sinks)
        self._on_stream = on_stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and watch what is answered."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = perf_counter()
        request_id = _request_id(scope)
        method = scope["method"]
        record = RequestRecord(request_id.decode("ascii"), method, _path(scope))
        scope.setdefault("state", {})["record"] = record
        streaming = whole = left = dropped = False
        has_left = scope.get("extensions", {}).get(WIRE, {}).get("has_left", _cannot_tell)

        async def watched_receive() -> Message:
            nonlocal left
            message = await receive()
            left = left or message["type"] == "http.disconnect"
            return message

        async def observed(message: Message) -> None:
            nonlocal streaming, whole, dropped
            if message["type"] == "http.response.body":
                more = message.get("more_body", False)
                # A refusal may wait for the rest of a body that nobody reads: that is no stream.
                if more and not streaming and (record.status or 0) < 400:
                    streaming = True
                    if self._on_stream is not None:
                        self._on_stream(1)
                await send(message)
                if message.get("body") and has_left():  # else it may have left with everything
                    dropped = True
                    return
                if method != "HEAD" and record.status is not None:  # a server drops the body of an answer to HEAD
                    record.bytes_sent += len(message.get("body", b""))
                whole = not (more or dropped)
                return
            if message["type"] == "http.response.start":
                dropped = left or has_left()
                if not dropped:  # there is somebody to whom the server sends it
                    record.status = message["status"]
                message = {**message, "headers": [*message.get("headers", ()), (_HEADER, request_id), _NOSNIFF]}
            await send(message)

        try:
            await self._app(scope, watched_receive, observed)
        except ClientDisconnect:  # with a part of the request, for which the application waits
            record.outcome = "client left"
        finally:
            record.seconds = perf_counter() - began
            if record.outcome is None:
                record.outcome = "complete" if whole else "client left" if dropped else "aborted"
            record.route = _route(scope)
            if streaming and self._on_stream is not None:
                self._on_stream(-1)
            self._hand_over(record)

    def _hand_over(self, record: RequestRecord) -> None:
        for sink in self._sinks:
            try:
                sink(record)
            except Exception:  # the answer is given: it must not fail for its record
                _log.exception("the record of request %s could not be kept", record.request_id)


def _cannot_tell() -> bool:
    return False


def _request_id(scope: Scope) -> bytes:
    for name, value in scope["headers"]:
        if name == _HEADER:
            if _SAFE_ID.fullmatch(value):
                return bytes(value)
            break
    return os.urandom(16).hex().encode("ascii")


def _route(scope: Scope) -> str:
    """The template of the route that the router has put into the scope, which it only does for routes of the API."""
    template = getattr(scope.get("route"), "path", None)
    if template is None and "endpoint" in scope and not scope.get("path_params"):
        template = scope["path"]  # a plain route without parameters: what it matched is its template
    return "unmatched" if template is None else str(template)


def _path(scope: Scope) -> str:
    raw: bytes = scope.get("raw_path") or scope["path"].encode("utf-8", "surrogateescape")
    return raw.partition(b"?")[0].decode("ascii", "backslashreplace")  # some servers leave the query on the raw path
