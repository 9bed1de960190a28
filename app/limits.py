"""Rules that every request keeps, checked before any route sees it: the length of its URL, and no parameter twice."""

from starlette.types import ASGIApp, Receive, Scope, Send

from app.errors import BadRequest, Problem, TooLarge
from app.names import query_pairs
from app.problems import problem_response

__all__ = ["RequestRules"]

_SHOWN = 40


class RequestRules:
    """ASGI middleware that answers a request which breaks a rule with a problem document."""

    def __init__(self, app: ASGIApp, *, url_limit: int) -> None:
        self._app = app
        self._url_limit = url_limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] == "http" and (problem := self._broken_rule(scope)):
            await problem_response(problem)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _broken_rule(self, scope: Scope) -> Problem | None:
        query: bytes = scope["query_string"]
        size = len(scope.get("raw_path") or b"") + len(query)
        if size > self._url_limit:
            return TooLarge(
                "url-too-long",
                f"a path and query of {size} bytes are over the limit of {self._url_limit}: "
                "ask in several requests, with slices instead of lists where rows follow each other.",
                status=414,
                limit=self._url_limit,
            )
        if b"&" in query:
            seen: set[str] = set()
            for name, _ in query_pairs(query):
                if name in seen:
                    return BadRequest("bad-parameter", f"the parameter {name[:_SHOWN]!r} is given more than once.")
                seen.add(name)
        return None
