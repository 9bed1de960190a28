"""Posted selections: whatever the body and its type are, the answer is a problem, or what numpy selects.

An input: a line with the Content-Type, then the body.
"""

import json
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuzz._requests import header_lines, plain_service

__all__ = ["WORDS", "run", "seeds"]

WORDS = (
    *(
        b'{"rows":',
        b'"cols":',
        b'"slice":',
        b'"format":',
        b'"dtype":',
        b'"raw"',
        b'"npy"',
        b'"json"',
        b'"native"',
        b'"stored"',
    ),
    *(
        b"[0,1]",
        b'"0:2"',
        b'"::-1"',
        b'"...,0"',
        b"null",
        b"true",
        b"1e400",
        b"-0",
        b"1.0",
        b"NaN",
        b"[[",
        b"{}",
        b"}",
        b",",
    ),
    *(
        b"9223372036854775808",
        b"-9223372036854775809",
        b"1" * 30,
        b"\\u0030",
        b"\\ud800",
        b"\xff",
        b"\xef\xbb\xbf",
        b"\0",
    ),
    *(b"application/json\n", b"text/plain; charset=utf-16\n", b"float16", b"bfloat16", b'"rows":0,"rows":1'),
)
_TARGET = b"/v1/models/m/-/data/long"
_STATUSES = {200, 400, 406, 413}
_SHAPE = (100, 10)
_INTEGER = re.compile("-?[0-9]{1,19}")
_DTYPES = {"float32": "<f4", "stored": "<f4", "float16": "<f2"}
_BODIES = (
    *(
        b"{}",
        b'{"rows":[3,7,"10:20"]}',
        b'{"rows":"0:2","cols":"::2"}',
        b'{"rows":5,"cols":-1,"dtype":"float16"}',
        b"null",
    ),
    *(
        b'{"slice":"...,0","format":"npy"}',
        b'{"slice":"3","format":"json"}',
        b'{"rows":[0,0],"format":"native"}',
        b"",
        b"[1]",
    ),
    *(
        b'{"rows":[1.5]}',
        b'{"rows":[true]}',
        b'{"row":1}',
        b'{"rows":[[1]]}',
        b'{"rows":1e5}',
        b'{"rows":"\\u0031"}',
        b"{",
    ),
    *(
        b'{"rows":[' + b"1," * 2000 + b"1]}",
        b"[" * 3000,
        b'{"a":' * 1000,
        b'{"rows":0,"rows":1}',
        b'\xef\xbb\xbf{"rows":0}',
    ),
    *(
        b'{"rows":' + b"9" * 5000 + b"}",
        b'{"rows":[9223372036854775807]}',
        b'{"rows":"9223372036854775808:"}',
        b'{"rows":[]}',
    ),
)


@cache
def _weights() -> NDArray[np.float32]:
    return np.arange(1000, dtype=np.float32).reshape(_SHAPE)


def run(data: bytes) -> None:
    """Post, and hold a 200 against numpy."""
    kind, _, body = data.partition(b"\n")
    answer = plain_service().ask("POST", _TARGET, header_lines(b"Content-Type: " + kind), body)
    assert answer.status in _STATUSES, answer
    if answer.status != 200:
        return
    document = json.loads(body.decode("utf-8"), parse_constant=_refuse)
    assert isinstance(document, dict)
    assert document.keys() <= {"rows", "cols", "slice", "format", "dtype"}
    wanted = _selected(document)
    form, dtype = document.get("format") or "raw", document.get("dtype") or "float32"
    if form == "native":
        assert answer.body == wanted.tobytes()
    elif form == "json":
        assert answer.json["shape"] == list(wanted.shape)
        assert np.array_equal(np.array(answer.json["data"], np.float32).reshape(wanted.shape), wanted)
    elif dtype == "bfloat16":
        assert len(answer.body) == 2 * wanted.size
    else:
        body_bytes = wanted.astype(_DTYPES[dtype]).tobytes()
        assert answer.body.endswith(body_bytes)
        assert form == "npy" or answer.body == body_bytes


def seeds() -> list[bytes]:
    """Bodies of each kind."""
    return [b"application/json\n" + body for body in _BODIES] + [b"text/plain\n{}", b'\n{"rows":1}', b"a/b; c=\xff\n{}"]


def _refuse(name: str) -> None:
    raise AssertionError(f"{name} was taken for JSON")


def _selected(document: dict[str, Any]) -> NDArray[np.float32]:
    weights = _weights()
    if document.get("slice") is not None:
        parts = [... if part == "..." else _part(part) for part in document["slice"].split(",")]
        return np.asarray(weights[tuple(parts)])
    rows, cols = document.get("rows"), document.get("cols")
    parts_of_rows: Sequence[Any] = (
        rows.split(",") if isinstance(rows, str) else rows if isinstance(rows, list) else [rows]
    )
    chosen = [weights[_kept(part)] for part in parts_of_rows]
    return np.concatenate([*chosen, weights[:0]])[:, _kept(cols)]


def _kept(part: str | int | None) -> slice:
    index = slice(None) if part is None else _part(part)
    return slice(index, index + 1 or None) if isinstance(index, int) else index


def _part(part: str | int) -> int | slice:
    assert type(part) in (str, int)
    if isinstance(part, int) or ":" not in part:
        assert _INTEGER.fullmatch(str(part))
        return int(part)
    return slice(*(int(number) if number else None for number in part.split(":")))
