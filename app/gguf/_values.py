"""The 13 value types of GGUF metadata, and arrays that are indexed when a file is opened and decoded when asked.

Source: the GGUF specification (ggml, docs/gguf.md), section "Metadata value types".
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from enum import IntEnum
from itertools import repeat
from typing import Final, TypeAlias, overload

import numpy as np

from app.gguf._cursor import Cursor

__all__ = ["NESTING_LIMIT", "Array", "Value", "ValueType", "read_string", "read_value"]

NESTING_LIMIT: Final = 8
"""Most levels of arrays: an array of plain values is one level."""

# A string array keeps the offset of every 64th string: finding one walks at most 63 lengths (some 4 µs), and the
# offsets take an eighth of a byte for each string.
_STRIDE: Final = 64


class ValueType(IntEnum):
    """The type ids of metadata values; ``label`` is the short name (``u8`` … ``f64``, ``string``, ``array``)."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12

    @property
    def label(self) -> str:
        """The short name, as used in answers and messages."""
        return _LABELS[self]


_LABELS: Final = ("u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64")
# The struct codes of the types of a fixed size; numpy reads the same letters, in the same byte orders. A bool is
# read as the byte that it is: only then can a 2 be noticed.
_CODES: Final = {
    ValueType.UINT8: "B",
    ValueType.INT8: "b",
    ValueType.UINT16: "H",
    ValueType.INT16: "h",
    ValueType.UINT32: "I",
    ValueType.INT32: "i",
    ValueType.FLOAT32: "f",
    ValueType.BOOL: "B",
    ValueType.UINT64: "Q",
    ValueType.INT64: "q",
    ValueType.FLOAT64: "d",
}
_SIZES: Final = {value_type: struct.calcsize("<" + code) for value_type, code in _CODES.items()}
_STRUCTS: Final = {
    prefix: {value_type: struct.Struct(prefix + code) for value_type, code in _CODES.items()} for prefix in "<>"
}
_TYPES: Final = {int(value_type): value_type for value_type in ValueType}


