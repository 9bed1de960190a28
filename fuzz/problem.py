"""Problems: whatever is asked, an answer above 399 is of one shape, short, and listed in docs/errors.md.

An input is a request as text: a line with method, path and query, lines of headers, an empty line, a body.
"""

import json
import re
from functools import cache
from pathlib import Path

from fuzz._requests import SECRET, faulty_service, header_lines, visible

__all__ = ["WORDS", "documented", "run", "seeds"]

WORDS = (
    *(
        b"GET ",
        b"HEAD ",
        b"POST ",
        b"PUT ",
        b"/v1/models/m/-/data/",
        b"/v1/models/",
        b"/-/metadata/",
        b"/-/tensors",
        b"%FF",
    ),
    *(
        b"\nContent-Type: ",
        b"\nContent-Length: ",
        b"\nAccept: ",
        b"\nRange: bytes=",
        b"\nIf-Match: ",
        b"\nHost: ",
        b"%0D%0A",
    ),
    *(
        b"?rows=",
        b"?slice=",
        b"?format=",
        b"&dtype=",
        b"twice",
        b"unknown",
        b"partial",
        b"overlap",
        b"past",
        b"%ED%A0%80",
    ),
    *(
        b'\n\n{"rows":',
        b'"cols":',
        b"\\ud800",
        b"\xed\xa0\x80",
        b"\xff",
        b"\nX-Request-ID: ",
        b"\nOrigin: ",
        b"[]",
        b"null",
    ),
)
_LONGEST = 8 << 10
_METHODS = re.compile(rb"[A-Z]{1,20}")
_ROW = re.compile(r"^\| (\d{3}) \| (`.*?`) \|", re.MULTILINE)
_DATA = b"/v1/models/m/-/data/"
_REQUESTS = (
    *(
        _DATA + rest
        for rest in (b"w?rows=a", b"w?rows=7", b"w?slice=0,9", b"w?start=0", b"w?rows=0&rows=1", b"w?format=xml")
    ),
    *(_DATA + name for name in (b"none", b"twice", b"unknown", b"partial", b"overlap", b"past", b"q?dtype=stored")),
    *(b"/v1/data?model=m", b"/v1/models/none", b"/v1/models/m/-/metadata/none", b"/nothing", b"/v1/models/unreadable"),
    *(
        b"/v1/models/split",
        b"/v1/models/m/-/tensors?limit=0",
        b"/v1/models/m/-/safetensors",
        _DATA + b"w?format=json&rows=0,0,0",
    ),
    *(_DATA + b"w\nAccept: text/html", _DATA + b"w\nRange: bytes=99-", _DATA + b'w\nIf-Match: "x"'),
)


@cache
def documented() -> frozenset[tuple[int, str]]:
    """The pairs of status and slug that docs/errors.md has."""
    text = (Path(__file__).parent.parent / "docs" / "errors.md").read_text(encoding="utf-8")
    return frozenset(
        (int(status), slug) for status, slugs in _ROW.findall(text) for slug in re.findall("`(.+?)`", slugs)
    )


def run(data: bytes) -> None:
    """Ask, and check the problem that is the answer, if it is one."""
    head, _, body = data.partition(b"\n\n")
    line, _, lines = head.partition(b"\n")
    method, _, target = line.partition(b" ")
    if not _METHODS.fullmatch(method):
        method, target = b"GET", line
    headers = header_lines(lines)
    answer = faulty_service().ask(method.decode(), visible(target), headers, body)
    assert SECRET not in answer.body
    for value in answer.headers.values():
        assert "\r" not in value
        assert "\n" not in value
    if answer.status < 400 or method == b"HEAD":
        return
    assert len(answer.body) < _LONGEST
    problem = answer.json
    assert (answer.status, problem["type"].removeprefix("/problems/")) in documented(), problem
    json.dumps(problem, ensure_ascii=False).encode()  # raises where an escape is of half a character
    assert problem["detail"].replace("\n", "").isprintable() or "\n" not in problem["detail"]


def seeds() -> list[bytes]:
    """A request for each problem there is."""
    posted = b"POST " + _DATA + b"w\nContent-Type: application/json\n\n"
    bodies = (
        b"",
        b"{",
        b"[]",
        b'{"rows":[1.5]}',
        b'{"nothing":1}',
        b'{"rows":"\\ud800"}',
        b'{"rows":[9]}',
        b"x" * 5000,
    )
    return [
        *(b"GET " + request for request in _REQUESTS),
        *(posted + body for body in bodies),
        b"DELETE /v1/models",
        b"GET /v1/models/" + b"x" * 9000,
        b"POST " + _DATA + b"w\nContent-Length: 99999999\n\n{}",
    ]
