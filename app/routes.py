"""The routes: from a URL to what answers it. Each finds its model, holds the snapshot, and lets it go."""

from collections.abc import Callable, Coroutine
from functools import cached_property
from typing import Annotated, Any

import anyio.to_thread
from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.routing import APIRoute
from pydantic import BeforeValidator, WithJsonSchema
from starlette.datastructures import QueryParams
from starlette.responses import Response

from app.auth import Grant, grant_of
from app.body import WeightsResponse
from app.errors import AmbiguousTensor, NotFound, Unavailable
from app.gguf import AmbiguousTensor as AmbiguousName
from app.gguf import NoSuchTensor, quoted
from app.names import decode_segment, query_pairs
from app.observe import note_names
from app.parameters import KeyQuery, MetadataQuery, NamedWeightsQuery, NoQuery, TensorsQuery, WeightsQuery
from app.representation import represent
from app.service import Service
from app.views import key_view, metadata_view, model_view, models_view, tensor_view, tensors_view

__all__ = ["routes"]


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

_PROBLEM = {"application/problem+json": {"schema": {"type": "object"}}}
_BINARY = {"schema": {"type": "string", "format": "binary"}}
_WEIGHTS = {
    "description": "The weights.",
    "content": {
        "application/octet-stream": _BINARY,
        "application/x-npy": _BINARY,
        "application/json": {"schema": {"type": "object"}},
    },
}


def _answers(*statuses: int, ok: dict[str, Any] | None = None) -> dict[int | str, dict[str, Any]]:
    problems: dict[int | str, dict[str, Any]] = {
        status: {"description": "A problem document (RFC 9457).", "content": _PROBLEM} for status in statuses
    }
    return {200: ok, **problems} if ok else problems


def routes(service: Service) -> APIRouter:
    """Every route, each for GET and HEAD, bound to a service."""
    router = APIRouter(default_response_class=Response, route_class=_Route)

    def get(path: str, responses: dict[int | str, dict[str, Any]]) -> Callable[[Callable[..., Any]], None]:
        def register(endpoint: Callable[..., Any]) -> None:
            router.add_api_route(path, endpoint, methods=["GET"], responses=responses)
            # HEAD runs the same endpoint; the server leaves the body out.
            router.add_api_route(path, endpoint, methods=["HEAD"], include_in_schema=False)

        return register

    async def view(model_id: bytes, grant: Grant, make: Callable[..., bytes], *arguments: Any) -> Response:
        snapshot = await service.snapshot(model_id, grant)
        try:
            return _json(await anyio.to_thread.run_sync(make, snapshot, *arguments))
        finally:
            snapshot.release()

    async def weights(model_id: bytes, grant: Grant, name: bytes, query: WeightsQuery) -> Response:
        settings = service.settings
        snapshot = await service.snapshot(model_id, grant)
        try:
            tensor = snapshot.model.find(name)
            representation = represent(snapshot, tensor, query, json_limit=settings.json_limit)
            return WeightsResponse(
                representation,
                service.reader,
                read_ahead=settings.read_ahead,
                cache_control=settings.cache_control,
            )
        except NoSuchTensor:
            snapshot.release()
            detail = f"the model has no tensor {quoted(name)}; the tensor table has all of them."
            raise NotFound("no-such-tensor", detail) from None
        except AmbiguousName as error:
            snapshot.release()
            raise AmbiguousTensor(f"the file has {quoted(name)} {error.count} times, so the name tells none.") from None
        except BaseException:
            snapshot.release()
            raise

    @get("/v1/models", _answers(400, 503))
    async def list_models(grant: Granted, _: Annotated[NoQuery, Query()]) -> Response:
        """Every model on the volume; one that cannot be read is listed with its problem."""
        listed = await service.models(grant)
        return _json(await anyio.to_thread.run_sync(models_view, listed))

    @get("/v1/models/{model}", _answers(400, 404, 422, 503))
    async def model(model: ModelId, grant: Granted, _: Annotated[NoQuery, Query()]) -> Response:
        """One model: architecture, name, parameters, files, types, warnings."""
        return await view(model, grant, model_view)

    @get("/v1/models/{model}/-/metadata", _answers(400, 404, 422, 503))
    async def metadata(model: ModelId, grant: Granted, query: Annotated[MetadataQuery, Query()]) -> Response:
        """Every metadata key with its type and value; long arrays shortened."""
        return await view(model, grant, metadata_view, query)

    @get("/v1/models/{model}/-/metadata/{key}", _answers(400, 404, 422, 503))
    async def metadata_key(model: ModelId, grant: Granted, key: Key, query: Annotated[KeyQuery, Query()]) -> Response:
        """One metadata key, whole."""
        return await view(model, grant, key_view, key, query.slice)

    @get("/v1/models/{model}/-/tensors", _answers(400, 404, 422, 503))
    async def tensors(model: ModelId, grant: Granted, query: Annotated[TensorsQuery, Query()]) -> Response:
        """The tensor table."""
        return await view(model, grant, tensors_view, query)

    @get("/v1/models/{model}/-/tensors/{tensor}", _answers(400, 404, 422, 503))
    async def tensor(model: ModelId, grant: Granted, tensor: TensorName, _: Annotated[NoQuery, Query()]) -> Response:
        """One tensor: shape, type, place, links."""
        return await view(model, grant, tensor_view, tensor)

    @get("/v1/models/{model}/-/data/{tensor}", _answers(400, 404, 409, 413, 422, 503, ok=_WEIGHTS))
    async def data(
        model: ModelId, grant: Granted, tensor: TensorName, query: Annotated[WeightsQuery, Query()]
    ) -> Response:
        """Weights of a tensor, decoded."""
        return await weights(model, grant, tensor, query)

    @get("/v1/data", _answers(400, 404, 409, 413, 422, 503, ok=_WEIGHTS))
    async def data_by_parameters(grant: Granted, query: Annotated[NamedWeightsQuery, Query()]) -> Response:
        """Weights of a tensor, with its names as parameters."""
        return await weights(_bytes(query.model), grant, _bytes(query.tensor), query)

    @get("/healthz", {})
    async def healthz() -> Response:
        """The process runs."""
        return _json(b'{"status":"ok"}')

    @get("/readyz", _answers(503))
    async def readyz() -> Response:
        """The volume can be listed."""
        if not await anyio.to_thread.run_sync(service.catalogue.volume.readable):
            raise Unavailable("volume-error", "the volume cannot be listed now. Is it mounted?")
        return _json(b'{"status":"ready"}')

    return router


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


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")
