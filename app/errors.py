"""The errors of the service: one tree, each an answer that a client can act on.

    Problem                       a status, a slug, a title, a detail, more fields
    +-- BadRequest                400 bad-selection, selection-out-of-range, bad-parameter, bad-host
    +-- NotFound                  404 no-such-model, no-such-tensor, no-such-key, no-such-resource
    +-- NotAcceptable             406 not-acceptable
    +-- AmbiguousTensor           409 ambiguous-tensor
    +-- ModelChanged              412 model-changed
    +-- TooLarge                  413 response-too-large, body-too-large, 414 url-too-long
    +-- RangeNotSatisfiable       416 range-not-satisfiable, with Content-Range
    +-- Unreadable                422 unreadable-model, incomplete-split, and every tensor fault
    +-- Unavailable               503 volume-error, overloaded, shutting-down, with Retry-After

Each becomes an application/problem+json body (RFC 9457) in `app.problems`. What the system raises where it has no more
memory, descriptors or threads is an Unavailable, too: `exhausted`.
"""

import errno
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

__all__ = [
    "AmbiguousTensor",
    "BadRequest",
    "ModelChanged",
    "NotAcceptable",
    "NotFound",
    "Problem",
    "RangeNotSatisfiable",
    "TooLarge",
    "Unavailable",
    "Unreadable",
    "exhausted",
]


class Problem(Exception):
    """An error with an answer: its ``status``, ``slug`` (the end of the problem's type), ``detail`` and ``fields``."""

    status: int = 500
    headers: Mapping[str, str] = MappingProxyType({})

    def __init__(self, slug: str, detail: str, *, status: int | None = None, **fields: Any) -> None:
        super().__init__(detail)
        self.slug = slug
        self.detail = detail
        self.fields = fields
        if status is not None:
            self.status = status

    @property
    def title(self) -> str:
        """The slug as words: ``no-such-tensor`` gives ``No such tensor``."""
        return self.slug.replace("-", " ").capitalize()

    def body(self) -> dict[str, Any]:
        """The members of the problem document, in the order in which RFC 9457 introduces them."""
        return {
            "type": f"/problems/{self.slug}",
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            **self.fields,
        }


class BadRequest(Problem, ValueError):
    """The request asks for something that cannot be meant."""

    status = 400


class NotFound(Problem, LookupError):
    """Nothing by that name."""

    status = 404


class AmbiguousTensor(Problem, LookupError):
    """The file has the name more than once."""

    status = 409

    def __init__(self, detail: str, **fields: Any) -> None:
        super().__init__("ambiguous-tensor", detail, **fields)


class NotAcceptable(Problem):
    """The Accept header takes none of the forms there are."""

    status = 406


class ModelChanged(Problem):
    """The request is for another state of the model than there is."""

    status = 412

    def __init__(self, etag: str) -> None:
        super().__init__(
            "model-changed",
            f"the model is not what the request is for: it is now {etag}. Ask again without conditions.",
        )
        self.headers = {"ETag": etag}


class RangeNotSatisfiable(Problem):
    """None of the ranges asked for has a byte."""

    status = 416

    def __init__(self, length: int) -> None:
        super().__init__(
            "range-not-satisfiable", f"the answer has {length} bytes, and the range has none of them.", length=length
        )
        self.headers = {"Content-Range": f"bytes */{length}"}


class TooLarge(Problem):
    """The request or its answer is over a limit; the detail names the limit and the way around it."""

    status = 413


class Unreadable(Problem, ValueError):
    """The file, or the tensor in it, cannot be read; the detail says why."""

    status = 422


class Unavailable(Problem, OSError):
    """The service cannot answer now and may later."""

    status = 503
    headers: Mapping[str, str] = MappingProxyType({"Retry-After": "1"})


_EXHAUSTED = {
    errno.ENOMEM: "memory",
    errno.EMFILE: "descriptors",
    errno.ENFILE: "descriptors",
}
_NO_THREAD = "can't start new thread"  # a RuntimeError of no kind of its own


def exhausted(error: BaseException) -> Unavailable | None:
    """The answer to an error that says that the system has no more of something: ``overloaded``. None for any other.

    What was asked for is not at fault, and may be had as soon as others have let go.
    """
    what = None
    if isinstance(error, MemoryError):
        what = "memory"
    elif isinstance(error, OSError):
        what = _EXHAUSTED.get(error.errno or 0)
    elif isinstance(error, RuntimeError) and str(error) == _NO_THREAD:
        what = "threads"
    if what is None:
        return None
    return Unavailable("overloaded", f"the service has no {what} left for this now. Try again in a moment.")
