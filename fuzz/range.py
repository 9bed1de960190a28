"""Conditions, ranges and Accept: what is answered is what RFC 9110 says, and its bytes are those of the whole body.

An input: a byte that picks what is asked for, then lines of headers, in which ``{etag}`` and ``{date}`` stand for those
of what is asked for, and ``{model}`` for the ETag of the model. Headers that are written by the grammar of RFC 9110
decide what the answer must be; where one is not, its bytes must still be right.
"""

import re
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import cache
from itertools import pairwise

from fuzz._requests import header_lines, plain_service
from fuzz._service import Answer

__all__ = ["WORDS", "run", "seeds"]

WORDS = (
    *(
        b"\nRange: bytes=",
        b"\nIf-Range: ",
        b"\nIf-Match: ",
        b"\nIf-None-Match: ",
        b"\nAccept: ",
        b"\nIf-Modified-Since: ",
    ),
    *(
        b"\nIf-Unmodified-Since: ",
        b"{etag}",
        b"{date}",
        b"{model}",
        b"W/",
        b"0-0",
        b"-1",
        b"1-",
        b",",
        b", ",
        b"*",
        b'"x"',
        b"bytes=",
    ),
    *(b"31-32", b"0-31", b"-0", b"99999999999999999999-", b"application/x-npy", b"application/json", b";q=0", b"*/*"),
    *(
        b"Fri, 31 Dec 9999 23:59:59 GMT",
        b"Thu, 01 Jan 1970 00:00:00 GMT",
        b"\nAccept-Encoding: gzip, br",
        b"\xb2",
        b"+1",
        b"_",
    ),
)
_DATA = b"/v1/models/m/-/data/"
_TARGETS = (
    *(
        ("GET", _DATA + rest)
        for rest in (b"w", b"w?format=npy", b"long", b"long?format=npy&rows=::-1", b"none", b"none?format=npy")
    ),
    *(("GET", _DATA + rest) for rest in (b"w?format=json", b"q?format=native", b"long?cols=3&format=raw")),
    *(("GET", b"/v1/models/m/-/safetensors"), ("HEAD", _DATA + b"long"), ("GET", b"/v1/models/m/-/tensors")),
)
_LINES = (
    *(
        b"Range: bytes=0-3",
        b"Range: bytes=-4",
        b"Range: bytes=99999-",
        b"Range: bytes=0-0,-1",
        b"Range: bytes=5-1",
        b"Range: x=0-1",
    ),
    *(
        b"If-None-Match: {etag}",
        b"If-None-Match: W/{etag}",
        b'If-None-Match: "x", *',
        b"If-Match: {etag}",
        b'If-Match: "x"',
    ),
    *(
        b"If-Modified-Since: {date}",
        b"If-Unmodified-Since: {date}",
        b"Range: bytes=1-2\nIf-Range: {etag}",
        b"Accept: application/x-npy",
    ),
    *(
        b"Range: bytes=1-2\nIf-Range: {date}",
        b'Range: bytes=1-2\nIf-Range: "x"',
        b"Accept: text/html, */*;q=0.1",
        b"Accept: image/*",
    ),
    *(
        b"Range: bytes=" + b",".join(b"%d-%d" % (n, n) for n in range(0, 40, 2)),
        b"Range: bytes=0-1,1-2",
        b"Range: bytes=4-5,0-1",
    ),
)
_TAG = r'(?:W/)?"[\x21\x23-\x7e\x80-\xff]*"'
_TAGS = re.compile(rf"{_TAG}(?:[ \t]*,[ \t]*{_TAG})*")
_DAY = "(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)"
_MONTH = "(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_DATE = re.compile(rf"{_DAY}, [0-9]{{2}} {_MONTH} [0-9]{{4}} [0-9]{{2}}:[0-9]{{2}}:[0-9]{{2}} GMT")
_RANGES = re.compile(r"bytes=(?:[0-9]+-[0-9]*|-[0-9]+)(?:[ \t]*,[ \t]*(?:[0-9]+-[0-9]*|-[0-9]+))*", re.IGNORECASE)
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_PART = re.compile(rb"Content-Type: ([^\r\n]+)\r\nContent-Range: bytes (\d+)-(\d+)/(\d+)\r\n\r\n")
_MOST_RANGES = 16


@dataclass(frozen=True, slots=True)
class _Whole:
    """A body that is asked for without a condition, and what it is known by."""

    body: bytes
    etag: str
    model_etag: str
    date: str


class _Unclear(Exception):
    """The headers are not by the grammar: what they mean is not for this oracle."""


def run(data: bytes) -> None:
    """Ask, and hold the answer against the whole body and, where they are clear, against the headers."""
    if not data:
        return
    method, target = _TARGETS[data[0] % len(_TARGETS)]
    first = _whole(method, target, None)
    lines = data[1:].replace(b"{etag}", first.etag.encode()).replace(b"{date}", first.date.encode())
    lines = lines.replace(b"{model}", first.model_etag.encode())
    headers = header_lines(lines)
    answer = plain_service().ask(method, target, headers)
    given: dict[str, str] = {}
    for name, value in headers:
        given.setdefault(name.decode(), value.decode("latin-1"))
    whole = first
    if answer.status in (200, 206):
        media_type = answer.headers["content-type"]
        if answer.status == 206 and media_type.startswith("multipart/"):
            media_type = answer.body.split(b"\r\n", 2)[1].removeprefix(b"Content-Type: ").decode()
        whole = _whole(method, target, None if "accept" not in given else media_type)
        assert answer.headers.get("etag", "") == whole.etag
    ranges = _ranges_in(answer, whole)
    if answer.status == 406:
        assert "accept" in given
        return
    if "accept" in given and whole is first and answer.status not in (200, 206):
        return  # its tag may be that of another format
    try:
        wanted = _wanted(given, whole, method, has_ranges="accept-ranges" in answer.headers or answer.status == 416)
    except _Unclear:
        return
    assert (answer.status, ranges) == wanted, (given, wanted)


