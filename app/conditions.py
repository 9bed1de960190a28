"""Conditional and range requests (RFC 9110, sections 13 and 14): what of a representation a request wants.

Answered from validators and lengths alone; nothing is decoded to say 304, 412 or 416.
"""

import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from itertools import pairwise

from werkzeug.http import http_date, parse_date, parse_etags, parse_if_range_header

from app.content import Content, Section, content_length, narrowed
from app.errors import ModelChanged, RangeNotSatisfiable

__all__ = ["Answer", "Validators", "answer", "heeded", "is_not_modified"]

_MOST_RANGES = 16
# RFC 9110, 14.1.1 and 14.1.2. werkzeug's parser takes blanks inside of a range, and "-0" for all bytes.
_ONE_RANGE = "(?:[0-9]+-[0-9]*|-[0-9]+)"
_BYTE_RANGES = re.compile(rf"bytes={_ONE_RANGE}(?:[ \t]*,[ \t]*{_ONE_RANGE})*", re.ASCII | re.IGNORECASE)
_HEEDED = {
    name.encode(): name
    for name in ("if-match", "if-none-match", "if-modified-since", "if-unmodified-since", "if-range", "range")
}
_LISTS = ("if-match", "if-none-match")  # on several lines, they are one list (RFC 9110, 5.3)
# The first and the last second that a date can name; file systems go beyond both.
_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 253_402_300_799


@dataclass(frozen=True, slots=True)
class Validators:
    """What tells one state of a resource from another: a strong ETag (quoted), and when it was last modified.

    ``model_etag`` is that of the model it is about: If-Match may name either, so that a client can hold on to one state
    of a model whatever it asks of it.
    """

    etag: str
    modified_ns: int
    model_etag: str

    @property
    def modified(self) -> datetime:
        """The time of the last modification, in whole seconds of the years 1 to 9999, as HTTP has them."""
        return _modified(self.modified_ns)

    def headers(self) -> dict[str, str]:
        """The ETag, X-Model-ETag and Last-Modified headers."""
        return {
            "ETag": self.etag,
            "X-Model-ETag": self.model_etag,
            "Last-Modified": _last_modified(self.modified_ns),
        }


