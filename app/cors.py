"""CORS: which pages of other origins may read the answers, by starlette's middleware, in our shape of error."""

from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp

from app.errors import BadRequest
from app.problems import problem_response

__all__ = ["CrossOrigin"]

_METHODS = ("GET", "HEAD", "POST")
_TAKEN = (
    "Authorization",
    "Content-Type",
    "If-Match",
    "If-None-Match",
    "If-Range",
    "Range",
    "X-API-Key",
    "X-Request-ID",
)
_SHOWN = (
    "Accept-Ranges",
    "Content-Disposition",
    "Content-Length",
    "Content-Range",
    "ETag",
    "Retry-After",
    "X-Model-ETag",
    "X-Request-ID",
    "X-Tensor-Dtype",
    "X-Tensor-Shape",
    "X-Tensor-Type",
)


class CrossOrigin(CORSMiddleware):
    """ASGI middleware for pages of the ``origins``, as ``https://example.org``; ``*`` means any.

    It answers a preflight itself, so that one needs no key. Cookies play no part here, so none are allowed.
    """

    def __init__(self, app: ASGIApp, *, origins: Sequence[str]) -> None:
        super().__init__(
            app,
            allow_origins=origins,
            allow_methods=_METHODS,
            allow_headers=_TAKEN,
            expose_headers=_SHOWN,
        )

    def preflight_response(self, request_headers: Headers) -> Response:
        """The answer to a preflight; a problem document where it is refused."""
        response = super().preflight_response(request_headers)
        if response.status_code < 400:
            return response
        headers = {name: value for name, value in response.headers.items() if not name.startswith("content-")}
        detail = "the settings of the service do not let pages of this origin send such a request."
        return problem_response(BadRequest("cross-origin-refused", detail), headers)
