"""GGUF files taken apart into fields, and written again, whole or with fields that lie.

The layout is written down here once more, so that this reading and that of `app.gguf` check each other. Source: the
GGUF specification (ggml, docs/gguf.md), and for what is refused the rules of the service (docs/decisions.md).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TypeAlias

from tests.builder import ARRAY, SCALARS, STRING, U32, Layout

__all__ = ["Entry", "File", "Info", "Items", "Numbers", "Refused", "Text", "Value", "plain", "take_apart"]

_MOST_LEVELS = 8
_MOST_DIMS = 4


class Refused(Exception):
    """The bytes are no GGUF file, for the reason that the text gives."""


@dataclass(slots=True)
class Text:
    """A string; ``length`` states another length than it has."""

    content: bytes
    length: int | None = None


@dataclass(slots=True)
class Numbers:
    """An array of plain values as the bytes that they are; ``count`` is what the file states."""

    element: int
    content: bytes
    count: int


@dataclass(slots=True)
class Items:
    """An array of strings or arrays; ``count`` states another number of them than there are."""

    element: int
    values: list[Value]
    count: int | None = None


Value: TypeAlias = bytes | Text | Numbers | Items
"""A metadata value; a plain number stays the bytes that it is."""


@dataclass(slots=True)
class Entry:
    """A metadata entry."""

    key: Text
    type: int
    value: Value


@dataclass(slots=True)
class Info:
    """A tensor entry; ``n_dims`` states another number of dimensions than there are."""

    name: Text
    ne: list[int]
    type: int
    offset: int
    n_dims: int | None = None


@dataclass(slots=True)
class File:
    """A file as fields. ``tail`` is what follows the last field where no more could be read: such a file has no data.

    ``n_entries`` and ``n_infos`` state other numbers than there are. ``header_bytes`` is where the tensor entries ended
    when it was read; of a file that is made or changed it says nothing.
    """

    layout: Layout = field(default_factory=Layout)
    version: int = 3
    entries: list[Entry] = field(default_factory=list)
    infos: list[Info] = field(default_factory=list)
    alignment: int = 32
    data: bytes = b""
    n_entries: int | None = None
    n_infos: int | None = None
    tail: bytes | None = None
    header_bytes: int = 0

    @property
    def data_start(self) -> int:
        """The byte offset of the data section, of a file that was read."""
        return -(-self.header_bytes // self.alignment) * self.alignment

    def write(self) -> bytes:
        """The bytes of the file."""
        pack = self.layout.pack
        n_infos = len(self.infos) if self.n_infos is None else self.n_infos
        n_entries = len(self.entries) if self.n_entries is None else self.n_entries
        width = 32 if self.layout.version == 1 else 64
        start = b"GGUF" + pack("I", self.version) + pack("WW", n_infos % 2**width, n_entries % 2**width)
        fields = [start]
        for entry in self.entries:
            fields += (self._text(entry.key), pack("I", entry.type), self._value(entry.value))
        for info in self.infos:
            n_dims = len(info.ne) if info.n_dims is None else info.n_dims
            dims = [n % 2**width for n in info.ne]
            fields += (self._text(info.name), pack("I" + "W" * len(dims), n_dims % 2**32, *dims))
            fields.append(pack("IQ", info.type % 2**32, info.offset % 2**64))
        header = b"".join(fields)
        if self.tail is not None:
            return header + self.tail
        # An alignment above some MiB is for a file of nothing else.
        padding = -len(header) % self.alignment if self.alignment <= 1 << 16 else 0
        return header + (bytes(padding) + self.data if self.data else b"")

    def _text(self, text: Text) -> bytes:
        length = len(text.content) if text.length is None else text.length
        return self.layout.pack("W", length % (2**32 if self.layout.version == 1 else 2**64)) + text.content

    def _value(self, value: Value) -> bytes:
        if isinstance(value, bytes):
            return value
        if isinstance(value, Text):
            return self._text(value)
        count = len(value.values) if isinstance(value, Items) and value.count is None else value.count or 0
        head = self.layout.pack("IW", value.element, count % (2**32 if self.layout.version == 1 else 2**64))
        if isinstance(value, Numbers):
            return head + value.content
        return head + b"".join(self._value(one) for one in value.values)


def plain(value: Value, value_type: int, layout: Layout) -> object:
    """A value that was read as Python has it: strings are bytes, arrays are lists."""
    if isinstance(value, Text):
        return value.content
    if isinstance(value, Items):
        return [plain(one, value.element, layout) for one in value.values]
    element, content = (value.element, value.content) if isinstance(value, Numbers) else (value_type, value)
    prefix = "<" if layout.byte_order == "little" else ">"
    code = SCALARS[element]
    numbers = [number for (number,) in struct.iter_unpack(prefix + code, content)]
    if element == 7:
        numbers = [number != 0 for number in numbers]
    return numbers if isinstance(value, Numbers) else numbers[0]


def take_apart(data: bytes, *, whole: bool) -> File:
    """The fields of a file.

    Parameters
    ----------
    whole
        Refuse what is no file by the rules; else what could be read is given, and the rest as its tail.

    Raises
    ------
    Refused
        Not by the rules, or without a magic and a version that say how to read it.
    """
    reader = _Reader(data)
    if reader.take(4) != b"GGUF":
        raise Refused("no magic")
    stated = reader.take(4)
    for order in ("little", "big"):
        version = int.from_bytes(stated, order)
        if version in (1, 2, 3):
            reader.layout = Layout(order, version)
            break
    else:
        raise Refused("no such version")
    file = File(layout=reader.layout, version=version)
    try:
        n_infos, n_entries = reader.word(), reader.word()
    except Refused:
        raise Refused("no counts") from None
    done = reader.at
    try:
        for _ in range(n_entries):
            file.entries.append(reader.entry())
            done = reader.at
        file.alignment = _alignment(file)
        for _ in range(n_infos):
            file.infos.append(reader.info())
            done = reader.at
    except Refused:
        if whole:
            raise
        file.n_entries, file.n_infos, file.tail = n_entries, n_infos, data[done:]
    file.header_bytes = done
    if file.tail is None:
        file.data = data[file.data_start :]
    return file


def _alignment(file: File) -> int:
    values = {
        int.from_bytes(entry.value, file.layout.byte_order) if isinstance(entry.value, bytes) else 0
        for entry in file.entries
        if entry.key.content == b"general.alignment"
    }
    types = {entry.type for entry in file.entries if entry.key.content == b"general.alignment"}
    if not values:
        return 32
    if types != {U32} or len(values) > 1:
        raise Refused("no one alignment")
    (alignment,) = values
    if alignment.bit_count() != 1:
        raise Refused("an alignment that is no power of two")
    return alignment


class _Reader:
    """The bytes of a file and how far they were read; each step raises Refused where the rules do."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.layout = Layout()

    def take(self, size: int) -> bytes:
        end = self.at + size
        if end > len(self.data):
            raise Refused("the file ends too early")
        taken = self.data[self.at : end]
        self.at = end
        return taken

    def word(self) -> int:
        return int.from_bytes(self.take(4 if self.layout.version == 1 else 8), self.layout.byte_order)

    def u32(self) -> int:
        return int.from_bytes(self.take(4), self.layout.byte_order)

    def text(self) -> Text:
        return Text(self.take(self.word()))

    def entry(self) -> Entry:
        key, value_type = self.text(), self.u32()
        return Entry(key, value_type, self.value(value_type, 1))

    def value(self, value_type: int, level: int) -> Value:
        if value_type == STRING:
            return self.text()
        if value_type == ARRAY:
            return self.array(level)
        if value_type not in SCALARS:
            raise Refused("no such type of a value")
        return self.take(struct.calcsize("<" + SCALARS[value_type]))

    def array(self, level: int) -> Value:
        element, count = self.u32(), self.word()
        if element in SCALARS:
            return Numbers(element, self.take(count * struct.calcsize("<" + SCALARS[element])), count)
        if element == ARRAY and level == _MOST_LEVELS:
            raise Refused("too many levels of arrays")
        if element not in (STRING, ARRAY):
            raise Refused("no such type of an element")
        return Items(element, [self.value(element, level + 1) for _ in range(count)])

    def info(self) -> Info:
        name, n_dims = self.text(), self.u32()
        if n_dims > _MOST_DIMS:
            raise Refused("too many dimensions")
        ne = [self.word() for _ in range(n_dims)]
        return Info(name, ne, self.u32(), int.from_bytes(self.take(8), self.layout.byte_order))
