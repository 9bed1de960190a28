"""What all routes share: names in paths, GET with HEAD, the answers that the API description lists."""

from collections.abc import Callable, Coroutine
from functools import cached_property
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Request
from fastapi.routing import APIRoute
from pydantic import BeforeValidator, WithJsonSchema
from starlette.datastructures import QueryParams
from starlette.responses import Response

from app.auth import Grant, grant_of
from app.names import decode_segment, query_pairs
from app.observe import note_names

__all__ = ["Answers", "Granted", "Key", "ModelId", "Router", "TensorName", "answers", "json_response"]

# A name in a path: any bytes, percent-encoded.
_DECODED = BeforeValidator(decode_segment)
_STRING = WithJsonSchema({"type": "string"})
ModelId = Annotated[
    bytes, Path(description="Model id: its path below the root, without .gguf.", examples=["demo"]), _DECODED, _STRING
]
TensorName = Annotated[bytes, Path(description="Tensor name.", examples=["blk.0.attn_q.weight"]), _DECODED, _STRING]
Key = Annotated[bytes, Path(description="Metadata key.", examples=["general.architecture"]), _DECODED, _STRING]


async def _grant(request: Request) -> Grant:
    return grant_of(request.scope)


Granted = Annotated[Grant, Depends(_grant)]

Answers = dict[int | str, dict[str, Any]]
_PROBLEM = {"application/problem+json": {"schema": {"type": "object"}}}


def answers(*problems: int, **described: dict[str, Any]) -> Answers:
    """The answers of a route for its API description: problem statuses, and ``s200=…`` for others."""
    listed: Answers = {int(status[1:]): answer for status, answer in described.items()}
    listed |= {status: {"description": "A problem document (RFC 9457).", "content": _PROBLEM} for status in problems}
    return listed


class Router(APIRouter):
    """A router whose GET routes take HEAD, too, and whose queries keep bytes that are no UTF-8."""

    def __init__(self) -> None:
        super().__init__(default_response_class=Response, route_class=_Route)

    def read(self, path: str, responses: Answers) -> Callable[[Callable[..., Any]], None]:
        """Register an endpoint for GET and HEAD."""

        def register(endpoint: Callable[..., Any]) -> None:
            self.add_api_route(path, endpoint, methods=["GET"], responses=responses)
            # HEAD runs the same endpoint; the server leaves the body out.
            self.add_api_route(path, endpoint, methods=["HEAD"], include_in_schema=False)

        return register


class _Request(Request):
    """A request whose query keeps bytes that are no UTF-8, as surrogate escapes: names may hold any."""

    @cached_property
    def query_params(self) -> QueryParams:
        return QueryParams(query_pairs(self.scope["query_string"]))


class _Route(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_bytes(request: Request) -> Response:
            request = _Request(request.scope, request.receive)
            note_names(request.scope, request.query_params)
            return await handle(request)

        return handle_bytes


def json_response(body: bytes) -> Response:
    """An answer of JSON text."""
    return Response(body, media_type="application/json")
