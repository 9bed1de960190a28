"""From a representation to a response: conditions, ranges, and the headers that every answer of weights has."""

from time import perf_counter

from starlette.requests import Request
from starlette.responses import Response

from app.body import WeightsResponse
from app.conditions import Validators, answer, heeded, is_not_modified
from app.content import content_length
from app.errors import TooLarge
from app.ready import ReadyResponse, ready_body
from app.representation import Representation, model_etag
from app.service import Service

__all__ = ["respond"]


def respond(request: Request, representation: Representation, service: Service, *, vary: str = "") -> Response:
    """The response to a request for a representation, whose snapshot must be held; the response lets it go.

    Raises
    ------
    ModelChanged, RangeNotSatisfiable, TooLarge
        412, 416, and 413 for more bytes than the service is set to answer; the snapshot is then still held.
    """
    began = perf_counter()
    settings, snapshot = service.settings, representation.snapshot
    validators = Validators(representation.etag, snapshot.modified_ns, model_etag(snapshot))
    common = {**validators.headers(), "Cache-Control": settings.cache_control, "X-Accel-Buffering": "no"}
    if vary:
        common["Vary"] = vary
    method: str = request.scope["method"]
    headers = heeded(request.scope["headers"])
    # A POST may ask for a state with If-Match; 304 and ranges are for GET (RFC 9110, 13.1.2 and 14.2).
    is_read = method in ("GET", "HEAD")
    if headers and is_not_modified(headers, validators) and is_read:
        snapshot.release()
        return Response(status_code=304, headers=common)
    media_type = representation.headers["Content-Type"]
    chosen = answer(headers if method == "GET" else {}, validators, representation.content, media_type)
    limit = settings.answer_limit
    if limit is not None and (size := content_length(chosen.content)) is not None and size > limit:
        raise TooLarge(
            "response-too-large",
            f"{size} bytes are over the limit of {limit} of one answer: ask for fewer rows at a time, or for ranges.",
            limit=limit,
            size=size,
        )
    described = {**representation.headers, **common, **chosen.headers}
    body = None if method == "HEAD" else ready_body(chosen.content, service.reader)
    if body is not None:
        response = ReadyResponse(chosen.status, described, body, began)
        snapshot.release()
        return response
    return WeightsResponse(
        chosen.status,
        described,
        chosen.content,
        snapshot,
        service.reader,
        service.gate,
        read_ahead=settings.read_ahead,
    )
