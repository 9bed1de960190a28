"""Endpoints: what their signatures may ask for, and how a request becomes their arguments.

FastAPI reads the same signatures for the API description. It would also solve them for every request, looking each up
again: that took half a millisecond, five times as long as the rest of a small answer. Here they are looked up once.
"""

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from fastapi import Depends, Path, Request
from fastapi import params as declared
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, BeforeValidator, ValidationError, WithJsonSchema
from starlette.responses import Response

from app.auth import Grant, grant_of
from app.names import decode_segment, query_pairs
from app.observe import note_names

__all__ = ["Call", "Granted", "Key", "ModelId", "TensorName", "bound"]

Call = Callable[[Request], Coroutine[Any, Any, Response]]

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

# From a request, the names in its path, and its query: an argument.
_Argument = Callable[[Request, Mapping[str, bytes], Mapping[str, str]], Any]


def bound(endpoint: Callable[..., Awaitable[Response]]) -> Call:
    """The call of an endpoint with what its signature asks for: a `Request`, `Granted`, names, a model of the query.

    The names and the selection that a request asks for are noted in its record on the way.

    Raises
    ------
    TypeError
        At once, if the signature asks for anything else.
    RequestValidationError
        By the call: the query is none of the model.
    """
    hints = get_type_hints(endpoint, include_extras=True)
    arguments = [(name, _argument(endpoint, name, hints.get(name))) for name in inspect.signature(endpoint).parameters]

    async def call(request: Request) -> Response:
        scope = request.scope
        names = {name: decode_segment(segment) for name, segment in scope["path_params"].items()}
        query = dict(query_pairs(scope["query_string"]))
        note_names(scope, names, query)
        return await endpoint(**{name: argument(request, names, query) for name, argument in arguments})

    return call


def _argument(endpoint: Callable[..., Any], name: str, hint: Any) -> _Argument:
    kind, *extras = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    if kind is Request:
        return lambda request, _names, _query: request
    if hint == Granted:
        return lambda request, _names, _query: grant_of(request.scope)
    if kind is bytes and _DECODED in extras:
        return lambda _request, names, _query: names[name]
    of_query = any(isinstance(one, declared.Query) for one in extras)
    if of_query and isinstance(kind, type) and issubclass(kind, BaseModel):
        return _model_of_query(kind)
    raise TypeError(
        f"{endpoint.__qualname__}: the parameter {name!r} is of a kind that app.endpoints does not bind: "
        "use Request, Granted, ModelId, TensorName, Key or Annotated[a model, Query()]."
    )


def _model_of_query(model: type[BaseModel]) -> _Argument:
    def validated(_request: Request, _names: Mapping[str, bytes], query: Mapping[str, str]) -> BaseModel:
        try:
            return model.model_validate(query)
        except ValidationError as error:
            # As FastAPI tells it.
            raise RequestValidationError([{**one, "loc": ("query", *one["loc"])} for one in error.errors()]) from None

    return validated
