"""Endpoints: what a signature asks for is what it gets, and what cannot be bound is told when the route is made."""

import asyncio
from typing import Annotated, Any

import pytest
from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.responses import Response
from starlette.types import Message, Scope

from app.auth import Grant
from app.endpoints import Granted, Key, ModelId, TensorName, bound
from app.observe import RequestRecord
from app.parameters import KeyQuery, NamedWeightsQuery, NoQuery, TensorsQuery
from app.routing import Router

QUERIES = [
    (NoQuery, b"a=1&b=2"),
    (NamedWeightsQuery, b""),
    (NamedWeightsQuery, b"model=m&tensor=%FF&rows=1&format=nothing&dtype=&x"),
    (TensorsQuery, b"limit=1_0&cursor=-1&type=Q4_K&name=%20"),
    (TensorsQuery, b"limit=0&cursor=99999999999999999999"),
    (KeyQuery, b"slice=&slices=1"),
]


def request(query: bytes = b"", names: dict[str, str] | None = None) -> Request:
    state = {"grant": Grant(None), "record": RequestRecord()}
    scope = {"type": "http", "headers": [], "query_string": query, "path_params": names or {}, "state": state}
    return Request(scope)


def test_an_endpoint_gets_what_it_asks_for() -> None:
    got: dict[str, Any] = {}

    async def endpoint(
        asked: Request, model: ModelId, key: Key, tensor: TensorName, who: Granted, query: Annotated[KeyQuery, Query()]
    ) -> Response:
        got.update(locals())
        return Response()

    one = request(b"slice=1:2", {"model": "=a%2Fb%FF", "key": "=", "tensor": "=%3D"})
    asyncio.run(bound(endpoint)(one))
    got.pop("got")
    names = {"model": b"a/b\xff", "key": b"", "tensor": b"="}
    assert got == {"asked": one, **names, "who": Grant(None), "query": KeyQuery(slice="1:2")}
    record = one.scope["state"]["record"]
    assert (record.model, record.tensor, record.selection) == ("a/b\ufffd", "=", "slice=1:2")


@pytest.mark.parametrize(("model", "query"), QUERIES)
def test_a_bad_query_is_told_as_the_framework_tells_it(model: type[BaseModel], query: bytes) -> None:
    async def endpoint(given: Annotated[model, Query()]) -> Response:  # type: ignore[valid-type]
        raise AssertionError(given)

    app, told = FastAPI(openapi_url=None), list[RequestValidationError]()
    app.get("/")(endpoint)

    @app.exception_handler(RequestValidationError)
    async def keep(_: Request, error: RequestValidationError) -> Response:
        told.append(error)
        return Response()

    async def send(_: Message) -> None: ...

    scope: Scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": query}
    asyncio.run(app(scope, asyncio.Event().wait, send))  # type: ignore[arg-type]
    with pytest.raises(RequestValidationError) as ours:
        asyncio.run(bound(endpoint)(request(query)))

    def kinds(error: RequestValidationError) -> set[tuple[Any, ...]]:
        return {(one["loc"], one["type"], one["msg"]) for one in error.errors()}

    assert kinds(ours.value) == kinds(told[0])


async def number(number: int) -> Response:
    return Response(str(number))


async def untyped(request) -> Response:  # type: ignore[no-untyped-def]
    return Response(str(request))


async def plain_query(query: KeyQuery) -> Response:
    return Response(str(query))


@pytest.mark.parametrize("endpoint", [number, untyped, plain_query])
def test_what_cannot_be_bound_is_told_when_the_route_is_made(endpoint: Any) -> None:
    (name,) = [one for one in endpoint.__annotations__ if one != "return"] or ["request"]
    with pytest.raises(TypeError, match=f"{endpoint.__name__}: the parameter '{name}' is of a kind"):
        Router().add_api_route("/", endpoint)
