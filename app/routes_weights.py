"""The routes of weights: rows of one tensor, by path, by parameters or posted; and several tensors as safetensors."""

import asyncio
from collections.abc import Callable
from itertools import islice
from typing import Annotated

import orjson
from fastapi import Query, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.responses import Response

from app.endpoints import Granted, ModelId, TensorName
from app.errors import AmbiguousTensor, BadRequest, NotFound
from app.gguf import AmbiguousTensor as AmbiguousName
from app.gguf import NoSuchTensor, Tensor, quoted
from app.names import name_filter
from app.negotiation import accept_of, negotiated_format
from app.observe import record_of
from app.openapi import BINARY, CONDITIONS, RANGES, STATE, answers, reply, request_headers
from app.parameters import MOST_ROWS, NamedWeightsQuery, NoQuery, SafetensorsQuery, WeightsBody, WeightsQuery
from app.representation import Representation, represent
from app.respond import respond
from app.routing import Router
from app.safetensors import represent_safetensors
from app.schemas import ref
from app.service import Service
from app.snapshot import Snapshot

__all__ = ["weights_routes"]

_CONTENT = {
    "application/octet-stream": BINARY,
    "application/x-npy": BINARY,
    "application/json": {"schema": ref("Weights")},
}
_PART = {
    "application/octet-stream": BINARY,
    "application/x-npy": BINARY,
    "multipart/byteranges": BINARY,
}
_FILE = {"application/octet-stream": BINARY}
_FILE_PART = {"application/octet-stream": BINARY, "multipart/byteranges": BINARY}
_HEADERS = (*STATE, "Accept-Ranges", "Content-Disposition", "Content-Length")
_TENSOR = (*_HEADERS, "Vary", "X-Tensor-Dtype", "X-Tensor-Shape", "X-Tensor-Type")
_SAME = reply("The client has this state.", None, *STATE)
_WEIGHTS = answers(
    *(404, 406, 409, 412, 416, 422),
    s200=reply("The weights.", _CONTENT, *_TENSOR),
    s206=reply("The byte ranges asked for.", _PART, *_TENSOR, "Content-Range"),
    s304=_SAME,
)
_POSTED = answers(*(404, 406, 409, 412, 422), s200=reply("The weights.", _CONTENT, *_TENSOR))
_SAFETENSORS = answers(
    *(404, 409, 412, 416, 422),
    s200=reply("A safetensors file.", _FILE, *_HEADERS),
    s206=reply("The byte ranges asked for.", _FILE_PART, *_HEADERS, "Content-Range"),
    s304=_SAME,
)
_BODY = {"required": True, "content": {"application/json": {"schema": ref("WeightsBody")}}}
_HEEDS = (*CONDITIONS, *RANGES)
# 304 and ranges are for GET (RFC 9110, 13.1.2 and 14.2).
_HEEDS_POSTED = ("Accept", "If-Match", "If-Unmodified-Since")
_BODIES_AT_A_TIME = 2


