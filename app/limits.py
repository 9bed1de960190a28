"""Rules that every request keeps, checked before any route sees it.

The host it asks for, how many connections there are, the length of its URL and of its body, and no parameter twice.
And the room for bodies: what clients post takes no more memory than that room and what is made of one body at a time,
however many connections there are.
"""

import asyncio
from collections.abc import Sequence

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.errors import BadRequest, Problem, TooLarge, Unavailable
from app.names import query_pairs
from app.problems import problem_response

__all__ = ["PROBES", "RequestRules"]

# Asked by whoever watches over the process: by any host name, without a key, also when others are turned away.
PROBES = frozenset({"/healthz", "/readyz"})
_METRICS = "/metrics"  # Prometheus asks by address; there are counts only, and a key is asked for where keys are
_SHOWN = 40
_MOST_DIGITS = 20
_SMALL_BODY = 64 << 10  # the server holds as much of any request before it stops reading
_LARGEST_BODIES = 4
_TURN_SECONDS = 10.0


class RequestRules:
    """ASGI middleware that answers a request which breaks a rule with a problem document.

    Parameters
    ----------
    url_limit
        Most bytes of a path and query.
    body_limit
        Most bytes of a request's body. All bodies of more than 64 KiB that are under way have room for four times as
        many; one that finds none is refused with 503. Such a body takes room for its Content-Length (a chunked one for
        what has arrived) until the application is done with it, and the application gets one at a time.
    allowed_hosts
        Host names that may be asked for, without ports; ``*.example.org`` means every name below it, ``*`` any. Probes
        and metrics are answered by any name.
    """

    def __init__(self, app: ASGIApp, *, url_limit: int, body_limit: int, allowed_hosts: Sequence[str]) -> None:
        self._app = app
        self._url_limit = url_limit
        self._body_limit = body_limit
        self._room = _Room(_LARGEST_BODIES * body_limit)
        self._any_host = "*" in allowed_hosts
        self._hosts = frozenset(host.lower() for host in allowed_hosts)
        self._endings = tuple(host.lower()[1:] for host in allowed_hosts if host.startswith("*."))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        named = {name for name, _ in scope["headers"]}
        has_length, is_chunked = b"content-length" in named, b"transfer-encoding" in named
        problem = self._broken_rule(scope, has_length=has_length)
        if problem is None and (has_length or is_chunked) and scope["path"] not in PROBES:  # which read none
            length = max(map(int, _lengths(scope)), default=0)
            if length > _SMALL_BODY and length > self._room.left:
                problem = self._room.refusal()
            elif is_chunked or length > _SMALL_BODY:
                await self._with_body(scope, receive, send, length)
                return
        if problem is None:
            await self._app(scope, receive, send)
        else:
            await _refuse(problem, scope, receive, send)

    def _broken_rule(self, scope: Scope, *, has_length: bool) -> Problem | None:
        probe = scope["path"] in PROBES
        any_host = self._any_host or probe or scope["path"] == _METRICS
        if scope.get("state", {}).get("overloaded") and not probe:
            return Unavailable("overloaded", "the service has as many connections as it takes. Try again in a moment.")
        if not (any_host or self._is_allowed_host(scope)):
            return BadRequest("bad-host", "the Host header names no host that this service answers to.")
        query: bytes = scope["query_string"]
        size = len(scope.get("raw_path") or b"") + len(query)
        if size > self._url_limit:
            return TooLarge(
                "url-too-long",
                f"a path and query of {size} bytes are over the limit of {self._url_limit}: "
                "post the selection as JSON, or use slices instead of lists where rows follow each other.",
                status=414,
                limit=self._url_limit,
            )
        if b"&" in query:
            seen: set[str] = set()
            for name, _ in query_pairs(query):
                if name in seen:
                    return BadRequest("bad-parameter", f"the parameter {name[:_SHOWN]!r} is given more than once.")
                seen.add(name)
        if not has_length:
            return None
        # The server has refused a length that is no number, or is none of 64 bits.
        too_large = any(len(value) > _MOST_DIGITS or int(value) > self._body_limit for value in _lengths(scope))
        return self._body_too_large() if too_large else None

    def _is_allowed_host(self, scope: Scope) -> bool:
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1:
            return False
        host = hosts[0].decode("latin-1").lower()
        # The colons of an IPv6 address are in brackets, before that of a port.
        name = host[: host.find("]") + 1] if host.startswith("[") else host.partition(":")[0]
        name = name.removesuffix(".")
        return name in self._hosts or any(name.endswith(end) and name != end for end in self._endings)

    def _body_too_large(self) -> TooLarge:
        return TooLarge(
            "body-too-large",
            f"the body is over the limit of {self._body_limit} bytes: ask in several requests.",
            limit=self._body_limit,
        )

    async def _with_body(self, scope: Scope, receive: Receive, send: Send, length: int) -> None:
        """Pass on a request with a large body or one of no stated length; what breaks a rule is answered here."""
        body = _Body(receive, self._room, length)
        started, too_large = False, False

        async def counted_receive() -> Message:
            nonlocal too_large
            message = await body.receive()
            too_large = body.size > self._body_limit
            return {"type": "http.disconnect"} if too_large else message

        async def watched_send(message: Message) -> None:
            nonlocal started
            # What the application makes of the body that it did not get is no answer.
            if started or not (too_large or body.refused):
                started = True
                body.let_go()  # what is made of it is there; how long the client takes it is another matter
                await send(message)

        try:
            await self._app(scope, counted_receive, watched_send)
        except ClientDisconnect:
            if not (too_large or body.refused):
                raise
        finally:
            body.let_go()
        if started:
            return
        if too_large:
            await problem_response(self._body_too_large())(scope, receive, send)
        elif body.refused:
            await _refuse(self._room.refusal(), scope, receive, send, is_here=body.is_here)


