"""Dispatch: every route is found by its path and method, and what no route takes goes to the framework."""

import asyncio
from typing import Annotated

import pytest
from fastapi import Query
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from app.endpoints import Key, ModelId
from app.errors import NotFound
from app.parameters import KeyQuery
from app.routing import Dispatch, Router, json_response

router = Router()
calls: list[tuple[str, ...]] = []


@router.read("/a", {}, tag="t")
async def plain() -> Response:
    calls.append(("plain",))
    return json_response(b"{}")


@router.read("/a/{model}", {}, tag="t")
async def one(model: ModelId) -> Response:
    calls.append(("one", model.decode()))
    return Response()


@router.read("/a/{model}/-/b/{key}", {}, tag="t")
async def two(model: ModelId, key: Key, _: Annotated[KeyQuery, Query()]) -> Response:
    calls.append(("two", model.decode(), key.decode()))
    return Response()


@router.post("/a/{model}")
async def posted(model: ModelId) -> Response:
    calls.append(("posted", model.decode()))
    return Response()


class Fails(Response):
    async def __call__(self, _scope: Scope, _receive: Receive, _send: Send) -> None:
        raise NotFound("no-such-thing", "it is not here.")


@router.read("/fails/{model}", {}, tag="t")
async def fails(model: ModelId) -> Response:
    if model == b"at once":
        raise NotFound("no-such-thing", "it is not here.")
    return Fails()


class Passed:
    """What no route takes."""

    def __init__(self) -> None:
        self.scopes: list[Scope] = []

    async def __call__(self, scope: Scope, _receive: Receive, _send: Send) -> None:
        self.scopes.append(scope)


passed = Passed()
dispatch = Dispatch(passed, routers=[router])


def ask(method: str, path: str, query: bytes = b"") -> tuple[Scope, list[Message]]:
    scope: Scope = {"type": "http", "method": method, "path": path, "query_string": query, "headers": [], "state": {}}
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.request"}

    calls.clear()
    passed.scopes.clear()
    asyncio.run(dispatch(scope, receive, send))
    return scope, sent


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize(
    ("path", "called", "template"),
    [
        ("/a", ("plain",), "/a"),
        ("/a/=m", ("one", "m"), "/a/{model}"),
        ("/a/=", ("one", ""), "/a/{model}"),
        ("/a/=m%2Fn/-/b/=k", ("two", "m/n", "k"), "/a/{model}/-/b/{key}"),
        ("/a/=" + "m" * 5000, ("one", "m" * 5000), "/a/{model}"),
    ],
)
def test_a_route_is_called_with_the_names_in_its_path(
    method: str, path: str, called: tuple[str, ...], template: str
) -> None:
    for _ in range(2):  # the second time, the path is known
        scope, sent = ask(method, path)
        assert calls == [called]
        assert scope["route"].path == template
        assert sent[0]["status"] == 200
        assert passed.scopes == []


def test_methods_of_a_path_have_endpoints_of_their_own() -> None:
    ask("POST", "/a/=m")
    assert calls == [("posted", "m")]


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/"), ("GET", ""), ("GET", "/a/"), ("GET", "/a//-/b/=k"), ("GET", "/a/=m/-/c"), ("GET", "/a/=m/-/b/=k/x"),
     ("POST", "/a"), ("DELETE", "/a/=m"), ("get", "/a")],
)  # fmt: skip
def test_what_no_route_takes_is_passed_on(method: str, path: str) -> None:
    for _ in range(2):
        scope, sent = ask(method, path)
        assert passed.scopes == [scope]
        assert "route" not in scope
        assert (calls, sent) == ([], [])


@pytest.mark.parametrize("name", ["at%20once", "later"])
def test_a_problem_of_an_endpoint_and_of_its_response_is_the_answer(name: str) -> None:
    _, sent = ask("GET", f"/fails/={name}")
    assert sent[0]["status"] == 404
    assert b'"/problems/no-such-thing"' in sent[1]["body"]


def test_a_bad_query_is_the_answer() -> None:
    _, sent = ask("GET", "/a/=m/-/b/=k", b"nothing=1")
    assert sent[0]["status"] == 400
    assert b"is no parameter of this route" in sent[1]["body"]
    assert calls == []
