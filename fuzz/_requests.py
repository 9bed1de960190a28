"""Requests as text: a few lines that become headers, of which an input says every byte that a server would let through.

And a volume of files for them, with something of every fault.
"""

import re
from functools import cache

from fuzz._service import Service
from tests.builder import F8, STRING, base, build, floats, kv, tensor_info

__all__ = ["SECRET", "faulty_service", "header_lines", "plain_service", "visible"]

SECRET = b"what-lies-outside"
"""What a file outside of the volume holds: no answer may."""

_ALLOWED = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_LENGTH = re.compile(rb"[0-9]{1,19}")
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def header_lines(text: bytes) -> list[tuple[bytes, bytes]]:
    """The headers in lines ``name: value``; what a server refuses before the application sees it is left out."""
    headers = []
    for line in text.split(b"\n"):
        name, colon, value = line.partition(b":")
        value = value.strip(b" \t")
        allowed = _LENGTH if name.lower() == b"content-length" else _ALLOWED
        if colon and _TOKEN.fullmatch(name) and allowed.fullmatch(value):
            headers.append((name.lower(), value))
    return headers


def visible(target: bytes) -> bytes:
    """A path and query as a server lets it through: bytes that no URL has are percent-encoded."""
    return b"/" + b"".join(
        bytes((byte,)) if 0x21 <= byte <= 0x7E and byte != 0x23 else b"%%%02X" % byte
        for byte in target.removeprefix(b"/")
    )


@cache
def plain_service() -> Service:
    """A volume of one model: ``w`` has 8 weights, ``long`` 1000, ``none`` none, ``q`` is Q4_0, ``s`` a scalar."""
    tensors = [
        ("w", [4, 2], 0, F8),
        ("long", [10, 100], 0, floats(*range(1000))),
        ("none", [4, 0], 0, b""),
        ("q", [32, 3], 2, bytes(range(54))),
        ("s", [], 0, floats(1.5)),
    ]
    return Service({"m.gguf": build(tensors, [("general.architecture", STRING, "llama")])})


@cache
def faulty_service() -> Service:
    """A volume of models with something of every fault, with odd names, and with links that lead out."""
    infos = [
        tensor_info("w", [4, 2], 0, 0),
        tensor_info("twice", [4], 0, 32),
        tensor_info("twice", [4], 0, 64),
        tensor_info("unknown", [256], 156, 96),
        tensor_info("partial", [31], 2, 128),
        tensor_info("overlap", [64], 0, 160),
        tensor_info("behind", [4], 0, 192),
        tensor_info("past", [4000], 0, 512),
        tensor_info("q", [32], 2, 448),
        tensor_info(b"\xff\r\n", [4], 0, 480),
        tensor_info("a/b", [4], 0, 496),
    ]
    entries = [
        kv("a/-/b", STRING, "x"),
        kv(b"\xff\n", STRING, b"\xff"),
        kv("tokens", 9, (STRING, ["a", b"\xff", "é"] * 30)),
    ]
    return Service(
        {
            "m.gguf": base(infos=infos, entries=entries, data=F8 * 17),
            "unreadable.gguf": b"<!DOCTYPE html>",
            "split-00001-of-00002.gguf": base(),
            "-/-.gguf": base(),
            "sub/a b.gguf": base(),
            b"\xff\n.gguf": base(),
            "../outside/secret.gguf": base(entries=[kv("secret", STRING, SECRET)]),
            "../secret.txt": SECRET,
        },
        {"link.gguf": "../outside/secret.gguf", "folder": "../outside"},
        json_limit=64,
        answer_limit=4096,
        url_limit=8192,
        body_limit=4096,
    )