class Array(Sequence["Value"]):
    """An array of a header: its values stay encoded until they are asked for.

    ``array[i]`` gives one value (bytes for a string, an `Array` for an inner array) and ``array[a:b:c]`` a list,
    neither decoding what it does not give. ``element_type`` is the type of the elements, ``nesting`` the number of
    levels (1 for plain values), ``nbytes`` the bytes that the elements take in the file, ``offset`` where they begin.
    """

    __slots__ = ("_count", "_cursor", "_end", "_marks", "element_type", "nesting", "offset")

    def __init__(
        self,
        cursor: Cursor,
        element_type: ValueType,
        count: int,
        offset: int,
        end: int,
        nesting: int,
        marks: array[int],
    ) -> None:
        self._cursor = cursor
        self.element_type = element_type
        self._count = count
        self.offset = offset
        self._end = end
        self.nesting = nesting
        self._marks = marks

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """The bytes that the elements take in the file (without the array's own type and length)."""
        return self._end - self.offset

    @property
    def memory_bytes(self) -> int:
        """An estimate of what the array holds in memory beside the header's own bytes."""
        return 200 + self._marks.itemsize * len(self._marks)

    @overload
    def __getitem__(self, index: int) -> Value: ...
    @overload
    def __getitem__(self, index: slice) -> list[Value]: ...
    def __getitem__(self, index: int | slice) -> Value | list[Value]:
        """Give one value, or the list of a slice, as a list of Python values would.

        Raises `IndexError` for an index outside.
        """
        if isinstance(index, slice):
            return self._slice(range(self._count)[index])
        try:
            place = range(self._count)[index]
        except IndexError:
            raise IndexError(f"index {index} is outside of an array of {self._count} elements") from None
        return self._slice(range(place, place + 1))[0]

    def __iter__(self) -> Iterator[Value]:
        for start in range(0, self._count, 1024):
            yield from self._slice(range(start, min(start + 1024, self._count)))

    def __repr__(self) -> str:
        return f"<Array of {self._count} {self.element_type.label}>"

    def _slice(self, places: range) -> list[Value]:
        if not places:
            return []
        if self.element_type is ValueType.STRING:
            return self._strings(places)
        if self.element_type is ValueType.ARRAY:
            return [self._inner(self._marks[place]) for place in places]
        numbers = np.frombuffer(
            self._cursor.data,
            self._cursor.prefix + _CODES[self.element_type],
            self._count,
            self.offset,
        )
        # A slice whose stop would be -1 cannot be written down: take the forward one and turn it round.
        forward = places if places.step > 0 else places[::-1]
        chosen = numbers[forward.start : forward.stop : forward.step]
        if self.element_type is ValueType.BOOL:
            chosen = chosen != 0
        values: list[Value] = chosen.tolist()
        return values if places.step > 0 else values[::-1]

    def _strings(self, places: range) -> list[Value]:
        data, unpack, width = self._cursor.data, self._cursor.word.unpack_from, self._cursor.word.size
        forward = places if places.step > 0 else places[::-1]
        values: list[Value] = []
        at, position = -1, 0
        for place in forward:
            if at < 0 or place // _STRIDE > at // _STRIDE:
                at = place - place % _STRIDE
                position = self._marks[place // _STRIDE]
            for _ in repeat(None, place - at):
                position += width + unpack(data, position)[0]
            end = position + width + unpack(data, position)[0]
            values.append(bytes(data[position + width : end]))
            at, position = place + 1, end
        return values if places.step > 0 else values[::-1]

    def _inner(self, position: int) -> Array:
        return _read_array(self._cursor, position, 1)


Value: TypeAlias = int | float | bool | bytes | Array
"""A metadata value; strings are raw bytes."""


def read_value(cursor: Cursor, type_id: int, position: int, type_offset: int) -> tuple[Value, ValueType, int]:
    """Read the value of type `type_id` at byte `position`; give it, its type and the position after it.

    `type_offset` is where the type id stands. Raises `BadHeader` for an unknown type, a length that the file does
    not hold, more than `NESTING_LIMIT` levels of arrays, or more elements than the limits allow.
    """
    value_type = _value_type(cursor, type_id, type_offset)
    if value_type is ValueType.STRING:
        text, end = read_string(cursor, position, "a string value")
        return text, value_type, end
    if value_type is ValueType.ARRAY:
        value = _read_array(cursor, position, 1)
        return value, value_type, value.offset + value.nbytes
    end = position + _SIZES[value_type]
    cursor.need(end, position, f"the {value_type.label} value")
    number = _STRUCTS[cursor.prefix][value_type].unpack_from(cursor.data, position)[0]
    if value_type is ValueType.BOOL:
        cursor.odd_bool |= number > 1
        return number != 0, value_type, end
    return number, value_type, end


def read_string(cursor: Cursor, position: int, what: str) -> tuple[bytes, int]:
    """Read the length and the bytes of a string; give them and the position after it. `what` names it in errors."""
    start = position + cursor.word.size
    cursor.need(start, position, f"the length of {what}")
    (length,) = cursor.word.unpack_from(cursor.data, position)
    end = start + length
    cursor.need(end, position, f"{what} of {length} bytes")
    # By way of a view: a slice of the buffer itself would be a second copy, of up to HEADER_LIMIT bytes.
    return bytes(memoryview(cursor.data)[start:end]), end


def _value_type(cursor: Cursor, type_id: int, offset: int) -> ValueType:
    try:
        return _TYPES[type_id]
    except KeyError:
        raise cursor.fail(
            f"value type {type_id} is unknown; the format has 0 to {max(_TYPES)}. What follows cannot be located: "
            "the file is damaged, or newer than this program.",
            offset,
        ) from None


def _read_array(cursor: Cursor, position: int, level: int) -> Array:
    """Index the array whose type and length stand at `position`; `level` is 1 for one that is in no other array."""
    start = position + 4 + cursor.word.size
    cursor.need(start, position, "the type and length of an array")
    element_type = _value_type(cursor, cursor.u32.unpack_from(cursor.data, position)[0], position)
    (count,) = cursor.word.unpack_from(cursor.data, position + 4)
    marks = array("Q")
    nesting = 1
    if element_type is ValueType.STRING:
        end = _index_strings(cursor, start, count, marks)
    elif element_type is ValueType.ARRAY:
        end, nesting = _index_arrays(cursor, start, count, marks, level)
    else:
        end = start + count * _SIZES[element_type]
        cursor.need(end, position, f"an array of {count} {element_type.label} values")
        if element_type is ValueType.BOOL:
            cursor.odd_bool |= bool(np.frombuffer(cursor.data, np.uint8, count, start).max(initial=0) > 1)
    return Array(cursor, element_type, count, start, end, nesting, marks)


def _index_arrays(cursor: Cursor, position: int, count: int, marks: array[int], level: int) -> tuple[int, int]:
    """Put the offset of every inner array into `marks`; give the position after them and the levels from here."""
    if level == NESTING_LIMIT:
        raise cursor.fail(
            f"arrays are nested more than {NESTING_LIMIT} levels deep, which is the limit (NESTING_LIMIT).", position
        )
    cursor.check(position + count * (4 + cursor.word.size), position, f"an array of {count} arrays")
    cursor.count_inner_arrays(count, position)
    deepest = 0
    for _ in repeat(None, count):
        marks.append(position)
        inner = _read_array(cursor, position, level + 1)
        deepest = max(deepest, inner.nesting)
        position = inner.offset + inner.nbytes
    return position, 1 + deepest


def _index_strings(cursor: Cursor, position: int, count: int, marks: array[int]) -> int:
    """Put the offset of every 64th of `count` strings into `marks`; give the position after the last."""
    width, unpack = cursor.word.size, cursor.word.unpack_from
    cursor.check(position + count * width, position, f"an array of {count} strings")
    cursor.count_strings(count, position)
    data = cursor.data
    for done in range(0, count, _STRIDE):
        marks.append(position)
        here = min(_STRIDE, count - done)
        # The loop over lengths is nearly all of the time that opening a model takes. It checks nothing: a length that
        # leads outside of what was read makes the next one unreadable, and the block is walked again with care.
        end = position
        try:
            for _ in repeat(None, here):
                end += width + unpack(data, end)[0]
        except (struct.error, OverflowError):
            end = len(data) + 1
        if end > len(data):
            end = _walk_strings(cursor, position, done, here)
            data = cursor.data
        position = end
    return position


def _walk_strings(cursor: Cursor, position: int, first: int, count: int) -> int:
    """Step over `count` strings, reading on where needed; `first` is the index of the first, for errors."""
    width = cursor.word.size
    for index in range(first, first + count):
        cursor.need(position + width, position, f"the length of element {index}")
        (length,) = cursor.word.unpack_from(cursor.data, position)
        cursor.need(position + width + length, position, f"element {index}, a string of {length} bytes,")
        position += width + length
    return position
