"""Reading the header of one GGUF file: version and byte order, metadata, tensor table.

The layout (GGUF specification, ggml, docs/gguf.md): magic ``GGUF``, u32 version, the number of tensors, the number of
metadata entries, the entries (key, type, value), the tensor entries (name, dimensions, type, offset), padding to the
alignment, data. Counts, lengths and dimensions are 64 bits wide, in version 1 32 bits. The byte order is that in which
the version reads as a small number.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from struct import Struct
from typing import Final, TypeVar, overload

from app.gguf._cursor import ByteOrder, Cursor
from app.gguf._errors import UnsupportedVersion, quoted
from app.gguf._sniff import MAGIC, not_gguf
from app.gguf._tensors import RawTensor, Space, Tensor, round_up, tensor_table
from app.gguf._values import Array, Value, ValueType, read_string, read_value
from app.gguf._warnings import Warnings

__all__ = ["KEY_LIMIT", "TENSOR_LIMIT", "Entry", "Header", "Metadata", "read_header", "read_part"]

KEY_LIMIT: Final = 65_536
"""Most metadata entries of a file."""

TENSOR_LIMIT: Final = 65_536
"""Most tensors of a file. The largest published models have some 3,000."""

_DIMS_LIMIT: Final = 4
_KEY_BYTES: Final = 65_535
_DEFAULT_ALIGNMENT: Final = 32
_VERSIONS: Final = (1, 2, 3)
_SHAPE_PREFIX: Final = b"comfy.gguf.orig_shape."
_SHAPE_DIMS: Final = 32
_WHOLE: Final = frozenset(
    {
        ValueType.UINT8,
        ValueType.INT8,
        ValueType.UINT16,
        ValueType.INT16,
        ValueType.UINT32,
        ValueType.INT32,
        ValueType.UINT64,
        ValueType.INT64,
    }
)

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Entry:
    """One metadata entry: raw ``key``, ``type``, ``value`` (strings are raw bytes), ``offset`` of its first byte."""

    key: bytes
    type: ValueType
    value: Value
    offset: int


class Metadata(Sequence[Entry]):
    """The metadata entries of a file, in file order, with duplicate keys kept."""

    __slots__ = ("_by_key", "_entries")

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries = tuple(entries)
        by_key: dict[bytes, list[Entry]] = {}
        for entry in self._entries:
            by_key.setdefault(entry.key, []).append(entry)
        self._by_key = {key: tuple(same) for key, same in by_key.items()}

    def __len__(self) -> int:
        return len(self._entries)

    @overload
    def __getitem__(self, index: int) -> Entry: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Entry, ...]: ...
    def __getitem__(self, index: int | slice) -> Entry | tuple[Entry, ...]:
        """Give an entry, or the tuple of a slice, by position."""
        return self._entries[index]

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries)

    def keys(self) -> tuple[bytes, ...]:
        """The distinct keys, in order of their first entry."""
        return tuple(self._by_key)

    def all(self, key: bytes) -> tuple[Entry, ...]:
        """Every entry of `key` in file order; empty when there is none."""
        return self._by_key.get(key, ())

    @overload
    def get(self, key: bytes) -> Value | None: ...
    @overload
    def get(self, key: bytes, default: _T) -> Value | _T: ...
    def get(self, key: bytes, default: object = None) -> object:
        """The value of the first entry of `key`, or `default`."""
        same = self._by_key.get(key)
        return same[0].value if same else default

    def integer(self, key: bytes) -> int | None:
        """The value of the first entry of `key` when its type is one of the integers, else None."""
        same = self._by_key.get(key)
        value = same[0].value if same and same[0].type in _WHOLE else None
        return value if isinstance(value, int) else None


@dataclass(frozen=True, slots=True)
class Header:
    """The header of one file.

    ``header_bytes`` is where the tensor entries end, ``data_start`` that rounded up to ``alignment`` (offsets of
    tensors count from there), ``file_size`` what the file had when it was read, all in bytes. ``warnings`` are
    sentences on what is odd and was accepted. ``memory_bytes`` estimates what the header holds in memory.
    """

    version: int
    byte_order: ByteOrder
    alignment: int
    data_start: int
    header_bytes: int
    file_size: int
    metadata: Metadata
    tensors: tuple[Tensor, ...]
    warnings: tuple[str, ...]
    memory_bytes: int


def read_header(fd: int) -> Header:
    """Read and check the header of the GGUF file behind `fd`, without moving its position or reading its weights.

    The result does not need the descriptor. Memory and time are bounded by the header's own size and by
    `HEADER_LIMIT`, `KEY_LIMIT`, `TENSOR_LIMIT`, `STRING_LIMIT` and `INNER_ARRAY_LIMIT`.

    Raises
    ------
    NotGGUF, UnsupportedVersion, BadHeader
        all `GGUFError`, with the byte offset and the key or tensor
    OSError
        as reading the file raises it
    """
    return read_part(fd)


def read_part(fd: int, file: int = 0, first: Metadata | None = None) -> Header:
    """Read one part of a split set: its tensors get `file`, and original shapes come from `first`."""
    cursor = Cursor(fd)
    warnings = Warnings()
    version = _read_version(cursor)
    n_tensors, n_entries, position = _read_counts(cursor)
    entries, metadata_end = _read_entries(cursor, n_entries, position, warnings)
    metadata = Metadata(entries)
    alignment = _alignment(cursor, metadata)
    raws, header_bytes = _read_tensors(cursor, n_tensors, metadata_end)
    space = Space(round_up(header_bytes, alignment), alignment, cursor.size, cursor.byte_order, file)
    _note_keys(metadata, warnings)
    # What the first part's shapes have against them is said once, with the first part.
    shapes = _original_shapes(metadata, warnings) if first is None else _original_shapes(first, Warnings())
    tensors = tensor_table(raws, space, shapes, warnings)
    cursor.freeze(metadata_end)
    return Header(
        version=version,
        byte_order=space.byte_order,
        alignment=alignment,
        data_start=space.data_start,
        header_bytes=header_bytes,
        file_size=space.file_size,
        metadata=metadata,
        tensors=tensors,
        warnings=warnings.sentences(),
        memory_bytes=_memory(metadata, tensors, metadata_end),
    )


def _read_version(cursor: Cursor) -> int:
    if cursor.data[:4] != MAGIC:
        raise not_gguf(bytes(cursor.data[:4096]), cursor.size)
    cursor.need(8, 4, "the version")
    little = int.from_bytes(cursor.data[4:8], "little")
    big = int.from_bytes(cursor.data[4:8], "big")
    if little in _VERSIONS:
        cursor.set_layout("little", little)
        return little
    if big in _VERSIONS:
        cursor.set_layout("big", big)
        return big
    raise UnsupportedVersion(min(little, big))


def _read_counts(cursor: Cursor) -> tuple[int, int, int]:
    width = cursor.word.size
    position = 8 + 2 * width
    cursor.need(position, 8, "the number of tensors and of metadata entries")
    n_tensors, n_entries = Struct(cursor.prefix + 2 * cursor.word_code).unpack_from(cursor.data, 8)
    # The smallest entries: an empty key with a one-byte value; an empty name without dimensions.
    cursor.check(position + n_entries * (width + 5), 8 + width, f"a header of {n_entries} metadata entries")
    cursor.check(position + n_tensors * (width + 16), 8, f"a header of {n_tensors} tensors")
    if n_entries > KEY_LIMIT:
        raise cursor.fail(
            f"The file has {n_entries} metadata entries; the limit (KEY_LIMIT) is {KEY_LIMIT}.", 8 + width
        )
    if n_tensors > TENSOR_LIMIT:
        raise cursor.fail(f"The file has {n_tensors} tensors; the limit (TENSOR_LIMIT) is {TENSOR_LIMIT}.", 8)
    return n_tensors, n_entries, position


def _read_entries(cursor: Cursor, count: int, position: int, warnings: Warnings) -> tuple[list[Entry], int]:
    entries: list[Entry] = []
    for _ in repeat(None, count):
        start = position
        cursor.key = None
        key, position = read_string(cursor, position, "the key of a metadata entry")
        cursor.key = key
        cursor.need(position + 4, position, "the type of the value")
        (type_id,) = cursor.u32.unpack_from(cursor.data, position)
        value, value_type, position = read_value(cursor, type_id, position + 4, position)
        entries.append(Entry(key, value_type, value, start))
        if cursor.odd_bool:
            cursor.odd_bool = False
            kind = "keys with booleans that are neither 0 nor 1"
            if warnings.wants(kind):
                warnings.add(kind, f"A boolean of key {quoted(key)} is stored as neither 0 nor 1; it is read as true.")
    cursor.key = None
    return entries, position


def _alignment(cursor: Cursor, metadata: Metadata) -> int:
    alignment: int | None = None
    for entry in metadata.all(b"general.alignment"):
        cursor.key = entry.key
        value = entry.value
        if entry.type is not ValueType.UINT32 or not isinstance(value, int):
            raise cursor.fail(f"the alignment must be a u32; this one is a {entry.type.label}.", entry.offset)
        if value == 0 or value & (value - 1):
            raise cursor.fail(f"the alignment must be a power of two; this one is {value}.", entry.offset)
        if alignment not in (None, value):
            raise cursor.fail(
                f"the alignment is given twice, as {alignment} and as {value}: where the data begins cannot be known.",
                entry.offset,
            )
        alignment = value
    cursor.key = None
    return _DEFAULT_ALIGNMENT if alignment is None else alignment


def _read_tensors(cursor: Cursor, count: int, position: int) -> tuple[list[RawTensor], int]:
    rests = [Struct(f"{cursor.prefix}{n}{cursor.word_code}IQ") for n in range(_DIMS_LIMIT + 1)]
    raws: list[RawTensor] = []
    for _ in repeat(None, count):
        cursor.tensor = None
        name, position = read_string(cursor, position, "the name of a tensor")
        cursor.tensor = name
        cursor.need(position + 4, position, "the number of dimensions")
        (n_dims,) = cursor.u32.unpack_from(cursor.data, position)
        if n_dims > _DIMS_LIMIT:
            raise cursor.fail(
                f"the tensor has {n_dims} dimensions; ggml has at most {_DIMS_LIMIT}. The file is damaged, or from "
                "another program.",
                position,
            )
        rest = rests[n_dims]
        position += 4
        cursor.need(position + rest.size, position, "the dimensions, type and offset")
        *ne, type_id, offset = rest.unpack_from(cursor.data, position)
        position += rest.size
        raws.append(RawTensor(name, tuple(ne), type_id, offset))
    cursor.tensor = None
    return raws, position


def _note_keys(metadata: Metadata, warnings: Warnings) -> None:
    for key in metadata.keys():  # noqa: SIM118 - it is no mapping: iterating gives entries
        count = len(metadata.all(key))
        kind = "keys that occur more than once"
        if count > 1 and warnings.wants(kind):
            warnings.add(kind, f"Key {quoted(key)} occurs {count} times; programs differ in which value they take.")
        kind = f"keys of more than {_KEY_BYTES} bytes"
        if len(key) > _KEY_BYTES and warnings.wants(kind):
            warnings.add(kind, f"Key {quoted(key)} is longer than the {_KEY_BYTES} bytes that the format allows.")
        if not key:
            warnings.add("an empty key", "A metadata entry has an empty key.")


def _original_shapes(metadata: Metadata, warnings: Warnings) -> Mapping[bytes, tuple[int, ...]]:
    """Give the shapes that ComfyUI-GGUF keeps of tensors it flattened: integers in numpy's order, by tensor name."""
    shapes: dict[bytes, tuple[int, ...]] = {}
    for entry in metadata:
        if not entry.key.startswith(_SHAPE_PREFIX) or entry.key.removeprefix(_SHAPE_PREFIX) in shapes:
            continue
        value = entry.value
        if isinstance(value, Array) and value.element_type in _WHOLE and len(value) <= _SHAPE_DIMS:
            dims = tuple(n for n in value if isinstance(n, int))
            shapes[entry.key.removeprefix(_SHAPE_PREFIX)] = dims
            continue
        kind = "original shapes that are no lists of integers"
        if warnings.wants(kind):
            warnings.add(kind, f"The original shape in key {quoted(entry.key)} is no short list of integers.")
    return shapes


def _memory(metadata: Metadata, tensors: Sequence[Tensor], kept: int) -> int:
    arrays = [entry.value for entry in metadata if isinstance(entry.value, Array)]
    total = (kept if arrays else 0) + sum(array.memory_bytes for array in arrays)
    total += sum(300 + len(e.key) + (len(e.value) if isinstance(e.value, bytes) else 0) for e in metadata)
    return total + sum(500 + len(tensor.name) for tensor in tensors)
