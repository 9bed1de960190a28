"""GGUF files for tests, byte by byte: well-formed ones, and ones that lie.

Nothing here is shared with the parser: the layout is written down a second time, so that one checks the other.
Source: the GGUF specification (ggml, docs/gguf.md). All functions give bytes; `Layout` says in which byte order and
version.
"""

import struct
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

ByteOrder: TypeAlias = Literal["little", "big"]
Text: TypeAlias = bytes | str
Shape: TypeAlias = Sequence[int]

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
SCALARS = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B", U64: "Q", I64: "q", F64: "d"}


class Layout(NamedTuple):
    """How numbers are written: the byte order, and the version, which decides the width of counts and lengths."""

    byte_order: ByteOrder = "little"
    version: int = 3

    def pack(self, codes: str, *values: object) -> bytes:
        """`struct.pack` in this byte order, where ``W`` stands for a count, a length or a dimension."""
        prefix = "<" if self.byte_order == "little" else ">"
        return struct.pack(prefix + codes.replace("W", "I" if self.version == 1 else "Q"), *values)


V3 = Layout()


def raw(text: Text) -> bytes:
    """Give `text` as bytes, in UTF-8 if it is a str."""
    return text.encode() if isinstance(text, str) else text


def string(text: Text, layout: Layout = V3) -> bytes:
    """A length and the bytes: ``S(x)``."""
    return layout.pack("W", len(raw(text))) + raw(text)


def array(element_type: int, values: Sequence[object], layout: Layout = V3, *, count: int | None = None) -> bytes:
    """An array: ``ARR(t,n,..)``. `count` states another number of elements than there are.

    The elements of an array of arrays are pairs (element type, values).
    """
    head = layout.pack("IW", element_type, len(values) if count is None else count)
    return head + b"".join(encode(element_type, value, layout) for value in values)


def encode(value_type: int, value: object, layout: Layout = V3) -> bytes:
    """A value without its type. An array is a pair (element type, values)."""
    if value_type == STRING:
        assert isinstance(value, bytes | str)
        return string(value, layout)
    if value_type == ARRAY:
        assert isinstance(value, tuple)
        element_type, values = value
        return array(element_type, values, layout)
    return layout.pack(SCALARS[value_type], value)


def kv(key: Text, value_type: int, value: object, layout: Layout = V3) -> bytes:
    """A metadata entry: ``KV(key,type,value)``."""
    return raw_kv(key, value_type, encode(value_type, value, layout), layout)


def raw_kv(key: Text, value_type: int, value: bytes, layout: Layout = V3) -> bytes:
    """A metadata entry of any type id, with the bytes of its value."""
    return string(key, layout) + layout.pack("I", value_type) + value


def tensor_info(
    name: Text, ne: Shape, type_id: int, offset: int, layout: Layout = V3, *, n_dims: int | None = None
) -> bytes:
    """A tensor entry: ``TI(name,[ne0,ne1,..],type,offset)``. `n_dims` states another number than `ne` has."""
    dims = layout.pack("I" + "W" * len(ne), len(ne) if n_dims is None else n_dims, *ne)
    return string(name, layout) + dims + layout.pack("IQ", type_id, offset)


def header(
    n_tensors: int, n_entries: int, layout: Layout = V3, *, magic: bytes = b"GGUF", version: int | None = None
) -> bytes:
    """The beginning of a file: ``HDR(nt,nk)``. `version` states another version than the layout has."""
    return magic + layout.pack("IWW", layout.version if version is None else version, n_tensors, n_entries)


def pad(data: bytes, alignment: int = 32) -> bytes:
    """`data` and zeros up to a multiple of `alignment`: ``PAD``."""
    return data + bytes(-len(data) % alignment)


def floats(*values: float, layout: Layout = V3) -> bytes:
    """Float32 values."""
    return layout.pack(f"{len(values)}f", *values)


F8 = floats(*range(8))
ARCHITECTURE = "general.architecture"


def base(
    *,
    entries: Sequence[bytes] = (),
    infos: Sequence[bytes] | None = None,
    data: bytes | None = None,
    alignment: int = 32,
    layout: Layout = V3,
    magic: bytes = b"GGUF",
    version: int | None = None,
) -> bytes:
    """``BASE``, 160 bytes: one key, one F32 tensor ``w`` of ne [4, 2] with the values 0 to 7.

    Parameters
    ----------
    entries : more metadata entries, after the architecture
    infos : tensor entries in place of that of ``w``
    data : the data section in place of the eight floats
    alignment : to which the header is padded; the key that states it is for the caller to give
    layout : the byte order and version of everything
    magic, version : as they are stated in the first eight bytes
    """
    infos = [tensor_info("w", [4, 2], 0, 0, layout)] if infos is None else infos
    data = floats(*range(8), layout=layout) if data is None else data
    keys = [kv(ARCHITECTURE, STRING, "llama", layout), *entries]
    start = header(len(infos), len(keys), layout, magic=magic, version=version)
    return pad(start + b"".join(keys) + b"".join(infos), alignment) + data


def build(
    tensors: Sequence[tuple[Text, Shape, int, bytes]] = (),
    metadata: Sequence[tuple[Text, int, object]] = (),
    *,
    version: int = 3,
    byte_order: ByteOrder = "little",
    alignment: int = 32,
    offsets: Sequence[int | None] | None = None,
) -> bytes:
    """A whole file of `tensors` (name, ne, type id, bytes) and `metadata` (key, type, value).

    The tensors follow each other at multiples of `alignment`, without padding after the last; `offsets` gives the
    offset of some or all (None: where it would be). A key ``general.alignment`` is added when `alignment` is not 32 and
    `metadata` has none.
    """
    layout = Layout(byte_order, version)
    entries = [kv(key, value_type, value, layout) for key, value_type, value in metadata]
    if alignment != 32 and all(raw(key) != b"general.alignment" for key, _, _ in metadata):
        entries.append(kv("general.alignment", U32, alignment, layout))
    infos, data = [], bytearray()
    for (name, ne, type_id, content), stated in zip(tensors, offsets or [None] * len(tensors), strict=True):
        offset = len(data) + -len(data) % alignment if stated is None else stated
        infos.append(tensor_info(name, ne, type_id, offset, layout))
        data += bytes(max(0, offset + len(content) - len(data)))
        data[offset : offset + len(content)] = content
    start = header(len(tensors), len(entries), layout) + b"".join(entries) + b"".join(infos)
    return pad(start, alignment) + data