def weights_routes(service: Service) -> Router:
    """The routes, bound to a service."""
    router = Router()
    json_limit = service.settings.json_limit
    # A body may take many times its size while it is parsed.
    parsing = asyncio.Semaphore(_BODIES_AT_A_TIME)

    async def answered(
        request: Request,
        snapshot: Snapshot,
        make: Callable[[Snapshot], Representation],
        *,
        vary: str = "",
        long: bool = False,
    ) -> Response:
        """The response to ``make``'s representation; a snapshot that no response holds is let go of.

        ``long``: making it may take long, so it is not for the event loop.
        """
        try:
            representation = await service.work.run(make, snapshot) if long else make(snapshot)
            return respond(request, representation, service, vary=vary)
        except BaseException:
            snapshot.release()
            raise

    async def weights(request: Request, snapshot: Snapshot, name: bytes, query: WeightsQuery | WeightsBody) -> Response:
        vary = "" if query.format else "Accept"

        def make(snapshot: Snapshot) -> Representation:
            format_name = query.format or negotiated_format(accept_of(request.scope["headers"]))
            return represent(snapshot, _found(snapshot, name), query, format_name, json_limit=json_limit)

        # A posted selection may list a million rows.
        return await answered(request, snapshot, make, vary=vary, long=request.scope["method"] == "POST")

    @router.read("/v1/models/{model}/-/data/{tensor}", _WEIGHTS, tag="weights", heeds=("Accept", *_HEEDS))
    async def data(
        request: Request, model: ModelId, grant: Granted, tensor: TensorName, query: Annotated[WeightsQuery, Query()]
    ) -> Response:
        """Weights of a tensor, decoded."""
        return await weights(request, await service.snapshot(model, grant), tensor, query)

    @router.read("/v1/data", _WEIGHTS, tag="weights", heeds=("Accept", *_HEEDS))
    async def data_by_parameters(
        request: Request, grant: Granted, query: Annotated[NamedWeightsQuery, Query()]
    ) -> Response:
        """Weights of a tensor, with its names as parameters."""
        snapshot = await service.snapshot(_bytes(query.model), grant)
        return await weights(request, snapshot, _bytes(query.tensor), query)

    @router.post(
        "/v1/models/{model}/-/data/{tensor}",
        responses=_POSTED,
        tags=["weights"],
        openapi_extra={"requestBody": _BODY, **request_headers(_HEEDS_POSTED)},
    )
    async def posted(
        request: Request, model: ModelId, grant: Granted, tensor: TensorName, _: Annotated[NoQuery, Query()]
    ) -> Response:
        """Weights of a tensor, by a selection that is too long for a URL."""
        # First, since a volume may hang, and bodies are read one at a time.
        snapshot = await service.snapshot(model, grant)
        try:
            body = await request.body()
            async with parsing:
                query = await service.work.run(_parsed, body)
            record_of(request.scope).selection = _summary(query)
        except BaseException:
            snapshot.release()
            raise
        return await weights(request, snapshot, tensor, query)

    @router.read("/v1/models/{model}/-/safetensors", _SAFETENSORS, tag="weights", heeds=_HEEDS)
    async def safetensors(
        request: Request, model: ModelId, grant: Granted, query: Annotated[SafetensorsQuery, Query()]
    ) -> Response:
        """Tensors of a model as one safetensors file, decoded as it is read."""

        def make(snapshot: Snapshot) -> Representation:
            tensors = _matching(snapshot, query)
            return represent_safetensors(snapshot, tensors, query.dtype)

        return await answered(request, await service.snapshot(model, grant), make, long=True)

    return router


def _parsed(body: bytes) -> WeightsBody:
    """The query that a body is.

    What a body may hold is millions of anything, and pydantic keeps each error and a copy of what it is about: the
    document is cut to what can be right before it is validated, and one of too many values is not even parsed.
    """
    # Each value but the first of a list or an object follows a comma: so many commas are so many values.
    if body.count(b",") > MOST_ROWS + len(WeightsBody.model_fields):
        raise BadRequest("bad-parameter", f"the body lists more than {MOST_ROWS} rows: ask in several requests.")
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadRequest("bad-parameter", f"the body is no JSON document: {error.msg}.") from None
    if isinstance(document, dict):
        # One member more than there are is refused as surely as a million.
        document = dict(islice(document.items(), len(WeightsBody.model_fields) + 1))
    try:
        return WeightsBody.model_validate(document)
    except ValidationError as error:
        raise RequestValidationError([{**one, "loc": ("body", *one["loc"])} for one in error.errors()]) from None


def _matching(snapshot: Snapshot, query: SafetensorsQuery) -> list[Tensor]:
    """The tensors that a query names; one that names none is more likely a mistake than a wish."""
    is_wanted = name_filter("*" if query.name is None else query.name)
    is_left_out = name_filter(query.exclude) if query.exclude is not None else lambda _: False
    tensors = [one for one in snapshot.model.tensors if is_wanted(one.name) and not is_left_out(one.name)]
    if not tensors and (query.name is not None or query.exclude is not None):
        raise NotFound("no-such-tensor", "no tensor of the model matches; the tensor table has all of them.")
    return tensors


def _summary(query: WeightsBody) -> str | None:
    """A posted selection for the log: a long list of rows is told by its length."""
    rows = f"{len(query.rows)} rows" if isinstance(query.rows, list) else query.rows
    given = {"rows": rows, "cols": query.cols, "slice": query.slice}
    return "&".join(f"{name}={value}" for name, value in given.items() if value is not None) or None


def _found(snapshot: Snapshot, name: bytes) -> Tensor:
    try:
        return snapshot.model.find(name)
    except NoSuchTensor:
        detail = f"the model has no tensor {quoted(name)}; the tensor table has all of them."
        raise NotFound("no-such-tensor", detail) from None
    except AmbiguousName as error:
        raise AmbiguousTensor(f"the file has {quoted(name)} {error.count} times, so the name tells none.") from None


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")
