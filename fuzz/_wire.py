"""HTTP/1.1 as RFC 9112 has it, read strictly: the requests that some bytes are, and the answers that others are.

A second reading beside that of the server's parser. Where the two differ, a proxy that reads as this one does could be
made to pass on one request inside of another.
"""

import re
from dataclasses import dataclass

__all__ = ["Reading", "Request", "read_answers", "read_requests"]

# Without a version it is a request of HTTP/0.9, which servers still take.
_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) +([\x21-\x7e]+)(?: +HTTP/(\d\.\d))?")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):([\t\x20-\x7e\x80-\xff]*)")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,16})(?:[ \t]*;[\t\x20-\x7e\x80-\xff]*)?")
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) [^\r\n]*")


@dataclass(frozen=True, slots=True)
class Request:
    """A request that is whole."""

    method: bytes
    target: bytes
    body: bytes


@dataclass(frozen=True, slots=True)
class Reading:
    """The requests that were read, and what came after them.

    ``end`` is ``clean`` (nothing more), ``cut`` (a request that has not ended), ``refused`` (bytes that are none), or
    ``last`` (a request after which there is no other on this connection: it closes, or becomes something else).
    """

    requests: list[Request]
    end: str


class _Cut(Exception):
    """There are too few bytes."""


class _Refused(Exception):
    """The bytes are no request."""


def read_requests(data: bytes) -> Reading:
    """The requests in the bytes of a connection."""
    reader = _Reader(data)
    requests: list[Request] = []
    while True:
        while data[reader.at : reader.at + 1] in (b"\r", b"\n"):  # before a request, line ends mean nothing
            reader.at += 1
        if reader.at == len(data):
            return Reading(requests, "clean")
        try:
            request, is_last = reader.request()
        except _Cut:
            return Reading(requests, "cut")
        except _Refused:
            return Reading(requests, "refused")
        requests.append(request)
        if is_last:
            return Reading(requests, "last")


def read_answers(data: bytes, methods: list[bytes]) -> list[int]:
    """The statuses of the answers to requests of these methods, without those below 200.

    Raises
    ------
    AssertionError
        Where the bytes are not answers from end to end, each with as many bytes of body as it says.
    """
    statuses: list[int] = []
    at = 0
    while at < len(data):
        end = data.find(b"\r\n\r\n", at)
        assert end >= 0, data[at:]
        line, *fields = data[at:end].split(b"\r\n")
        match = _STATUS.fullmatch(line)
        assert match is not None, line
        headers = dict(field.split(b": ", 1) for field in fields)
        at, status = end + 4, int(match[1])
        if status < 200:
            continue
        method = methods[len(statuses)] if len(statuses) < len(methods) else b""
        statuses.append(status)
        if method != b"HEAD" or status == 400:
            at += int(headers[b"content-length"])
        assert at <= len(data)
    return statuses


class _Reader:
    """The bytes of a connection, and how far they were read."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def line(self) -> bytes:
        end = self.data.find(b"\n", self.at)
        if end < 0:
            raise _Cut
        line, self.at = self.data[self.at : end], end + 1
        if not line.endswith(b"\r"):
            raise _Refused
        return line[:-1]

    def take(self, size: int) -> bytes:
        if self.at + size > len(self.data):
            raise _Cut
        taken = self.data[self.at : self.at + size]
        self.at += size
        return taken

    def request(self) -> tuple[Request, bool]:
        method, target, version = self.request_line()
        fields = self.fields()
        body = self.body(fields)
        options = {option.strip().lower() for value in _all(fields, b"connection") for option in value.split(b",")}
        is_last = version != b"1.1" or b"close" in options or method == b"CONNECT"
        is_for_another_protocol = b"upgrade" in options and bool(_all(fields, b"upgrade"))
        if is_for_another_protocol and body:  # what of it is a body, and what is the other protocol's
            raise _Refused
        return Request(method, target, body), is_last or is_for_another_protocol

    def request_line(self) -> tuple[bytes, bytes, bytes | None]:
        start = self.at
        try:
            match = _LINE.fullmatch(self.line())
        except _Refused:  # HTTP/0.9 took any line end
            match = _LINE.fullmatch(self.data[start : self.at - 1])
            if match is not None and match[3] is not None:
                raise
        if match is None or match.groups() == (b"PRI", b"*", b"2.0"):  # with that, HTTP/2 begins
            raise _Refused
        return match[1], match[2], match[3]

    def fields(self) -> list[tuple[bytes, bytes]]:
        fields = []
        while line := self.line():
            match = _FIELD.fullmatch(line)
            if match is None:
                raise _Refused
            fields.append((match[1].lower(), match[2].strip(b" \t")))
        return fields

    def body(self, fields: list[tuple[bytes, bytes]]) -> bytes:
        lengths, codings = _all(fields, b"content-length"), _all(fields, b"transfer-encoding")
        if codings:
            names = [name.strip(b" \t").lower() for name in b",".join(codings).split(b",")]
            if (
                lengths or names.count(b"chunked") != 1 or names[-1] != b"chunked"
            ):  # what is before it is about the content
                raise _Refused
            return self.chunks()
        if not lengths:
            return b""
        if len(lengths) > 1 or not re.fullmatch(rb"[0-9]{1,19}", lengths[0]):
            raise _Refused
        return self.take(int(lengths[0]))

    def chunks(self) -> bytes:
        body = b""
        while True:
            match = _CHUNK.fullmatch(self.line())
            if match is None:
                raise _Refused
            size = int(match[1], 16)
            if size == 0:
                self.fields()
                return body
            body += self.take(size)
            if self.take(2) != b"\r\n":
                raise _Refused


def _all(fields: list[tuple[bytes, bytes]], name: bytes) -> list[bytes]:
    return [value for one, value in fields if one == name]
