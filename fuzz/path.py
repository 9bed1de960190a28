"""Paths and queries: any bytes get an answer that is no 500, and none from outside of the volume.

An input is the first letter of a method, then the path and query. What is asked of a model's name in one encoding is
answered the same in another.
"""

import re
from collections.abc import Callable

from fuzz._requests import SECRET, faulty_service, visible
from fuzz._service import Answer

__all__ = ["WORDS", "run", "seeds"]

WORDS = (
    *(
        b"/v1/models/",
        b"/-/",
        b"/-/data/",
        b"/-/tensors",
        b"/-/metadata",
        b"/-/safetensors",
        b"/v1/data?",
        b"../",
        b"%2e",
    ),
    *(
        b"%2F",
        b"%00",
        b"%ff",
        b"%0a",
        b"..%5c",
        b"//",
        b"link",
        b"folder/secret",
        b"outside/secret",
        b"secret.txt",
        b"%",
    ),
    *(
        b"model=",
        b"&tensor=",
        b"?rows=",
        b"&cols=",
        b"?slice=",
        b"format=",
        b"npy",
        b"json",
        b"native",
        b"dtype=stored",
    ),
    *(
        b"?name=",
        b"*",
        b"[!a",
        b"&type=",
        b"?limit=",
        b"&cursor=",
        b"?prefix=",
        b"&items=",
        b"split",
        b"unreadable",
        b"+",
    ),
)
_METHODS = {ord("H"): "HEAD", ord("P"): "POST", ord("D"): "DELETE", ord("O"): "OPTIONS"}
_TARGETS = (
    *(b"/", b"/healthz", b"/readyz", b"/metrics", b"/openapi.json", b"/docs", b"/v1/models", b"/v1/models/m"),
    *(
        b"/v1/models/m/-/metadata",
        b"/v1/models/m/-/metadata/tokens?slice=::-1",
        b"/v1/models/m/-/metadata?prefix=a&items=1",
    ),
    *(
        b"/v1/models/m/-/tensors?name=*&limit=1&cursor=2",
        b"/v1/models/m/-/tensors?type=Q4_0",
        b"/v1/models/m/-/tensors/w",
    ),
    *(b"/v1/models/m/-/data/w?rows=0,1:&cols=::2&format=npy", b"/v1/models/m/-/data/w?slice=...,0&format=json"),
    *(b"/v1/models/m/-/data/q?format=native", b"/v1/data?model=m&tensor=w&dtype=float16", b"/v1/models/m/-/data/a%2Fb"),
    *(b"/v1/models/m/-/safetensors?name=w&exclude=q", b"/v1/models/folder/secret", b"/v1/models/link/-/metadata"),
    *(b"/v1/models/%FF%0A/-/data/w", b"/v1/models/../outside/secret", b"/v1/models/%2E%2E%2Foutside%2Fsecret"),
    *(b"/v1/models/split/-/tensors", b"/v1/models/unreadable", b"/v1/models/-%2F-/-/data/w", b"/v1/models/sub/a%20b"),
)
_NAMED = re.compile(
    rb"/v1/models/(?P<model>((?!/-/)[^?])+)(?P<verb>/-/(data|tensors|metadata)/)(?P<name>[^?]+)(?P<query>\?.*)?"
)
_HEX = re.compile(rb"%([0-9A-Fa-f]{2})")


def run(data: bytes) -> None:
    """Ask, and ask again with each name encoded from end to end."""
    method = _METHODS.get(data[0], "GET") if data else "GET"
    target = visible(data[1:])
    answer = _asked(method, target)
    named = _NAMED.fullmatch(target)
    if named is None or method != "GET":
        return
    model, name = (_encoded(named[part]) for part in ("model", "name"))
    again = b"/v1/models/" + model + named["verb"] + name + (named["query"] or b"")
    if len(again) < 8000:
        other = _asked(method, again)
        assert (answer.status, _body(answer)) == (other.status, _body(other)), again


def seeds() -> list[bytes]:
    """Every route, on models of every kind."""
    return [b"G" + target for target in _TARGETS] + [b"H/v1/models/m", b"P/v1/models/m/-/data/w", b"D/v1/models", b"O/"]


def _asked(method: str, target: bytes) -> Answer:
    answer = faulty_service().ask(method, target)
    assert answer.status in {200, 400, 404, 405, 406, 409, 413, 414, 422}, answer
    assert SECRET not in answer.body
    assert method in ("GET", "HEAD") or answer.status >= 400
    return answer


def _body(answer: Answer) -> object:
    """What must be the same again; a listing's links and the metrics are of the moment."""
    return answer.json["type"] if answer.status >= 400 else answer.body


def _encoded(name: bytes) -> bytes:
    """Every byte of a name as %XX, also where it is so already."""
    decode: Callable[[re.Match[bytes]], bytes] = lambda match: bytes.fromhex(match[1].decode())  # noqa: E731
    return b"".join(b"%%%02X" % byte for byte in _HEX.sub(decode, name))
