"""One attempt at a request: its headers, and what its answer means. Nothing here sends anything."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from ._errors import ConnectionFailed, ModelChanged, ServiceError, TensorTapError, error_of
from ._flow import Ask, Sink

__all__ = [
    "PassingError",
    "after_close",
    "attempt_headers",
    "broken_off",
    "check_head",
    "check_place",
    "check_whole",
    "failed",
    "failed_to_connect",
    "shown_url",
]

_PASSING = frozenset({408, 429, 502, 503, 504})
_HOPELESS = (httpx.UnsupportedProtocol, httpx.LocalProtocolError, httpx.TooManyRedirects)
_VERSION = "X-Model-ETag"
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(?:\d+|\*)")


class PassingError(Exception):
    """An attempt failed in a way that another one may not: ``error`` is for when none is left.

    ``retry_after`` is how many seconds the service asked for.
    """

    def __init__(self, error: TensorTapError, retry_after: float = 0) -> None:
        super().__init__(error)
        self.error = error
        self.retry_after = retry_after


def attempt_headers(ask: Ask) -> dict[str, str]:
    """The headers of the next attempt: for what is not there yet of a body that broke off.

    Raises
    ------
    ServiceError
        The path is a URL: a link that the service gave leads away from it, and the API key is not to follow.
    """
    if not ask.path.startswith("/"):
        raise ServiceError(f"the service gave a link that leads elsewhere: {ask.path}", url=ask.path)
    headers = dict(ask.headers)
    sink = ask.sink
    if sink is None:
        return headers
    # A content coding would count other bytes than those that are asked for.
    headers["Accept-Encoding"] = "identity"
    if sink.filled and (ask.json is not None or sink.etag is None):
        sink.restart()  # what has no ETag, or was posted, cannot be continued
    if ask.first is not None or sink.filled:
        first = (ask.first or 0) + sink.filled
        headers["Range"] = f"bytes={first}-{(ask.first or 0) + len(sink.view) - 1}"
        if sink.filled and sink.etag is not None:
            headers["If-Range"] = sink.etag
    return headers


def check_place(base: httpx.URL, url: httpx.URL) -> None:
    """Whether a request may go there: the headers, with their keys, are for the service that the client was told.

    Raises
    ------
    ServiceError
        A redirect leads to another host or port, and is not from http to https of one host.
    """
    is_same = url.host == base.host and (url.scheme, _port(url)) == (base.scheme, _port(base))
    if not is_same and (url.host, base.scheme, url.scheme) != (base.host, "http", "https"):
        there = shown_url(url)
        raise ServiceError(
            f"{shown_url(base)} redirects to elsewhere, to {there}: open the client with the URL that leads there.",
            url=there,
        )


def _port(url: httpx.URL) -> int | None:
    return url.port or {"http": 80, "https": 443}.get(url.scheme)


def check_head(ask: Ask, url: str, response: httpx.Response) -> bool:
    """Look at the head of an answer to an attempt; whether its body is what was asked for, and not an error's.

    Raises
    ------
    ServiceError
        It is no answer to what was asked, or comes from something else than the service.
    """
    status, sink, headers = response.status_code, ask.sink, response.headers
    if status >= 400:
        return False
    if 300 <= status < 400:
        where = headers.get("location", "nowhere")
        raise ServiceError(
            f"{url} was answered with status {status}, to {where}: open the client with the URL that leads there.",
            status=status,
            url=url,
        )
    wanted, found = ask.headers.get("If-Match"), headers.get(_VERSION)
    if wanted is not None and found is not None and found != wanted:
        # The service heeds If-Match; a cache between may not.
        raise ModelChanged(
            f"{url} was answered from version {found} of the model, not from {wanted}: open it again.",
            slug="model-changed",
            status=status,
            url=url,
        )
    if sink is None:
        if status != 200:
            raise ServiceError(f"{url} was answered with status {status}.", status=status, url=url)
        return True
    if "content-encoding" in headers and headers["content-encoding"] != "identity":
        raise ServiceError(
            f"{url} was answered in the coding {headers['content-encoding']!r}: something between compresses weights.",
            status=status,
            url=url,
        )
    first = (ask.first or 0) + sink.filled
    stop = (ask.first or 0) + len(sink.view)
    if status == 206:
        found = _CONTENT_RANGE.fullmatch(headers.get("content-range", ""))
        if found is None or (int(found[1]), int(found[2])) != (first, stop - 1):
            raise ServiceError(
                f"{url} was asked for bytes {first} to {stop - 1} and answered with "
                f"{headers.get('content-range', 'no Content-Range')!r}.",
                status=status,
                url=url,
            )
        if sink.filled and headers.get("etag") != sink.etag:
            raise ModelChanged(
                f"{url} went on with another version of the body: open the model again.",
                slug="model-changed",
                status=status,
                url=url,
            )
    elif status == 200 and (ask.first is None or _is_all(ask.first, sink, headers)):
        # The whole again, although it was asked to go on; or what takes no ranges, and the whole is what was asked for.
        sink.restart()
        # Without a length (a proxy sends chunks) it is seen at the end whether that was all.
        length = headers.get("content-length", str(len(sink.view)))
        if length != str(len(sink.view)):
            raise ServiceError(
                f"{url} was to have {len(sink.view)} bytes and says that it has {length}.", status=status, url=url
            )
    elif status == 200:
        raise ServiceError(
            f"{url} was asked for a range of bytes and answered with the whole: something between takes no ranges.",
            status=status,
            url=url,
        )
    else:
        raise ServiceError(f"{url} was answered with status {status}.", status=status, url=url)
    sink.etag = _strong(headers.get("etag"))
    return True


def _is_all(first: int, sink: Sink, headers: httpx.Headers) -> bool:
    """Whether the whole of a body may be what was asked for as a range of it: the same body as before, and as long."""
    is_same = not sink.filled or headers.get("etag") == sink.etag
    return first == 0 and is_same and headers.get("content-length") in (None, str(len(sink.view)))


def _strong(etag: str | None) -> str | None:
    """An ETag that If-Range may have; a weak one says nothing about bytes (RFC 9110, 8.8.1)."""
    return None if etag is None or etag.startswith("W/") else etag


def check_whole(ask: Ask, url: str) -> None:
    """After the body of an answer: whether it was whole; raises PassingError where it broke off."""
    sink = ask.sink
    if sink is not None and sink.filled < len(sink.view):
        raise broken_off(ask, url, None)


def failed(response: httpx.Response, url: str, content: bytes) -> Exception:
    """The error that an answer with a status of 400 and more is: a PassingError where another attempt may help."""
    error = error_of(response.status_code, _problem(content), url)
    if response.status_code not in _PASSING:
        return error
    return PassingError(error, _retry_after(response.headers))


def failed_to_connect(url: str, error: httpx.HTTPError) -> Exception:
    """No answer: a PassingError where another attempt may help."""
    failure = ConnectionFailed(f"no answer from {url}: {str(error) or type(error).__name__}", url=url)
    return failure if isinstance(error, _HOPELESS) else PassingError(failure)


def after_close(url: str) -> ConnectionFailed:
    """No answer, since the client is closed."""
    return ConnectionFailed(f"the client was closed before {url} was answered", url=url)


def broken_off(ask: Ask, url: str, error: httpx.HTTPError | None) -> PassingError:
    """An answer that is not whole."""
    sink = ask.sink
    how_far = f" after {sink.filled} of {len(sink.view)} bytes" if sink is not None else ""
    why = f": {error or type(error).__name__}" if error is not None else ""
    return PassingError(ConnectionFailed(f"the answer of {url} broke off{how_far}{why}", url=url))


def shown_url(url: httpx.URL) -> str:
    """A URL for messages: without user and password, and without a slash at the end."""
    return str(url.copy_with(userinfo=b"")).rstrip("/")


def _problem(content: bytes) -> Mapping[str, Any]:
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _retry_after(headers: Mapping[str, str]) -> float:
    value = headers.get("retry-after", "")
    if value.isascii() and value.isdecimal():
        return float(value)
    try:
        at = parsedate_to_datetime(value)
        if at.tzinfo is None:  # as email has it, of a zone that is not said; HTTP knows GMT alone
            at = at.replace(tzinfo=UTC)
        return max(0.0, (at - datetime.now(UTC)).total_seconds())
    except (ValueError, OverflowError):
        return 0
