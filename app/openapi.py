"""The API description: what the framework cannot know of the routes, and what all of them share.

Routes say which answers they have of their own; `describe` adds those that any route may give, headers, HEAD, and keys.
Nothing here is looked at when a request is answered.
"""

import copy
from collections.abc import Collection, Iterable
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute

from app.limits import PROBES
from app.parameters import WeightsBody
from app.schemas import SCHEMAS, Schema, ref

__all__ = [
    "BINARY",
    "CONDITIONS",
    "DESCRIPTION",
    "RANGES",
    "STATE",
    "Answers",
    "answers",
    "describe",
    "operation_id",
    "reply",
    "request_headers",
]

Answers = dict[int | str, dict[str, Any]]
Operation = dict[str, Any]

DESCRIPTION = """\
GGUF files on a volume: metadata, tensor lists, and any rows of any tensor as plain numbers, decoded on demand.

**Names.** Models, keys and tensors are named by bytes, percent-encoded in a path. A `/` in a name may be sent as it is
or as `%2F`; `/-/` ends a model id. Every listing has ready links (`href`, `data`, `next`): follow those.

**Problems.** Everything that goes wrong is `application/problem+json` (RFC 9457) of the schema `Problem`. Beyond what
each route lists, another method is 405 with `Allow`, another path 404, and a fault of the service 500. Once a 200 has
begun, a failure ends the connection short of its `Content-Length`.

**State.** Answers about a model have a strong `ETag`, which depends on its content and on what is asked for alone.
"""
BINARY: Schema = {"schema": {"type": "string", "format": "binary"}}
STATE = ("ETag", "X-Model-ETag", "Last-Modified", "Cache-Control")
"""Headers of every answer about a model."""
CONDITIONS = ("If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since")
"""Headers of requests that are about a state of a model."""
RANGES = ("Range", "If-Range")
"""Headers of requests for a part of an answer."""

_TAGS = {
    "models": "What is on the volume, and what is in each model.",
    "weights": "Rows of tensors, decoded.",
    "service": "How the service does.",
}
_PROBLEMS = {
    400: "bad-parameter, bad-selection, selection-out-of-range, bad-host: the request cannot be meant.",
    401: "unauthorized: it needs a valid API key.",
    404: "no-such-model, no-such-tensor, no-such-key: nothing by that name, or nothing that this key may read.",
    406: "not-acceptable: Accept takes none of the forms there are.",
    409: "ambiguous-tensor: the file has the name more than once.",
    412: "model-changed: the model is in another state than If-Match or If-Unmodified-Since is about.",
    413: "response-too-large, body-too-large: the answer or the body is over a limit.",
    414: "url-too-long: path and query are over a limit.",
    416: "range-not-satisfiable: the answer has no byte in the range.",
    422: "unreadable-model, incomplete-split, or the fault of a tensor: the file cannot be read.",
    503: "overloaded, volume-error: not now. Try again after a moment.",
}
_PROBLEM_HEADERS = {401: ("WWW-Authenticate",), 412: ("ETag",), 416: ("Content-Range",), 503: ("Retry-After",)}
_DATE = "[A-Z][a-z]{2}, [0-9]{2} [A-Z][a-z]{2} [0-9]{4} [0-9]{2}:[0-9]{2}:[0-9]{2} GMT"
# Each: what it says, a pattern, an example.
_HEADERS = {
    "Accept-Ranges": ("That byte ranges may be asked for; not with JSON.", "bytes", "bytes"),
    "Cache-Control": ("Who may keep the answer, and for how long.", None, "public, max-age=0, must-revalidate"),
    "Content-Disposition": (
        "A file name to save it under (RFC 6266).",
        "attachment; .+",
        'attachment; filename="m.w.bin"',
    ),
    "Content-Length": ("Bytes of the body, exactly; absent only from HEAD of JSON weights.", "[0-9]+", "512"),
    "Content-Range": (
        "Which bytes these are, or how many there are; with several ranges, each part has its own.",
        r"bytes ([0-9]+-[0-9]+|\*)/[0-9]+",
        "bytes 0-99/512",
    ),
    "ETag": ("The state of the answer, as a strong validator.", '"[A-Za-z0-9_=-]+"', '"yVbW3zE0b2v1Tq8dJ5nA"'),
    "Last-Modified": ("When the model was last written.", _DATE, "Sun, 06 Nov 1994 08:49:37 GMT"),
    "Retry-After": ("Seconds to wait.", "[0-9]+", "1"),
    "Vary": ("Which headers of the request chose the answer.", None, "Accept"),
    "WWW-Authenticate": ("How to give a key.", "Bearer", "Bearer"),
    "X-Model-ETag": (
        "The state of the model: If-Match takes it for every answer about the model.",
        '"[A-Za-z0-9_=-]+"',
        '"Qm2c0vYtq7sXw1pK9aZe"',
    ),
    "X-Request-ID": ("The request's id in the log: the client's own, or a new one.", "[!-~]{1,128}", "b7c1f0"),
    "X-Tensor-Dtype": ("Type of an answered weight; native for stored blocks.", "[a-z]+[0-9]*", "float32"),
    "X-Tensor-Shape": ("Shape of the answer, as a JSON list.", r"\[([0-9]+(,[0-9]+)*)?\]", "[2,64]"),
    "X-Tensor-Type": ("ggml type of the tensor.", "[A-Z0-9_]+", "Q4_1"),
}
# Those that the same kind of answer may have or not.
_OPTIONAL = {"Accept-Ranges", "Cache-Control", "Content-Length", "Content-Range", "Vary"}
_REQUEST_HEADERS = {
    "Accept": ("Media types, by preference. format= wins over it.", "application/x-npy"),
    "If-Match": ("Answer only if the ETag or the X-Model-ETag is one of these, or *; else 412.", "*"),
    "If-Modified-Since": ("Answer 304 if the model has not been written since.", "Sun, 06 Nov 1994 08:49:37 GMT"),
    "If-None-Match": ("Answer 304 if the ETag is one of these.", '"yVbW3zE0b2v1Tq8dJ5nA"'),
    "If-Range": ("Heed Range only if this is the ETag, or the time of the last write.", '"yVbW3zE0b2v1Tq8dJ5nA"'),
    "If-Unmodified-Since": ("Answer 412 if the model has been written since.", "Fri, 31 Dec 2100 23:59:59 GMT"),
    "Range": (
        "Bytes of the answer: one range, or up to 16 in order. What cannot be heeded is ignored (RFC 9110, 14.2).",
        "bytes=0-99",
    ),
    "X-Request-ID": ("An id for the log: up to 128 letters, digits and ._~:/+=@-; others are ignored.", "b7c1f0"),
}


