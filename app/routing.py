"""Routing: GET with HEAD, and the short way from a request to its endpoint.

Routes are declared for FastAPI, which describes them, and answers what no route takes. A request that one takes does
not pass through FastAPI: `Dispatch` finds the route by the segments of its path and calls the endpoint.
"""

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from app.endpoints import Call, bound
from app.errors import Problem
from app.openapi import Answers, request_headers
from app.problems import error_response

__all__ = ["Dispatch", "Router", "json_response"]

_LONGEST_KEPT = 512


class Router(APIRouter):
    """A router whose GET routes take HEAD, too, and whose endpoints ask for what `app.endpoints` can bind."""

    def __init__(self) -> None:
        super().__init__(default_response_class=Response, route_class=_Route)

    def read(
        self, path: str, responses: Answers, *, tag: str, heeds: Iterable[str] = ()
    ) -> Callable[[Callable[..., Any]], None]:
        """Register an endpoint for GET and HEAD; ``heeds`` are the headers of requests that it looks at."""
        extra = request_headers(heeds)

        def register(endpoint: Callable[..., Any]) -> None:
            self.add_api_route(path, endpoint, methods=["GET"], responses=responses, tags=[tag], openapi_extra=extra)
            # HEAD runs the same endpoint; the server leaves the body out.
            self.add_api_route(path, endpoint, methods=["HEAD"], include_in_schema=False)

        return register


class _Route(APIRoute):
    @cached_property
    def call(self) -> Call:
        return bound(self.endpoint)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        call = self.call  # bound when the route is made: a signature that cannot be is told at start-up

        async def handle(request: Request) -> Response:
            return await call(request)

        return handle


@dataclass(slots=True)
class _Node:
    """What may come after the first segments of a path."""

    fixed: dict[str, "_Node"] = field(default_factory=dict)
    named: "_Node | None" = None
    routes: dict[str, _Route] = field(default_factory=dict)


class Dispatch:
    """ASGI application that calls the endpoint of the route that takes a request, and answers for its errors.

    Parameters
    ----------
    app
        What answers the requests that no route takes.
    routers
        The routes. A segment of a path that is fixed in one route is a name in no other.
    """

    def __init__(self, app: ASGIApp, *, routers: Iterable[Router]) -> None:
        self._app = app
        self._root = _Node()
        self._kept = lru_cache(maxsize=1024)(self._find)  # clients that read a tensor ask for the same path
        for router in routers:
            for route in router.routes:
                if isinstance(route, _Route):
                    self._add(route)

    def _add(self, route: _Route) -> None:
        node = self._root
        for segment in route.path.split("/"):
            if segment.startswith("{"):
                node.named = node.named or _Node()
                node = node.named
            else:
                node = node.fixed.setdefault(segment, _Node())
        for method in route.methods or ():
            node.routes[method] = route

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""
        path: str = scope["path"]
        found = self._kept(path) if len(path) <= _LONGEST_KEPT else self._find(path)
        route = found and found[0].get(scope["method"])
        if not found or not route:
            await self._app(scope, receive, send)
            return
        scope["route"] = route
        scope["path_params"] = dict(zip(route.param_convertors, found[1], strict=True))
        try:
            response = await route.call(Request(scope, receive))
            await response(scope, receive, send)
        except (Problem, RequestValidationError) as error:
            # A response raises a problem only while it has sent nothing.
            await error_response(error)(scope, receive, send)

    def _find(self, path: str) -> tuple[Mapping[str, _Route], Sequence[str]] | None:
        """The routes of a path by method, and the names in it."""
        node, names = self._root, list[str]()
        for segment in path.split("/"):
            following = node.fixed.get(segment)
            if following is None:
                following = node.named
                if following is None or not segment:
                    return None
                names.append(segment)
            node = following
        return node.routes, names


def json_response(body: bytes) -> Response:
    """An answer of JSON text."""
    return Response(body, media_type="application/json")
