"""Names in URLs: models, keys and tensors whose names may hold any byte, reached by percent-encoding.

A request's names are taken from the raw path, before anything decodes it: the first ``/-/`` ends a model id. The
middleware puts each name, encoded again so that it is one path segment, into the path that the router matches. So
the routes stay plain, ``/`` and ``%2F`` in a name mean the same, and bytes that are no UTF-8 survive.
"""

import re
from collections.abc import Callable
from fnmatch import translate
from functools import lru_cache
from urllib.parse import parse_qsl, quote, unquote_to_bytes

from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["NameSegments", "decode_segment", "href", "model_href", "name_filter", "query_pairs", "text"]

_PREFIX = b"/v1/models/"
# A segment may not be empty, but a name may: the mark keeps the two apart. It is no character of a name's encoding.
_MARK = "="
_LONGEST_KEPT = 512
_PLAIN = re.compile(rb"[A-Za-z0-9_.~-]*")  # what is the same encoded


def text(name: bytes) -> str:
    """A name as text to show: UTF-8, with U+FFFD for what is not. Not reversible; the ``href`` is."""
    return name.decode("utf-8", "replace")


def model_href(model_id: bytes) -> str:
    """The path of a model."""
    # A folder called "-" would end the id, so its dash is encoded.
    return _PREFIX.decode() + "/".join("%2D" if part == b"-" else _quoted(part) for part in model_id.split(b"/"))


def href(model_id: bytes, verb: str, name: bytes | None = None) -> str:
    """The path of something in a model: a listing, or one named thing."""
    path = f"{model_href(model_id)}/-/{verb}"
    if name is None:
        return path
    # Clients resolve dots and proxies merge slashes: where that could change the name, its slashes are encoded.
    plain = not {b"", b".", b".."}.intersection(name.split(b"/"))
    quoted = _quoted(name, "/" if plain else "")
    return f"{path}/{quoted.replace('.', '%2E') if name in (b'.', b'..') else quoted}"


def _quoted(name: bytes, safe: str = "") -> str:
    return quote(name, safe=":@!$&'()*,;=" + safe)


def decode_segment(segment: str) -> bytes:
    """The name in a path segment that `NameSegments` made."""
    name = segment.removeprefix(_MARK)
    return unquote_to_bytes(name) if "%" in name else name.encode()


def query_pairs(query: bytes) -> list[tuple[str, str]]:
    """The parameters of a query string in order; bytes that are no UTF-8 become surrogate escapes."""
    if b"%" not in query and b"+" not in query:  # the same for what needs no decoding, in a fifth of the time
        parts = query.decode("utf-8", "surrogateescape").split("&")
        return [(name, value) for part in parts if part for name, _, value in (part.partition("="),)]
    return parse_qsl(query.decode("utf-8", "surrogateescape"), keep_blank_values=True, errors="surrogateescape")


def name_filter(glob: str) -> Callable[[bytes], bool]:
    """Whether a name matches a glob (``*``, ``?``, ``[abc]``; ``*`` also matches ``/``)."""
    # Names are bytes: matched as latin-1, a character stands for a byte.
    matches = re.compile(translate(glob.encode("utf-8", "surrogateescape").decode("latin-1"))).match
    return lambda name: matches(name.decode("latin-1")) is not None


class NameSegments:
    """ASGI middleware: passes on a ``path`` in which each name in it is one segment; see the module's text."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on under its rewritten path."""
        if scope["type"] == "http":
            raw = scope.get("raw_path") or quote(scope["path"]).encode()
            if raw.startswith(_PREFIX):
                path = _kept(raw) if len(raw) <= _LONGEST_KEPT else _segmented(raw)
                scope = {**scope, "path": path}  # a copy: the server logs the path that was asked for
        await self._app(scope, receive, send)


def _segmented(raw: bytes) -> str:
    path = raw.partition(b"?")[0]  # some servers leave the query on the raw path
    model, ends, rest = path.removeprefix(_PREFIX).partition(b"/-/")
    segmented = _PREFIX.decode() + _segment(model)
    if not ends:
        return segmented
    verb, named, name = rest.partition(b"/")
    segmented += "/-/" + quote(verb)
    return f"{segmented}/{_segment(name)}" if named else segmented


# Clients that read a tensor ask for the same path over and over.
_kept = lru_cache(maxsize=1024)(_segmented)


def _segment(name: bytes) -> str:
    if _PLAIN.fullmatch(name):
        return _MARK + name.decode()
    return _MARK + quote(unquote_to_bytes(name), safe="")
