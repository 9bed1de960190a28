"""The steps that the decoders share.

A decoder is given `blocks`, uint8 of shape (n, block_bytes), and fills `out`, float32 of shape
(n, block_weights), both contiguous. numpy spends 5 to 10 ns on each inner loop, as much as on 32 weights
themselves. So most steps here work on one long contiguous run: fields are first copied together and bits are
moved eight bytes at a time, in bytes for as long as possible. And between two numpy calls a thread must wait for
the interpreter's lock, so a decoder makes few calls, with much work in each, that release it (np.repeat does not).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

_Number = TypeVar("_Number", np.int8, np.float32)
Bytes: TypeAlias = NDArray[np.uint8]
Floats: TypeAlias = NDArray[np.float32]
Rows: TypeAlias = NDArray[np.int8]
Decoder: TypeAlias = Callable[[Bytes, Floats], None]

CHUNK_WEIGHTS = 1 << 18
"""The most weights that a decoder is given at once.

With 1 MiB of output and less than that of everything else it stays in a core's 2 MiB of cache. Half as many weights are
about as fast on one thread (2^16 are slower by a sixth), but two threads then meet twice as often at the interpreter's
lock: together they reach 1.0 to 1.5 times the speed of one instead of 1.3 to 1.9 times.
"""

_BUFFER = 4096
"""How many numbers numpy brings to one type and shape at a time, where the operands of an operation differ in them.

At numpy's own 8192, operands and result do not fit in the nearest cache together: up to a tenth slower.
"""


def decode_in_chunks(decode: Decoder, blocks: Bytes, out: Floats) -> None:
    """Decode any number of blocks, a cache-sized chunk at a time, with numpy's floating-point warnings off."""
    step = CHUNK_WEIGHTS // out.shape[1]
    with np.errstate(all="ignore"):
        np.setbufsize(_BUFFER)  # the end of errstate brings the former size back
        for start in range(0, len(blocks), step):
            decode(blocks[start : start + step], out[start : start + step])


def field(blocks: Bytes, start: int, size: int) -> Bytes:
    """Bytes start … start + size of every block, as a contiguous (n, size) copy."""
    # One item a block, so one inner loop for all.
    return np.ascontiguousarray(blocks[:, start : start + size].view(_item(size))).view(np.uint8)


def halves(blocks: Bytes, start: int) -> Floats:
    """The little-endian half at byte `start` of every block, as float32 (n,)."""
    return blocks[:, start : start + 2].view("<f2")[:, 0].astype(np.float32)


def planes(packed: Bytes, group: int, width: int) -> Bytes:
    """Unpack fields of `width` bits (1, 2 or 4) that ggml stores plane by plane.

    `packed` is contiguous and comes in groups of `group` bytes (8, 16, 32 or 64). Within a group, bits
    width * j … of byte m belong to weight group * j + m. Gives the fields in weight order, uint8, shape
    (groups, 8 // width, group). At most CHUNK_WEIGHTS fields at a call.
    """
    # Items of 32 bytes are what numpy's take copies fastest.
    size = min(group, 32)
    source = packed.reshape(-1).view(_item(size))
    unpacked = np.empty((packed.size // group, 8 // width, group), np.uint8)
    items = unpacked.reshape(-1).view(_item(size))
    np.take(source, _plane_items(group // size, 8 // width)[: items.size], out=items, mode="clip")
    # Eight bytes are shifted as one word: what crosses from one byte into the next is masked away, so that
    # their order in the word is free. (numpy's shifts of single bytes are several times slower.)
    words = unpacked.reshape(-1).view(np.uint64)
    np.right_shift(words, _plane_shifts(group, width)[: words.size], out=words)
    np.bitwise_and(words, np.uint64(((1 << width) - 1) * 0x0101010101010101), out=words)
    return unpacked


@cache
def _plane_items(per_group: int, count: int) -> NDArray[np.intp]:
    """The index that takes each group, of `per_group` items, `count` times in turn."""
    groups = np.arange(CHUNK_WEIGHTS // 8 // count).reshape(-1, 1, per_group)
    index = np.repeat(groups, count, axis=1).reshape(-1)
    index.flags.writeable = False  # threads share it
    return index


@cache
def _item(size: int) -> np.dtype[np.void]:
    """The dtype of `size` bytes that are copied as one."""
    return np.dtype((np.void, size))


@cache
def _plane_shifts(group: int, width: int) -> NDArray[np.uint64]:
    """The shift of each word that `planes` unpacks: full length, for one inner loop."""
    period = np.repeat(np.arange(0, 8, width, dtype=np.uint64), group // 8)
    shifts = np.resize(period, CHUNK_WEIGHTS // 8)
    shifts.flags.writeable = False  # threads share it
    return shifts


def add_high_bits(q: Bytes, high: Bytes, position: int) -> None:
    """Put `high`, small values in weight order, above bit `position` - 1 of `q`, in place.

    Both contiguous; `high` is used up.
    """
    bits = high.reshape(-1).view(np.uint64)
    np.left_shift(bits, np.uint64(position), out=bits)
    words = q.reshape(-1).view(np.uint64)
    np.bitwise_or(words, bits, out=words)


def less(q: Bytes, offset: int) -> NDArray[np.int8]:
    """`q` - `offset` as signed bytes, in the memory of `q`."""
    signed = q.view(np.int8)
    np.subtract(signed, np.int8(offset), out=signed)
    return signed


def scale(out: Floats, d: Floats) -> None:
    """Multiply `out` in place; each scale of `d` covers an equal run of consecutive weights.

    numpy repeats the scales a buffer at a time. For runs of 32 that is as fast as np.repeat to full length, which
    keeps the interpreter's lock meanwhile.
    """
    runs = out.reshape(d.size, -1)
    np.multiply(runs, d.reshape(-1, 1), out=runs)


def subtract(out: Floats, m: Floats) -> None:
    """Subtract in place; each minimum of `m` covers an equal run of consecutive weights."""
    runs = out.reshape(m.size, -1)
    np.subtract(runs, m.reshape(-1, 1), out=runs)


def write_scaled(out: Floats, q: NDArray[np.integer[Any]], d: Floats) -> None:
    """Fill `out` with d * q; `q` is in weight order, each scale covers an equal run of weights."""
    # One np.multiply of q and d would do it too, but is slower by a third where out is not at a multiple of 64 bytes.
    np.copyto(out.reshape(q.shape), q)
    scale(out, d)


def write_rows(out: NDArray[_Number], table: NDArray[_Number], index: NDArray[np.integer[Any]]) -> None:
    """Fill `out`, in order, with the rows of `table` (rows, width) that `index` names (in range)."""
    # take would convert the index itself, no faster. "clip" lets it write into out; the default mode would go through
    # a buffer of the same size.
    places = index.reshape(-1).astype(np.intp, copy=False)
    np.take(table, places, axis=0, out=out.reshape(-1, table.shape[1]), mode="clip")
