"""Rules that every request keeps, checked before any route sees it.

The host it asks for, how many connections there are, the length of its URL and of its body, and no parameter twice.
"""

from collections.abc import Sequence

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.errors import BadRequest, Problem, TooLarge, Unavailable
from app.names import query_pairs
from app.problems import problem_response

__all__ = ["PROBES", "RequestRules"]

# Asked by whoever watches over the process: by any host name, without a key, also when others are turned away.
PROBES = frozenset({"/healthz", "/readyz"})
_SHOWN = 40
_MOST_DIGITS = 20


class RequestRules:
    """ASGI middleware that answers a request which breaks a rule with a problem document.

    Parameters
    ----------
    url_limit
        Most bytes of a path and query.
    body_limit
        Most bytes of a request's body.
    allowed_hosts
        Host names that may be asked for, without ports; ``*.example.org`` means every name below it, ``*`` any.
    """

    def __init__(self, app: ASGIApp, *, url_limit: int, body_limit: int, allowed_hosts: Sequence[str]) -> None:
        self._app = app
        self._url_limit = url_limit
        self._body_limit = body_limit
        self._any_host = "*" in allowed_hosts
        self._hosts = frozenset(host.lower() for host in allowed_hosts)
        self._endings = tuple(host.lower()[1:] for host in allowed_hosts if host.startswith("*."))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        named = {name for name, _ in scope["headers"]}
        if problem := self._broken_rule(scope, has_length=b"content-length" in named):
            # A connection that is one too many ends with its answer. So does one that waits to be told to send a body:
            # it may send its next request instead, which would be taken for the body.
            closes = b"expect" in named or isinstance(problem, Unavailable)
            headers = {"Connection": "close"} if closes else None
            await problem_response(problem, headers)(scope, receive, send)
        elif b"transfer-encoding" in named:
            await self._counted(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _broken_rule(self, scope: Scope, *, has_length: bool) -> Problem | None:
        probe = scope["path"] in PROBES
        if scope.get("state", {}).get("overloaded") and not probe:
            return Unavailable("overloaded", "the service has as many connections as it takes. Try again in a moment.")
        if not (self._any_host or probe or self._is_allowed_host(scope)):
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
        lengths = [value for name, value in scope["headers"] if name == b"content-length"]
        too_large = any(len(value) > _MOST_DIGITS or int(value) > self._body_limit for value in lengths)
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

    async def _counted(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a request whose body has no length; one that turns out too large is answered here."""
        size, started, problem = 0, False, None

        async def counted_receive() -> Message:
            nonlocal size, problem
            message = await receive()
            size += len(message.get("body", b""))
            if size > self._body_limit:
                problem = self._body_too_large()
                return {"type": "http.disconnect"}
            return message

        async def watched_send(message: Message) -> None:
            nonlocal started
            # What the application makes of the body that it did not get is no answer.
            if problem is None or started:
                started = True
                await send(message)

        try:
            await self._app(scope, counted_receive, watched_send)
        except ClientDisconnect:
            if problem is None:
                raise
        if problem is not None and not started:
            await problem_response(problem)(scope, receive, send)
