"""The errors of this package.

    DecoderError (Exception)
    ├── UnsupportedType (DecoderError, ValueError)   a type that is not, or no longer, decoded
    ├── BadBlockLength  (DecoderError, ValueError)   bytes or weights that are not whole blocks
    └── BadBuffer       (DecoderError, ValueError)   an argument that cannot be used as it is

Each carries what it found as fields, so that a caller never has to read the message.
"""

from __future__ import annotations


class DecoderError(Exception):
    """Base of every error that this package raises on purpose."""


class UnsupportedType(DecoderError, ValueError):
    """A ggml type that the called function cannot handle.

    Fields: `type` (the id as given), `name` (ggml's name, or None for an unknown id) and `reason`.
    """

    def __init__(self, type: int, name: str | None, reason: str) -> None:  # noqa: A002 (the public word)
        self.type = type
        self.name = name
        self.reason = reason
        known = f"{type} ({name})" if name else f"{type}"
        super().__init__(f"ggml type {known} {reason}")

    def __reduce__(self) -> tuple[type[UnsupportedType], tuple[int, str | None, str]]:
        """Rebuild from the fields, so that the error crosses process borders."""
        return type(self), (self.type, self.name, self.reason)


class BadBlockLength(DecoderError, ValueError):
    """A length that is not a whole number of blocks.

    Fields: `name` (the format), `length` (what was given), `block` (what it must be a multiple of) and
    `unit` ("bytes" or "weights").
    """

    def __init__(self, name: str, length: int, block: int, unit: str) -> None:
        self.name = name
        self.length = length
        self.block = block
        self.unit = unit
        super().__init__(
            f"{length} {unit} are not whole {name} blocks of {block} {unit}: "
            f"{length % block} {unit} are left over; give a multiple of {block}"
        )

    def __reduce__(self) -> tuple[type[BadBlockLength], tuple[str, int, int, str]]:
        """Rebuild from the fields, so that the error crosses process borders."""
        return type(self), (self.name, self.length, self.block, self.unit)


class BadBuffer(DecoderError, ValueError):
    """An argument whose dtype, size, layout or contents cannot be used.

    Fields: `argument` (its name), `expected` and `found` (both in words).
    """

    def __init__(self, argument: str, expected: str, found: str) -> None:
        self.argument = argument
        self.expected = expected
        self.found = found
        super().__init__(f"{argument} must be {expected}; found {found}")

    def __reduce__(self) -> tuple[type[BadBuffer], tuple[str, str, str]]:
        """Rebuild from the fields, so that the error crosses process borders."""
        return type(self), (self.argument, self.expected, self.found)
