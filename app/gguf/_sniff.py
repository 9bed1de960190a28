"""What a file is when it is no GGUF: the message a person needs when a download went wrong."""

from codecs import getincrementaldecoder

from app.gguf._errors import NotGGUF

__all__ = ["MAGIC", "not_gguf"]

MAGIC = b"GGUF"

_AGAIN = "Download the model again."
_CONVERT = "Convert it to GGUF with llama.cpp's converter."

# The four bytes as they stand in the file: ggml wrote its older magics as little-endian integers, so that 'ggjt'
# is 'tjgg' on disk.
_OLD_MAGICS = {b"lmgg": "ggml", b"fmgg": "ggmf", b"tjgg": "ggjt", b"algg": "ggla"}

_PREFIXES: tuple[tuple[bytes, str, str], ...] = (
    (
        b"version https://git-lfs",
        "a Git LFS pointer",
        "The weights themselves were not fetched: run `git lfs pull`.",
    ),
    (b"PK\x03\x04", "a ZIP archive (or a PyTorch checkpoint)", "Unpack or convert it first."),
    (b"\x1f\x8b", "a gzip file", "Decompress it first."),
    (b"\x28\xb5\x2f\xfd", "a Zstandard file", "Decompress it first."),
    (b"\x93NUMPY", "a NumPy array file", _CONVERT),
    (b"\x89HDF", "an HDF5 file", _CONVERT),
    (b"\x80\x02", "a Python pickle (or an old PyTorch checkpoint)", _CONVERT),
)


def not_gguf(head: bytes, size: int) -> NotGGUF:
    """Give the error for a file that does not begin with the GGUF magic.

    Parameters
    ----------
    head : the first bytes of the file, at most some thousands
    size : the size of the file in bytes
    """
    if size == 0:
        return NotGGUF("an empty file", _AGAIN)
    if not any(head):
        return NotGGUF("zeros", f"The download did not finish, or only reserved its space. {_AGAIN}")
    if size < len(MAGIC):
        what = "the beginning of a GGUF file" if MAGIC.startswith(head) else "a file"
        return NotGGUF(f"{what} of {size} {'byte' if size == 1 else 'bytes'}", _AGAIN)
    magic = head[:4]
    if magic in _OLD_MAGICS:
        name = _OLD_MAGICS[magic]
        return NotGGUF(f"an older GGML format ({magic.decode()}, {name})", _CONVERT)
    if magic == MAGIC[::-1]:
        return NotGGUF(
            "a file with the GGUF magic reversed (FUGG)",
            "A big-endian GGUF has its magic in plain order too. Convert the original model again.",
        )
    for prefix, found, remedy in _PREFIXES:
        if head.startswith(prefix):
            return NotGGUF(found, remedy)
    if head[8:9] == b"{" and 2 <= int.from_bytes(head[:8], "little") <= size:
        return NotGGUF("a safetensors file", _CONVERT)
    return _text_or_part(head)


def _text_or_part(head: bytes) -> NotGGUF:
    text = head[:512].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith((b"<!doctype html", b"<html", b"<head", b"<body")):
        return NotGGUF("an HTML page", f"The server sent a page in place of the model. {_AGAIN}")
    if text.startswith(b"<?xml"):
        return NotGGUF("an XML document", f"The server sent an error in place of the model. {_AGAIN}")
    if text.startswith((b"{", b"[")) and _printable(text):
        return NotGGUF("a JSON document", f"The server sent an answer in place of the model. {_AGAIN}")
    if _printable(text):
        return NotGGUF("a text file", _AGAIN)
    return NotGGUF(
        "data without the GGUF magic, perhaps a later part of a split download",
        "If the model came in parts that were cut by size, join them in order into one file.",
    )


def _printable(text: bytes) -> bool:
    if any(byte < 0x20 and byte not in b"\t\r\n\f" for byte in text):
        return False
    try:
        # Not the last word on it: a character may be cut at the end.
        getincrementaldecoder("utf-8")().decode(text)
    except UnicodeDecodeError:
        return False
    return True
