"""What can go wrong, as one tree; each is also the built-in error that a person expects.

TensorTapError
├── NotFound (KeyError)              no such model, tensor or key, or none that the API key may read
├── SelectionError (IndexError)      the index does not fit the tensor
├── BadRequest (ValueError)          something else in the request is wrong
├── Unauthorized (PermissionError)   no API key, or none that is valid
├── TooLarge                         over a limit of the service
├── Unreadable (ValueError)          the model's file, or a tensor of it, is damaged or of an unknown type
├── ModelChanged                     the model on the volume is another one than the one that was opened
├── Overloaded                       the service refused for now, and went on to do so
├── ServiceError                     the service failed, or answered what it should not
└── ConnectionFailed (ConnectionError)   no answer, or an answer that broke off, again and again
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = [
    "BadRequest",
    "ConnectionFailed",
    "ModelChanged",
    "NotFound",
    "Overloaded",
    "SelectionError",
    "ServiceError",
    "TensorTapError",
    "TooLarge",
    "Unauthorized",
    "Unreadable",
    "error_of",
]


class TensorTapError(Exception):
    """Base of all errors of this package.

    Attributes
    ----------
    detail
        What was wrong, where, and what to do.
    slug
        The kind of problem as the service names it, like ``no-such-tensor``; None where the service has not spoken.
    status
        The HTTP status, if there was an answer.
    url
        What was asked for.
    problem
        The fields of the service's problem document (RFC 9457).
    """

    def __init__(
        self,
        detail: str,
        *,
        slug: str | None = None,
        status: int | None = None,
        url: str = "",
        problem: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.slug = slug
        self.status = status
        self.url = url
        self.problem = dict(problem or {})

    def __str__(self) -> str:  # a KeyError's own would be the repr
        return self.detail if self.slug is None else f"{self.slug}: {self.detail}"

    def __reduce__(self) -> tuple[Any, ...]:
        fields = {name: value for name, value in vars(self).items() if name != "detail"}
        return _again, (type(self), self.detail, fields)


def _again(kind: type[TensorTapError], detail: str, fields: dict[str, Any]) -> TensorTapError:
    return kind(detail, **fields)


class NotFound(TensorTapError, KeyError):
    """There is no such model, tensor or key, or none that the API key may read."""


class SelectionError(TensorTapError, IndexError):
    """The index does not fit the tensor."""


class BadRequest(TensorTapError, ValueError):
    """Something in the request is wrong."""


class Unauthorized(TensorTapError, PermissionError):
    """The service asks for an API key, or does not know the one it got."""


class TooLarge(TensorTapError):
    """The answer or the request is over a limit of the service."""


class Unreadable(TensorTapError, ValueError):
    """The model's file, or a tensor of it, is damaged or of a type that is not decoded."""


class ModelChanged(TensorTapError):
    """The model on the volume is no longer the one that was opened: open it again."""


class Overloaded(TensorTapError):
    """The service refused for now (503, or 429 of a proxy), however often it was asked."""


class ServiceError(TensorTapError):
    """The service failed, or something between answered in its place."""


class ConnectionFailed(TensorTapError, ConnectionError):
    """There was no answer, or only the beginning of one, however often it was asked for."""


_BY_SLUG: dict[str, type[TensorTapError]] = {
    "bad-selection": SelectionError,
    "selection-out-of-range": SelectionError,
    "model-changed": ModelChanged,
    "ambiguous-tensor": Unreadable,
}
_BY_STATUS: dict[int, type[TensorTapError]] = {
    400: BadRequest,
    401: Unauthorized,
    403: Unauthorized,
    404: NotFound,
    412: ModelChanged,
    413: TooLarge,
    414: TooLarge,
    422: Unreadable,
    429: Overloaded,
    503: Overloaded,
}


def error_of(status: int, problem: Mapping[str, Any], url: str) -> TensorTapError:
    """The error that an answer with a status of 400 and more is; ``problem`` is its document, empty if it has none."""
    kind_of_problem = problem.get("type")
    slug = kind_of_problem.rpartition("/")[2] if isinstance(kind_of_problem, str) and kind_of_problem else None
    kind = _BY_SLUG.get(slug or "") or _BY_STATUS.get(status, ServiceError)
    if slug == "volume-error":
        kind = ServiceError
    detail = problem.get("detail")
    if not isinstance(detail, str) or not detail:
        detail = f"{url} was answered with status {status} and without a reason: is it a tensortap service?"
    return kind(detail, slug=slug, status=status, url=url, problem=problem)
