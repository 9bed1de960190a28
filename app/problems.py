"""Errors on the wire: application/problem+json (RFC 9457) for all that goes wrong, the framework's own included."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send

from app.errors import Problem, Unavailable, exhausted
from app.observe import record_of

__all__ = ["AnswerFaults", "add_problem_handlers", "error_response", "problem_response"]

_METHODS = ("GET", "HEAD", "POST")
_SHOWN_ERRORS = 5
_LONGEST_INPUT = 80


def problem_response(problem: Problem, headers: Mapping[str, str] | None = None) -> Response:
    """The answer that a problem is."""
    return Response(
        json.dumps(problem.body(), ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n",
        status_code=problem.status,
        headers={**problem.headers, **(headers or {}), "Cache-Control": "no-store"},
        media_type="application/problem+json",
    )


def error_response(error: Problem | RequestValidationError) -> Response:
    """The answer to an error of an endpoint."""
    return problem_response(error if isinstance(error, Problem) else _invalid(error))


def add_problem_handlers(app: FastAPI) -> None:
    """Make every error of ``app`` a problem document."""

    @app.exception_handler(Problem)
    @app.exception_handler(RequestValidationError)
    async def known(_: Request, error: Problem | RequestValidationError) -> Response:
        return error_response(error)

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        if error.status_code == HTTPStatus.NOT_FOUND:
            detail = "nothing is at this path; /v1/models lists the models, /docs the routes."
            return problem_response(Problem("no-such-resource", detail, status=404))
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            detail = f"this path does not take {request.method[:_LONGEST_INPUT]}; the Allow header says what it does."
            allow = ", ".join(method for method in _METHODS if _takes(app, request, method))
            return problem_response(Problem("method-not-allowed", detail, status=405), {"Allow": allow})
        slug = HTTPStatus(error.status_code).phrase.lower().replace(" ", "-")
        return problem_response(Problem(slug, str(error.detail), status=error.status_code), error.headers)

    @app.exception_handler(MemoryError)
    @app.exception_handler(OSError)
    @app.exception_handler(RuntimeError)
    async def out_of_something(_: Request, error: Exception) -> Response:
        if (problem := exhausted(error)) is None:
            raise error
        return problem_response(problem)

    @app.exception_handler(Exception)
    async def unexpected(_request: Request, _error: Exception) -> Response:
        return _internal_error()


def _internal_error() -> Response:
    detail = "the service failed in a way it should not have; its log has the reason."
    return problem_response(Problem("internal-error", detail, status=500))


class AnswerFaults:
    """ASGI middleware that answers an error which nothing else has answered.

    With 503 where the service stops, or the system has no more memory, descriptors or threads, and otherwise with 500:
    that one is raised again, for the log. It belongs inside `Observe`, whose record says whether an answer has begun.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:
            # The server ends what still runs when its grace is over, and would say 500 of what has not begun.
            if scope["type"] != "http" or record_of(scope).status is not None:
                raise
            stopping = Unavailable("shutting-down", "the service is stopping. Try again in a moment.")
            await problem_response(stopping, {"Connection": "close"})(scope, receive, send)
        except Exception as error:
            begun = scope["type"] != "http" or record_of(scope).status is not None
            problem = exhausted(error)
            if not begun:
                await (_internal_error() if problem is None else problem_response(problem))(scope, receive, send)
            if begun or problem is None:
                raise


def _takes(app: FastAPI, request: Request, method: str) -> bool:
    # The router's own Allow is that of one route: HEAD and POST have routes of their own.
    scope = {**request.scope, "method": method}
    return any(route.matches(scope)[0] is Match.FULL for route in app.routes)


def _invalid(error: RequestValidationError) -> Problem:
    # A value that may be of several types has an error for each: told as one.
    by_name: dict[str, list[dict[str, Any]]] = {}
    for one in error.errors():
        by_name.setdefault(_place(one["loc"]), []).append(one)
    sentences = [_sentence(name, same) for name, same in [*by_name.items()][:_SHOWN_ERRORS]]
    if len(by_name) > _SHOWN_ERRORS:
        sentences.append(f"and {len(by_name) - _SHOWN_ERRORS} more")
    return Problem("bad-parameter", "; ".join(sentences) + ".", status=400)


def _place(loc: Sequence[str | int]) -> str:
    """Where a value is, as ``rows[3]``: the parameter, or the member of the body, without pydantic's names of types."""
    _, *path = loc
    if not path:
        return "body"
    places = "".join(f"[{part}]" for part in path[1:] if isinstance(part, int))
    return f"{path[0]}{places}"[:_LONGEST_INPUT]


def _sentence(name: str, errors: Sequence[dict[str, Any]]) -> str:
    kind = errors[0]["type"]
    if kind == "extra_forbidden":
        return f"{name!r} is no parameter of this route"
    if kind == "missing":
        return f"the parameter {name!r} is missing"
    reasons = " or ".join(dict.fromkeys(one["msg"][0].lower() + one["msg"][1:] for one in errors))
    if name == "body":
        return f"the body: {reasons}"
    value = errors[0].get("input")
    if isinstance(value, (list, dict)):  # a posted one may have millions of members
        return f"{name}: {reasons}"
    given = repr(value[: _LONGEST_INPUT + 1] if isinstance(value, str) else value)
    given = given if len(given) <= _LONGEST_INPUT else given[:_LONGEST_INPUT] + "…"
    return f"{name}={given}: {reasons}"
