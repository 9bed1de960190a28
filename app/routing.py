"""What all routes share: names in paths, and GET with HEAD."""

from collections.abc import Callable, Coroutine, Iterable
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
from app.openapi import Answers, request_headers

__all__ = ["Granted", "Key", "ModelId", "Router", "TensorName", "json_response"]

# A name in a path: any bytes, percent-encoded.
_DECODED = BeforeValidator(decode_segment)
_SLASHES = "Percent-encoded bytes; a / in it may be sent as it is or as %2F."


def _text(example: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "examples": [example]})


ModelId = Annotated[
    bytes, Path(description=f"Model id: its path below the root, without .gguf. {_SLASHES}"), _DECODED, _text("demo")
]
TensorName = Annotated[bytes, Path(description=f"Tensor name. {_SLASHES}"), _DECODED, _text("blk.0.attn_q.weight")]
Key = Annotated[bytes, Path(description=f"Metadata key. {_SLASHES}"), _DECODED, _text("tokenizer.ggml.tokens")]


async def _grant(request: Request) -> Grant:
    return grant_of(request.scope)


Granted = Annotated[Grant, Depends(_grant)]


class Router(APIRouter):
    """A router whose GET routes take HEAD, too, and whose queries keep bytes that are no UTF-8."""

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