def reply(description: str, content: dict[str, Any] | str | None = None, *headers: str) -> dict[str, Any]:
    """An answer that is no problem: its media types (or the name of a JSON schema), and the headers it has."""
    if isinstance(content, str):
        content = {"application/json": {"schema": ref(content)}}
    return {
        "description": description,
        "headers": {name: _pointer("headers", name) for name in headers},
        **({"content": content} if content else {}),
    }


def answers(*problems: int, **described: dict[str, Any]) -> Answers:
    """The answers of a route: the statuses of problems that not every route has, and ``s200=reply(…)`` for others."""
    listed: Answers = {int(status[1:]): answer for status, answer in described.items()}
    return listed | {status: _problem(status) for status in problems}


def request_headers(names: Iterable[str]) -> dict[str, Any]:
    """The part of an operation that says which headers of a request it heeds."""
    return {"parameters": [_pointer("parameters", name) for name in names]}


def operation_id(route: APIRoute) -> str:
    """What programs made from the description call a route: the name of its endpoint."""
    return route.name


def describe(app: FastAPI, *, keys: bool, open_paths: Collection[str]) -> None:
    """Give an application the whole description of its routes.

    Parameters
    ----------
    keys
        Whether API keys are asked for.
    open_paths
        The paths that need none even then.
    """
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _completed(copy.deepcopy(generate()), keys, open_paths)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _completed(document: dict[str, Any], keys: bool, open_paths: Collection[str]) -> dict[str, Any]:
    for path, item in document["paths"].items():
        locked = keys and path not in open_paths
        for operation in item.values():
            shared = [400, 413, 414, *([] if path in PROBES else [503]), *([401] if locked else [])]
            _complete(operation, shared)
            if keys and not locked:
                operation["security"] = []
        if "get" in item:
            item["head"] = _head(item["get"])
    document["tags"] = [{"name": name, "description": text} for name, text in _TAGS.items()]
    document["components"] = {
        "schemas": {**SCHEMAS, "WeightsBody": WeightsBody.model_json_schema()},
        "headers": {name: _header(name) for name in _HEADERS},
        "parameters": {name: _request_header(name) for name in _REQUEST_HEADERS},
    }
    if keys:
        document["components"]["securitySchemes"] = {
            "bearer": {"type": "http", "scheme": "bearer", "description": "An API key (RFC 6750)."},
            "apiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key", "description": "The same, on its own."},
        }
        document["security"] = [{"bearer": []}, {"apiKey": []}]
    return document


def _complete(operation: Operation, problems: list[int]) -> None:
    responses: dict[str, Any] = operation["responses"]
    for status in problems:
        responses.setdefault(str(status), _problem(status))
    for answer in responses.values():
        answer.setdefault("headers", {})["X-Request-ID"] = _pointer("headers", "X-Request-ID")
    operation["responses"] = dict(sorted(responses.items()))
    parameters: list[dict[str, Any]] = operation.setdefault("parameters", [])
    parameters.append(_pointer("parameters", "X-Request-ID"))
    for parameter in parameters:
        if "schema" in parameter:
            parameter["schema"] = _given(parameter["schema"])


def _given(schema: Schema) -> Schema:
    """The schema of a parameter that is given: a query can leave one out, but has no null."""
    kinds = [kind for kind in schema.get("anyOf", ()) if kind != {"type": "null"}]
    if len(kinds) != 1:
        return schema
    return {**kinds[0], **{name: value for name, value in schema.items() if name != "anyOf"}}


def _head(get: Operation) -> Operation:
    """HEAD of what GET describes: the same headers without a body, and never a part."""
    head = copy.deepcopy(get)
    head["operationId"] = f"head_{get['operationId']}"
    head["summary"] = f"{get['summary']}: headers only"
    ranges = [_pointer("parameters", name) for name in RANGES]
    head["parameters"] = [parameter for parameter in head["parameters"] if parameter not in ranges]
    head["responses"] = {
        status: {name: value for name, value in answer.items() if name != "content"}
        for status, answer in head["responses"].items()
        if status not in ("206", "416")
    }
    return head


def _problem(status: int) -> dict[str, Any]:
    content = {"application/problem+json": {"schema": ref("Problem")}}
    return reply(_PROBLEMS[status], content, *_PROBLEM_HEADERS.get(status, ()))


def _header(name: str) -> dict[str, Any]:
    description, pattern, example = _HEADERS[name]
    schema = {"type": "string", **({"pattern": f"^{pattern}$"} if pattern else {})}
    return {"description": description, "required": name not in _OPTIONAL, "schema": schema, "example": example}


def _request_header(name: str) -> dict[str, Any]:
    description, example = _REQUEST_HEADERS[name]
    return {"name": name, "in": "header", "description": description, "schema": {"type": "string"}, "example": example}


def _pointer(kind: str, name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/{kind}/{name}"}
