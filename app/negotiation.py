"""Which form of weights a client takes by its Accept header (RFC 9110, section 12.5.1); ``format=`` wins over it."""

from collections.abc import Iterable

from werkzeug.datastructures import MIMEAccept
from werkzeug.http import parse_accept_header

from app.errors import NotAcceptable
from app.parameters import FormatName
from app.representation import MEDIA_TYPES

__all__ = ["accept_of", "negotiated_format"]

# In the order of our preference. ``native`` has raw's media type: only ``format=`` asks for it.
_OFFERED: dict[str, FormatName] = {MEDIA_TYPES[name]: name for name in ("raw", "npy", "json")}


def accept_of(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The first Accept of a request's headers (names in lower case)."""
    for name, value in headers:
        if name == b"accept":
            return value.decode("latin-1")
    return None


def negotiated_format(accept: str | None) -> FormatName:
    """The format to answer in.

    Raises
    ------
    NotAcceptable
        ``not-acceptable``: the header takes none of ours.
    """
    if accept is None or accept.strip() in ("", "*/*"):
        return "raw"
    best = parse_accept_header(accept, MIMEAccept).best_match(_OFFERED)
    if best is None:
        raise NotAcceptable(
            "not-acceptable", f"Accept takes none of {', '.join(_OFFERED)}. Name one of them, or ask with format=."
        )
    return _OFFERED[best]
