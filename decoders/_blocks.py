"""The steps that the decoders share.

A decoder is given `blocks`, uint8 of shape (n, block_bytes), and fills `out`, float32 of shape
(n, block_weights), both contiguous. numpy spends about 10 ns on each inner loop, as much as on 32
weights themselves. So all steps here work on one long contiguous run: fields are first copied together,
bits are moved eight bytes at a time, and scales are repeated to full length rather than broadcast.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Bytes: TypeAlias = NDArray[np.uint8]
Floats: TypeAlias = NDArray[np.float32]
Decoder: TypeAlias = Callable[[Bytes, Floats], None]

CHUNK_WEIGHTS = 1 << 17
"""The most weights that a decoder is given at once.

With 512 KiB of output, as much of scratch and less of input it stays in a core's 2 MiB of cache. Measured for all
formats: 2^15 is slower by up to a half (the fixed cost of some 20 numpy calls), 2^18 gains nothing.
"""


def decode_in_chunks(decode: Decoder, blocks: Bytes, out: Floats) -> None:
    """Decode any number of blocks, a cache-sized chunk at a time, with numpy's floating-point warnings off."""
    step = CHUNK_WEIGHTS // out.shape[1]
    with np.errstate(all="ignore"):
        for start in range(0, len(blocks), step):
            decode(blocks[start : start + step], out[start : start + step])


def field(blocks: Bytes, start: int, size: int) -> Bytes:
    """Bytes start … start + size of every block, as a contiguous (n, size) copy."""
    # One item a block, so one inner loop for all.
    rows = blocks[:, start : start + size].view(np.dtype((np.void, size)))
    return np.ascontiguousarray(rows).view(np.uint8)


def halves(blocks: Bytes, start: int) -> Floats:
    """The little-endian half at byte `start` of every block, as float32 (n,)."""
    return blocks[:, start : start + 2].view("<f2")[:, 0].astype(np.float32)


def planes(packed: Bytes, group: int, width: int) -> Bytes:
    """Unpack fields of `width` bits (1, 2 or 4) that ggml stores plane by plane.

    `packed` is contiguous and comes in groups of `group` bytes (a multiple of 8). Within a group, bits
    width * j … of byte m belong to weight group * j + m. Gives the fields in weight order, uint8, shape
    (groups, 8 // width, group). At most CHUNK_WEIGHTS fields at a call.
    """
    item = np.dtype((np.void, group))  # a group is copied as one item
    unpacked = np.empty((packed.size // group, 8 // width, group), np.uint8)
    np.copyto(unpacked.view(item)[..., 0], packed.reshape(-1).view(item)[:, None])
    # Eight bytes are shifted as one word: what crosses from one byte into the next is masked away, so that
    # their order in the word is free. (numpy's shifts of single bytes are several times slower.)
    words = unpacked.reshape(-1).view(np.uint64)
    np.right_shift(words, _plane_shifts(group, width)[: words.size], out=words)
    np.bitwise_and(words, np.uint64(((1 << width) - 1) * 0x0101010101010101), out=words)
    return unpacked


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
    """Multiply `out` in place; each scale of `d` covers an equal run of consecutive weights."""
    flat = out.reshape(-1)
    np.multiply(flat, np.repeat(d.reshape(-1), flat.size // d.size), out=flat)


def subtract(out: Floats, m: Floats) -> None:
    """Subtract in place; each minimum of `m` covers an equal run of consecutive weights."""
    flat = out.reshape(-1)
    np.subtract(flat, np.repeat(m.reshape(-1), flat.size // m.size), out=flat)


def write_scaled(out: Floats, q: NDArray[np.integer[Any]], d: Floats) -> None:
    """Fill `out` with d * q; `q` is in weight order, each scale covers an equal run of weights."""
    np.copyto(out.reshape(-1), q.reshape(-1))
    scale(out, d)


def write_rows(out: Floats, table: Floats, index: NDArray[np.intp]) -> None:
    """Fill `out`, in order, with the rows of `table` (rows, width) that `index` names (in range)."""
    # "clip" lets numpy write into out; the default mode would go through a buffer of its size.
    np.take(table, index.reshape(-1), axis=0, out=out.reshape(-1, table.shape[1]), mode="clip")
