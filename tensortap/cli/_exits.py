"""Exit codes: the one table of them, which ``tensortap --help`` shows, too."""

from __future__ import annotations

from .._errors import (
    BadRequest,
    ModelChanged,
    NotFound,
    SelectionError,
    TensorTapError,
    TooLarge,
    Unauthorized,
    Unreadable,
)

__all__ = ["CODES", "DEFECT", "DIFFERS", "USAGE", "WouldOverwrite", "code_of"]

DIFFERS = 1
USAGE = 2
_FILE = 9
DEFECT = 70  # EX_SOFTWARE of sysexits.h

CODES = {
    0: "done; of diff: everything is equal",
    DIFFERS: "diff: something differs, or cannot be compared",
    USAGE: "the command is not written right, a selection does not fit, or a file would be overwritten",
    3: "no such model, tensor or key, or none that the API key may read",
    4: "no API key, or none that is valid",
    5: "the service failed, refused for now, or cannot be reached",
    6: "the model changed while it was read",
    7: "the model or the tensor cannot be read: it is damaged, or of an unknown type",
    8: "over a limit of the service",
    _FILE: "a local file cannot be written",
    DEFECT: "something unexpected: a defect of this command",
}

# The first that fits; the last is the root of the client's errors, which are OSErrors in part.
_KINDS: tuple[tuple[type[TensorTapError], int], ...] = (
    (SelectionError, USAGE),
    (BadRequest, USAGE),
    (NotFound, 3),
    (Unauthorized, 4),
    (ModelChanged, 6),
    (Unreadable, 7),
    (TooLarge, 8),
    (TensorTapError, 5),
)


class WouldOverwrite(FileExistsError):
    """A file has the name that one is to get, and nobody said that it may be overwritten."""


def code_of(error: TensorTapError | OSError) -> int:
    """The exit code that an error is."""
    if isinstance(error, WouldOverwrite):
        return USAGE
    return next((code for kind, code in _KINDS if isinstance(error, kind)), _FILE)
