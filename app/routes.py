"""The routes of models, metadata, tensor tables and the service's health. Those of weights: `app.routes_weights`."""

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Query, Request
from starlette.responses import Response

from app.auth import Grant
from app.conditions import Validators, heeded, is_not_modified
from app.endpoints import Granted, Key, ModelId, TensorName
from app.openapi import CONDITIONS, STATE, Answers, answers, reply
from app.parameters import KeyQuery, MetadataQuery, NoQuery, TensorsQuery
from app.representation import etag_of, model_etag
from app.routing import Router, json_response
from app.service import Service
from app.views import key_view, metadata_view, model_view, models_view, tensor_view, tensors_view

__all__ = ["routes"]


def _view(description: str, schema: str) -> Answers:
    same = reply("The client has this state.", None, *STATE)
    return answers(404, 412, 422, s200=reply(description, schema, *STATE), s304=same)


def routes(service: Service) -> Router:
    """The routes, bound to a service."""
    router = Router()

    async def view(
        request: Request, model_id: bytes, grant: Grant, make: Callable[..., bytes], *arguments: Any
    ) -> Response:
        snapshot = await service.snapshot(model_id, grant)
        try:
            etag = etag_of(snapshot, request.scope["path"], request.scope["query_string"])
            validators = Validators(etag, snapshot.modified_ns, model_etag(snapshot))
            headers = {**validators.headers(), "Cache-Control": service.settings.cache_control}
            # Conditions are about what would be a 200 (RFC 9110, 13.2.1). Who has the ETag has had one: no need to see.
            conditions = heeded(request.scope["headers"])
            has_it = etag in conditions.get("if-none-match", "")
            body = b"" if has_it else await service.work.run(make, snapshot, *arguments)
            if is_not_modified(conditions, validators):
                return Response(status_code=304, headers=headers)
            response = json_response(body or await service.work.run(make, snapshot, *arguments))
            response.headers.update(headers)
            return response
        finally:
            snapshot.release()

    @router.read("/v1/models", answers(s200=reply("The models.", "Models")), tag="models")
    async def list_models(grant: Granted, _: Annotated[NoQuery, Query()]) -> Response:
        """Every model on the volume; one that cannot be read is listed with its problem."""
        listed = await service.models(grant)
        return json_response(await service.work.run(models_view, listed))

    @router.read("/v1/models/{model}", _view("The model.", "Model"), tag="models", heeds=CONDITIONS)
    async def model(request: Request, model: ModelId, grant: Granted, _: Annotated[NoQuery, Query()]) -> Response:
        """One model: architecture, name, parameters, files, types, warnings."""
        return await view(request, model, grant, model_view)

    @router.read("/v1/models/{model}/-/metadata", _view("The keys.", "Metadata"), tag="models", heeds=CONDITIONS)
    async def metadata(
        request: Request, model: ModelId, grant: Granted, query: Annotated[MetadataQuery, Query()]
    ) -> Response:
        """Every metadata key with its type and value; long arrays shortened."""
        return await view(request, model, grant, metadata_view, query)

    @router.read("/v1/models/{model}/-/metadata/{key}", _view("The key.", "Key"), tag="models", heeds=CONDITIONS)
    async def metadata_key(
        request: Request, model: ModelId, grant: Granted, key: Key, query: Annotated[KeyQuery, Query()]
    ) -> Response:
        """One metadata key, whole."""
        return await view(request, model, grant, key_view, key, query.slice)

    @router.read("/v1/models/{model}/-/tensors", _view("A page.", "Tensors"), tag="models", heeds=CONDITIONS)
    async def tensors(
        request: Request, model: ModelId, grant: Granted, query: Annotated[TensorsQuery, Query()]
    ) -> Response:
        """The tensor table."""
        return await view(request, model, grant, tensors_view, query)

    @router.read(
        "/v1/models/{model}/-/tensors/{tensor}", _view("The tensor.", "Tensor"), tag="models", heeds=CONDITIONS
    )
    async def tensor(
        request: Request, model: ModelId, grant: Granted, tensor: TensorName, _: Annotated[NoQuery, Query()]
    ) -> Response:
        """One tensor: shape, type, place, links."""
        return await view(request, model, grant, tensor_view, tensor)

    @router.read("/healthz", answers(s200=reply("It does.", "Status")), tag="service")
    async def healthz() -> Response:
        """The process runs."""
        return json_response(b'{"status":"ok"}')

    @router.read("/readyz", answers(503, s200=reply("It can.", "Status")), tag="service")
    async def readyz() -> Response:
        """The volume can be listed, and the decoding threads take work."""
        await service.check_ready()
        return json_response(b'{"status":"ready"}')

    return router
