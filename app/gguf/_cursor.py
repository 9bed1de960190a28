"""The bytes of a header: read from a file descriptor as far as they are needed, and not further than allowed.

A cursor holds the file from its first byte to as far as the parser has come, in one buffer that grows by doubling.
Every length that a file states goes through `Cursor.need` before anything is allocated for it.
"""

import os
import struct
from typing import Final, Literal

from app.gguf._errors import BadHeader

__all__ = ["HEADER_LIMIT", "INNER_ARRAY_LIMIT", "STRING_LIMIT", "ByteOrder", "Cursor"]

ByteOrder = Literal["little", "big"]

HEADER_LIMIT: Final = 256 << 20
"""Most bytes of a header that are read (256 MiB). The largest published headers are below 20 MiB."""

STRING_LIMIT: Final = 4_194_304
"""Most strings inside the arrays of one header: some six times the tokens and merges of the largest vocabularies."""

INNER_ARRAY_LIMIT: Final = 65_536
"""Most arrays inside the arrays of one header. No published model has any."""

# The first read covers the headers of models without a vocabulary; one with 262,144 tokens takes six more.
_FIRST_READ: Final = 128 << 10


class Cursor:
    """The first bytes of a file, and how its numbers are laid out.

    ``data`` holds the bytes from offset 0; `need` makes it longer. ``word`` reads a count, a length or a dimension
    (64 bits; 32 in version 1). ``key`` and ``tensor`` say what is being parsed, for the errors. ``odd_bool`` is
    set where a boolean is neither 0 nor 1.
    """

    __slots__ = (
        "_fd",
        "_inner_arrays",
        "_strings",
        "byte_order",
        "data",
        "key",
        "odd_bool",
        "prefix",
        "size",
        "tensor",
        "u32",
        "word",
        "word_code",
    )

    def __init__(self, fd: int) -> None:
        """Start at the beginning of the file behind `fd`, which is read with positions and never moved.

        Raises `OSError` as the system calls do.
        """
        self._fd: int | None = fd
        self.size: int = os.fstat(fd).st_size
        self.data = bytearray()
        self.key: bytes | None = None
        self.tensor: bytes | None = None
        self.odd_bool = False
        self._strings = 0
        self._inner_arrays = 0
        self.set_layout("little", 3)
        self._grow(min(_FIRST_READ, self.size))

    def set_layout(self, byte_order: ByteOrder, version: int) -> None:
        """Fix byte order and width of the numbers: version 1 has 32-bit counts, lengths and dimensions."""
        self.byte_order = byte_order
        self.prefix = "<" if byte_order == "little" else ">"
        self.word_code = "I" if version == 1 else "Q"
        self.u32 = struct.Struct(self.prefix + "I")
        self.word = struct.Struct(self.prefix + self.word_code)

    def fail(self, reason: str, offset: int) -> BadHeader:
        """Give (not raise) the error for `reason` at byte `offset`, naming the key or tensor at hand."""
        return BadHeader(reason, offset=offset, key=self.key, tensor=self.tensor)

    def need(self, end: int, offset: int, what: str) -> None:
        """Make sure that ``data`` reaches to byte `end`, which `what` at byte `offset` promises to be there.

        Raises `BadHeader` when the file ends before, or the header would pass `HEADER_LIMIT`; nothing has been
        read or allocated then.
        """
        if end > len(self.data):
            self.check(end, offset, what)
            self._grow(min(max(end, 2 * len(self.data)), self.size, HEADER_LIMIT))

    def check(self, end: int, offset: int, what: str) -> None:
        """Raise what `need` would, without reading."""
        if end > self.size:
            raise self.fail(
                f"{what} would end at byte {end}, past the end of the file at {self.size}. "
                "The file is truncated or damaged: download it again.",
                offset,
            )
        if end > HEADER_LIMIT:
            raise self.fail(
                f"{what} would take the header to {end} bytes; the limit (HEADER_LIMIT) is {HEADER_LIMIT}.", offset
            )

    def count_strings(self, count: int, offset: int) -> None:
        """Count `count` more strings inside arrays; raises `BadHeader` above `STRING_LIMIT`."""
        if self._fd is None:
            return
        self._strings += count
        if self._strings > STRING_LIMIT:
            raise self.fail(
                f"the arrays of this header hold more than {STRING_LIMIT} strings, which is the limit (STRING_LIMIT).",
                offset,
            )

    def count_inner_arrays(self, count: int, offset: int) -> None:
        """Count `count` more arrays inside arrays; raises `BadHeader` above `INNER_ARRAY_LIMIT`."""
        if self._fd is None:
            return
        self._inner_arrays += count
        if self._inner_arrays > INNER_ARRAY_LIMIT:
            raise self.fail(
                f"the arrays of this header hold more than {INNER_ARRAY_LIMIT} arrays, which is the limit "
                "(INNER_ARRAY_LIMIT).",
                offset,
            )

    def freeze(self, end: int) -> None:
        """Keep the first `end` bytes only, and let go of the descriptor: what was parsed stays readable."""
        if len(self.data) - end > end // 8:
            self.data = self.data[:end]
        else:
            # In place: the copy of a header near the limit would double what opening a model takes.
            del self.data[end:]
        self._fd = None
        self.size = end
        self.key = None
        self.tensor = None

    def _grow(self, end: int) -> None:
        if self._fd is None:
            raise RuntimeError("a frozen cursor was asked for bytes that its parser did not check")
        start = len(self.data)
        grown = bytearray(end)
        grown[:start] = self.data
        with memoryview(grown) as view:
            while start < end:
                got = os.preadv(self._fd, [view[start:end]], start)
                if got == 0:
                    raise self.fail(f"the file shrank to {start} bytes while it was read; it had {self.size}.", start)
                start += got
        self.data = grown