def seeds() -> list[bytes]:
    """Each header, with a few things that are asked for."""
    return [bytes((target,)) + line for number, line in enumerate(_LINES) for target in (0, 1 + number % 11)]


@cache
def _whole(method: str, target: bytes, media_type: str | None) -> _Whole:
    headers = [] if media_type is None else [(b"accept", media_type.encode())]
    answer = plain_service().ask(method, target, headers)
    assert answer.status == 200
    etag, model_etag, date = (answer.headers.get(name, "") for name in ("etag", "x-model-etag", "last-modified"))
    return _Whole(answer.body, etag, model_etag, date)


def _ranges_in(answer: Answer, whole: _Whole) -> list[tuple[int, int]]:
    """The ranges that an answer has, each with the bytes of the whole body there."""
    assert answer.status in (200, 206, 304, 406, 412, 416), answer
    assert "content-encoding" not in answer.headers
    if answer.status == 200:
        assert answer.body == whole.body
    if answer.status == 416:
        assert answer.headers["content-range"] == f"bytes */{len(whole.body)}" or not answer.headers.get("etag")
    if answer.status != 206:
        return []
    match = _CONTENT_RANGE.fullmatch(answer.headers.get("content-range", ""))
    found = [(int(match[1]), int(match[2]), int(match[3]), answer.body)] if match else _parts(answer)
    for first, last, length, content in found:
        assert length == len(whole.body)
        assert first <= last < length
        assert content == whole.body[first : last + 1]
    assert all(one[1] < other[0] for one, other in pairwise(found))
    return [(first, last) for first, last, _, _ in found]


def _parts(answer: Answer) -> list[tuple[int, int, int, bytes]]:
    kind, _, boundary = answer.headers["content-type"].partition("; boundary=")
    assert kind == "multipart/byteranges"
    start, *pieces, end = (b"\r\n" + answer.body).split(b"\r\n--" + boundary.encode())
    assert (start, end) == (b"", b"--\r\n")
    assert 1 < len(pieces) <= _MOST_RANGES
    parts = []
    for piece in pieces:
        head = _PART.match(piece, 2)
        assert head is not None
        assert piece.startswith(b"\r\n")
        parts.append((int(head[2]), int(head[3]), int(head[4]), piece[head.end() :]))
    return parts


def _wanted(
    given: dict[str, str], whole: _Whole, method: str, *, has_ranges: bool
) -> tuple[int, list[tuple[int, int]]]:
    """The status, and the ranges, in the order of RFC 9110, 13.2.2."""
    if "if-match" in given:
        tags = (whole.etag, whole.model_etag)
        if not any(_matches(given["if-match"], tag, weakly=False) for tag in tags):
            return 412, []
    elif "if-unmodified-since" in given and _seconds(whole.date) > _seconds(given["if-unmodified-since"]):
        return 412, []
    if "if-none-match" in given:
        if _matches(given["if-none-match"], whole.etag, weakly=True):
            return 304, []
    elif "if-modified-since" in given and _seconds(whole.date) <= _seconds(given["if-modified-since"]):
        return 304, []
    if "range" not in given or method != "GET" or not has_ranges:
        return 200, []
    if "if-range" in given:
        validator = given["if-range"]
        if not (_DATE.fullmatch(validator) or re.fullmatch(_TAG, validator)):
            raise _Unclear
        if validator not in (whole.etag, whole.date):
            return 200, []
    return _wanted_ranges(given["range"], len(whole.body))


def _wanted_ranges(value: str, length: int) -> tuple[int, list[tuple[int, int]]]:
    if not _RANGES.fullmatch(value):
        return 200, []
    if len(value) > 4000:  # numbers of more digits than Python reads
        raise _Unclear
    stated = [one.strip(" \t").split("-") for one in value.partition("=")[2].split(",")]
    if any(first and last and int(first) > int(last) for first, last in stated):
        return 200, []  # no valid range at all (RFC 9110, 14.1.1)
    if len(stated) > _MOST_RANGES:
        return 200, []
    ranges = []
    for first, last in stated:
        start = int(first) if first else max(0, length - int(last))
        stop = min(length, int(last) + 1) if first and last else length
        if start < stop:
            ranges.append((start, stop - 1))
    if not ranges:
        return 416, []
    return (200, []) if any(one[1] >= other[0] for one, other in pairwise(ranges)) else (206, ranges)


def _matches(value: str, etag: str, *, weakly: bool) -> bool:
    if value == "*":
        return True
    if not _TAGS.fullmatch(value):
        raise _Unclear
    tags = re.findall(_TAG, value)
    return etag in ([tag.removeprefix("W/") for tag in tags] if weakly else tags)


def _seconds(date: str) -> float:
    if not _DATE.fullmatch(date):
        raise _Unclear
    try:
        return parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError):
        raise _Unclear from None
