"""From a representation to a response: conditions, ranges, and the headers that every answer of weights has."""

from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from app.body import WeightsResponse
from app.conditions import Validators, answer, is_not_modified
from app.content import content_length
from app.errors import TooLarge
from app.representation import Representation
from app.service import Service

__all__ = ["respond"]


def respond(
    request: Request, representation: Representation, service: Service, *, vary: Iterable[str] = ()
) -> Response:
    """The response to a request for a representation, whose snapshot must be held; the response lets it go.

    Raises
    ------
    ModelChanged, RangeNotSatisfiable, TooLarge
        412, 416, and 413 for more bytes than the service is set to answer; the snapshot is then still held.
    """
    settings = service.settings
    validators = Validators(representation.etag, representation.snapshot.modified_ns)
    common = {**validators.headers(), "Cache-Control": settings.cache_control, "X-Accel-Buffering": "no"}
    if vary := ", ".join(vary):
        common["Vary"] = vary
    headers: Headers = request.headers
    # A POST may ask for a state with If-Match; 304 and ranges are for GET (RFC 9110, 13.1.2 and 14.2).
    is_read = request.method in ("GET", "HEAD")
    if is_not_modified(headers, validators) and is_read:
        representation.snapshot.release()
        return Response(status_code=304, headers=common)
    media_type = representation.headers["Content-Type"]
    chosen = answer(headers if request.method == "GET" else {}, validators, representation.content, media_type)
    size, limit = content_length(chosen.content), settings.answer_limit
    if limit is not None and size is not None and size > limit:
        raise TooLarge(
            "response-too-large",
            f"{size} bytes are over the limit of {limit} of one answer: ask for fewer rows at a time, or for ranges.",
            limit=limit,
            size=size,
        )
    return WeightsResponse(
        chosen.status,
        {**representation.headers, **common, **chosen.headers},
        chosen.content,
        representation.snapshot,
        service.reader,
        service.gate,
        read_ahead=settings.read_ahead,
    )