def _modified(modified_ns: int) -> datetime:
    return datetime.fromtimestamp(min(max(modified_ns // 1_000_000_000, _FIRST_SECOND), _LAST_SECOND), UTC)


@lru_cache(maxsize=256)  # a model's are the same for all of its answers
def _last_modified(modified_ns: int) -> str:
    return http_date(_modified(modified_ns))


@dataclass(frozen=True, slots=True)
class Answer:
    """A status, the headers that go with it, and the content; no content for 304."""

    status: int
    headers: dict[str, str]
    content: Content


def heeded(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Those of a request's headers (names in lower case) that are about conditions and ranges; most have none."""
    found: dict[str, str] = {}
    for name, value in headers:
        if name in _HEEDED:
            known = _HEEDED[name]
            if known in found and known in _LISTS:
                found[known] += ", " + value.decode("latin-1")
            else:
                found.setdefault(known, value.decode("latin-1"))
    return found


def is_not_modified(headers: Mapping[str, str], validators: Validators) -> bool:
    """Whether the client of a GET or HEAD has this state already, so that 304 is the answer.

    Raises
    ------
    ModelChanged
        ``model-changed``, 412: the request is for another state (If-Match, If-Unmodified-Since).
    """
    tag = validators.etag.strip('"')
    if (wanted := headers.get("if-match")) is not None:
        tags = parse_etags(wanted)
        if not (tags.contains(tag) or tags.contains(validators.model_etag.strip('"'))):
            raise ModelChanged(validators.etag)
    elif (date := _date(headers.get("if-unmodified-since"))) is not None and validators.modified > date:
        raise ModelChanged(validators.etag)
    if (known := headers.get("if-none-match")) is not None:
        return parse_etags(known).contains_weak(tag)
    date = _date(headers.get("if-modified-since"))
    return date is not None and validators.modified <= date


def answer(headers: Mapping[str, str], validators: Validators, content: Content, media_type: str) -> Answer:
    """What a GET gets: all of a content, or the byte ranges of it that the request asks for.

    One range, or up to 16 that neither overlap nor go backwards, as multipart/byteranges; other requests for ranges get
    all, as does one whose If-Range is about another state.

    Raises
    ------
    RangeNotSatisfiable
        416: none of the ranges has a byte.
    """
    whole = Answer(200, {"Content-Type": media_type}, content)
    length = content_length(content)
    if length is None:  # a text of unknown length
        return whole
    whole.headers["Accept-Ranges"] = "bytes"
    if "range" not in headers:
        return whole
    ranges = _byte_ranges(headers["range"], length)
    if ranges is None or not _is_of_this_state(headers, validators):
        return whole
    if not ranges:
        raise RangeNotSatisfiable(length)
    if any(later[0] < before[1] for before, later in pairwise(ranges)):
        return whole
    if len(ranges) == 1:
        ((first, stop),) = ranges
        part = {**whole.headers, "Content-Range": f"bytes {first}-{stop - 1}/{length}"}
        return Answer(206, part, [*narrowed(content, first, stop)])
    return _multipart(whole, ranges, length, media_type)


def _multipart(whole: Answer, ranges: list[tuple[int, int]], length: int, media_type: str) -> Answer:
    boundary = secrets.token_hex(16)
    content: list[bytes | Section] = []
    for first, stop in ranges:
        head = f"--{boundary}\r\nContent-Type: {media_type}\r\nContent-Range: bytes {first}-{stop - 1}/{length}\r\n\r\n"
        content += (head.encode(), *narrowed(whole.content, first, stop), b"\r\n")
    content.append(f"--{boundary}--\r\n".encode())
    return Answer(206, {**whole.headers, "Content-Type": f"multipart/byteranges; boundary={boundary}"}, content)


def _byte_ranges(value: str, length: int) -> list[tuple[int, int]] | None:
    """The ranges of a Range header that have bytes of the content, as first and stop, in its order.

    None for a header that is to be ignored: it is not by the grammar, a range of it ends before it begins, or there are
    more than 16.
    """
    if not _BYTE_RANGES.fullmatch(value):
        return None
    members = value.partition("=")[2].split(",", _MOST_RANGES)
    if len(members) > _MOST_RANGES:
        return None
    ranges: list[tuple[int, int]] = []
    for member in members:
        first, last = (digits.lstrip("0") or digits[:1] for digits in member.strip(" \t").split("-"))
        if first and last and (len(first), first) > (len(last), last):
            return None
        start = _position(first) if first else max(0, length - _position(last))
        stop = min(length, _position(last) + 1) if first and last else length
        if start < stop:
            ranges.append((start, stop))
    return ranges


def _position(digits: str) -> int:
    """The number in digits without leading zeros; of those that are beyond any file, one that is."""
    return int(digits) if len(digits) < 20 else 1 << 64


def _is_of_this_state(headers: Mapping[str, str], validators: Validators) -> bool:
    """Whether there is no If-Range, or it holds: a range continues what the client has."""
    if "if-range" not in headers:
        return True
    try:
        if_range = parse_if_range_header(headers["if-range"])
    except OverflowError:  # a date beyond all calendars
        return False
    if if_range.etag is not None:
        return f'"{if_range.etag}"' == validators.etag and not headers["if-range"].lstrip().startswith("W/")
    return if_range.date is not None and if_range.date == validators.modified


def _date(value: str | None) -> datetime | None:
    """The time in a header, or None for what is no time, which is then ignored (RFC 9110, 13.1.3)."""
    try:
        return parse_date(value)
    except OverflowError:  # numbers of any length that no calendar has
        return None
