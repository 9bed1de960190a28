"""Flows: what is to be asked, and what is made of the answers, without saying how anything is sent.

A flow is a generator that yields effects and is sent their results; `tensortap._sync` runs flows with threads,
`tensortap._async` with tasks. So both clients are one piece of code (httpx's own ``auth_flow`` is made so, too).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from ._errors import ServiceError

__all__ = ["Answer", "Ask", "Compute", "Effect", "Flow", "Sink", "Together", "cores"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back: header names match in any case; ``content`` is empty where a sink took the body."""

    status: int
    headers: Mapping[str, str]
    content: bytes
    url: str = ""

    def json(self) -> Any:
        """The content as JSON; raises ServiceError for what is none."""
        return self.read(lambda document: document)

    def read(self, take: Callable[[Any], T]) -> T:
        """What ``take`` finds in the content as JSON; raises ServiceError where it is none, or lacks what is sought."""
        try:
            return take(json.loads(self.content))
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise ServiceError(
                f"the answer of {self.url} is not understood ({type(error).__name__}: {error}): "
                "is it a tensortap service, and not an older one?",
                status=self.status,
                url=self.url,
            ) from error


@dataclass(slots=True)
class Sink:
    """Where a body goes, byte by byte in order; it knows how far it came, so that a broken body can be resumed.

    Attributes
    ----------
    view
        Memory of exactly the body's length.
    filled
        Bytes of it that are there.
    etag
        Of the body that they are of, once an answer has begun.
    on_bytes
        Called with the number of bytes of each piece that came.
    """

    view: memoryview
    on_bytes: Callable[[int], object] | None = None
    filled: int = 0
    etag: str | None = None

    def restart(self) -> None:
        """Forget what came: the next answer has it again."""
        if self.filled and self.on_bytes is not None:
            self.on_bytes(-self.filled)
        self.filled, self.etag = 0, None

    def take(self, chunk: bytes) -> None:
        """Put the next bytes in their place; raises ServiceError if there is no room for them."""
        stop = self.filled + len(chunk)
        if stop > len(self.view):
            raise ServiceError(f"an answer has more than the {len(self.view)} bytes that were asked for.")
        self.view[self.filled : stop] = chunk
        self.filled = stop
        if self.on_bytes is not None:
            self.on_bytes(len(chunk))


@dataclass(frozen=True, slots=True)
class Ask:
    """Effect: a request, tried again while that may help; gives the `Answer`.

    Attributes
    ----------
    path
        With its query, from the service's root, percent-encoded.
    json
        A document to post; None for a GET.
    sink
        Takes the body, which may then come in several answers.
    first
        Of a byte range, the first byte; the sink's length says how many. None for the whole body.
    """

    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    json: Mapping[str, Any] | None = None
    sink: Sink | None = None
    first: int | None = None


@dataclass(frozen=True, slots=True)
class Together:
    """Effect: flows that may run at the same time, none of which yields another Together.

    They are taken from the iterable as others end, so there may be any number of them. The first error ends all.
    """

    flows: Iterable[Flow[None]]


@dataclass(frozen=True, slots=True)
class Compute:
    """Effect: work that takes long enough to be in the way of an event loop; gives its result.

    Not more of it is done at a time than there are cores, however many requests there are. A Q4_K tensor of 2^26
    weights from loopback, 8 requests at a time, 2 cores: 0.19 s (median of 9), and 0.26 s if all 8 threads decode.
    """

    work: Callable[[], Any]


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


Effect: TypeAlias = Ask | Together | Compute
Flow: TypeAlias = Generator[Effect, Any, T]