class _Room:
    """Room for bodies: ``left`` bytes of it now, and the turn of the one that the application has.

    What the application makes of a body takes many times the body's bytes, and the interpreter all the while: more than
    one at a time would take more memory, and be ready no sooner.
    """

    def __init__(self, size: int) -> None:
        self.size = self.left = size
        self.turn = asyncio.Semaphore(1)

    def refusal(self) -> Unavailable:
        return Unavailable(
            "overloaded",
            f"bodies that are under way take the room for them, {self.size} bytes, or wait for others for long. "
            f"Try again in a moment, or with a body of up to {_SMALL_BODY} bytes.",
            limit=self.size,
        )


class _Body:
    """A body on its way to the application, and the room it takes; `let_go` must be called in the end.

    Attributes
    ----------
    size
        Bytes that have arrived.
    is_here
        Whether all of it has.
    refused
        Whether there was no room, or no turn in time: the application was told that the client has left.
    """

    def __init__(self, receive: Receive, room: _Room, length: int) -> None:
        self.size = 0
        self.is_here = self.refused = False
        self._receive = receive
        self._room = room
        self._held = 0
        self._has_turn = False
        self._hold(length)

    async def receive(self) -> Message:
        """What is next for the application."""
        if self.is_here:  # it has the body, and asks whether the client is still there: it is on to its answer
            self.let_go()
        message = await self._receive()
        if message["type"] != "http.request" or self.is_here:
            return message
        self.size += len(message.get("body", b""))
        self.is_here = not message.get("more_body", False)
        if self._hold(self.size) and (not self.is_here or await self._takes_its_turn()):
            return message
        self.refused = True
        self.let_go()
        return {"type": "http.disconnect"}

    def let_go(self) -> None:
        """Give the room and the turn to others."""
        self._room.left += self._held
        self._held = 0
        if self._has_turn:
            self._has_turn = False
            self._room.turn.release()

    def _hold(self, size: int) -> bool:
        """Take room for ``size`` bytes in all, if there is that much."""
        more = size - self._held
        if size <= _SMALL_BODY or more <= 0:
            return True
        if more > self._room.left:
            return False
        self._room.left -= more
        self._held = size
        return True

    async def _takes_its_turn(self) -> bool:
        if self._held:
            try:
                async with asyncio.timeout(_TURN_SECONDS):
                    await self._room.turn.acquire()
            except TimeoutError:
                return False
            self._has_turn = True
        return True


def _lengths(scope: Scope) -> list[bytes]:
    return [value for name, value in scope["headers"] if name == b"content-length"]


async def _refuse(problem: Problem, scope: Scope, receive: Receive, send: Send, *, is_here: bool = False) -> None:
    """Answer a problem; ``is_here`` says whether the body has arrived.

    A connection that is one too many ends with its answer. So does one that waits to be told to send a body: it may
    send its next request instead, which would be taken for the body.
    """
    named = {name for name, _ in scope["headers"]}
    waits = b"expect" in named
    if not (waits or isinstance(problem, Unavailable)):
        await problem_response(problem)(scope, receive, send)
        return
    response = problem_response(problem, {"Connection": "close"})
    if waits or is_here or named.isdisjoint((b"content-length", b"transfer-encoding")):
        await response(scope, receive, send)
        return
    # A connection that is closed while bytes arrive is reset, which may take the answer away from the client. So it is
    # closed when the client has read the answer and gives up, or has sent everything.
    await send({"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers})
    await send({"type": "http.response.body", "body": response.body, "more_body": True})
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.body", "body": b""})
