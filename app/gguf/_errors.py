"""The errors of the GGUF parser, one tree.

    GGUFError                     ValueError; fields reason, offset, key, tensor
    +-- NotGGUF                   another kind of file; field found
    +-- UnsupportedVersion        a GGUF of a version that this parser does not know; field version
    +-- BadHeader                 a truncated, lying or invalid header
    +-- SplitError                parts of a split set that do not belong together; fields part, expected, found
    +-- NoSuchTensor              KeyError; no tensor of that name
    +-- AmbiguousTensor           several tensors of that name; field count

``str(error)`` is a sentence that says where, what and what to do. An `OSError` of the file passes through untouched.
"""

__all__ = [
    "AmbiguousTensor",
    "BadHeader",
    "GGUFError",
    "NoSuchTensor",
    "NotGGUF",
    "SplitError",
    "UnsupportedVersion",
    "quoted",
]

_SHOWN = 80


def quoted(name: bytes) -> str:
    """Give `name` in quotes, fit for one line of a message or a log, whatever its bytes are.

    Bytes that are not UTF-8 and characters that do not print (CR, LF, NUL, bidirectional controls) are escaped;
    a name above 80 characters is cut and its length told. The form is for people and is not reversible.
    """
    if len(name) <= _SHOWN and name.isascii():
        text = name.decode("ascii")
        if text.isprintable():
            return f'"{text}"'
    head = name[: 4 * _SHOWN].decode("utf-8", "backslashreplace")[:_SHOWN]
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in head)
    whole = len(name) <= 4 * _SHOWN and len(name.decode("utf-8", "backslashreplace")) <= _SHOWN
    return f'"{text}"' if whole else f'"{text}…" ({len(name):,} bytes)'


class GGUFError(ValueError):
    """A file that cannot be used as a GGUF model.

    Parameters
    ----------
    reason : the sentence that says what is wrong and what to do, without the place
    offset : the byte offset in the file that the reason is about, if there is one
    key : the metadata key (raw bytes) that the reason is about, if there is one
    tensor : the tensor name (raw bytes) that the reason is about, if there is one
    """

    def __init__(
        self, reason: str, *, offset: int | None = None, key: bytes | None = None, tensor: bytes | None = None
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.offset = offset
        self.key = key
        self.tensor = tensor

    def __str__(self) -> str:
        place = []
        if self.key is not None:
            place.append(f"metadata key {quoted(self.key)}")
        if self.tensor is not None:
            place.append(f"tensor {quoted(self.tensor)}")
        if self.offset is not None:
            place.append(f"byte offset {self.offset}")
        if not place:
            return self.reason
        where = ", ".join(place)
        return f"{where[0].upper()}{where[1:]}: {self.reason}"


class NotGGUF(GGUFError):
    """The file is no GGUF; ``found`` names what it is instead ("an empty file", "a Git LFS pointer" …)."""

    def __init__(self, found: str, remedy: str = "") -> None:
        super().__init__(f"This is not a GGUF file but {found}." + (f" {remedy}" if remedy else ""), offset=0)
        self.args = (found, remedy)
        self.found = found


class UnsupportedVersion(GGUFError):
    """The file says GGUF, in a version other than 1, 2 and 3; ``version`` is the number that it states."""

    def __init__(self, version: int) -> None:
        super().__init__(
            f"The file is GGUF version {version}; versions 1, 2 and 3 are supported. "
            "Convert it with a current converter, or download it again if it is damaged.",
            offset=4,
        )
        self.args = (version,)
        self.version = version


class BadHeader(GGUFError):
    """The header is truncated, promises more than the file has, or breaks a rule of the format."""


class SplitError(GGUFError):
    """Parts of a split set that do not belong together.

    ``part`` is the number of the offending part, from 1 as in file names (None: the set as a whole); ``expected``
    and ``found`` are the two numbers that disagree (``found`` is None where the part states none).
    """

    def __init__(self, reason: str, part: int | None, expected: int | None, found: int | None) -> None:
        super().__init__(reason)
        self.args = (reason, part, expected, found)
        self.part = part
        self.expected = expected
        self.found = found


class NoSuchTensor(GGUFError, KeyError):
    """The model has no tensor of the name in ``tensor``."""

    def __init__(self, name: bytes) -> None:
        super().__init__("The model has no tensor of this name.", tensor=name)
        self.args = (name,)


class AmbiguousTensor(GGUFError):
    """The model has ``count`` tensors of the name in ``tensor``, so the name alone does not choose one."""

    def __init__(self, name: bytes, count: int) -> None:
        super().__init__(f"The model has {count} tensors of this name; it does not choose one.", tensor=name)
        self.args = (name, count)
        self.count = count
