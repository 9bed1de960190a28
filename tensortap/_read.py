"""Reading: the flows that bring what a box of a tensor needs, decode it, and put it in its place."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, Literal, TypeAlias
from urllib.parse import urlencode

import numpy as np
from numpy.typing import NDArray

from decoders import GGMLType, dequantize

from ._cache import Cache
from ._flow import Ask, Compute, Flow, Sink, Together
from ._index import Box
from ._parts import Part, Wanted, cut, rows_text, wanted
from ._segments import Piece
from ._table import TensorLine

__all__ = ["Decode", "OnBytes", "Reader"]

Decode = Literal["auto", "client", "server"]
Floats: TypeAlias = NDArray[np.float32]
OnBytes: TypeAlias = Callable[[int], object]

_LONGEST_QUERY = 2000  # what every proxy takes in a URL, with room for the names
_WORTH_KEEPING = 1 << 20  # bytes of memory; less is made anew in no time
_WORTH_A_THREAD = 1 << 18  # bytes to decode, for which handing over is nothing


@dataclass
class Reader:
    """How a client reads.

    Attributes
    ----------
    decode
        Where weights are decoded.
    part_bytes
        About how many bytes one request of a large read moves.
    cache
        What was moved before; None keeps nothing.
    most
        Requests at a time, and so how many buffers are kept for the next ones.
    """

    decode: Decode
    part_bytes: int
    cache: Cache | None
    most: int
    _idle: deque[NDArray[np.uint8]] = field(init=False)

    def __post_init__(self) -> None:
        self._idle = deque(maxlen=self.most)

    def floats(
        self,
        line: TensorLine,
        version: str,
        box: Box,
        out: Floats,
        on_bytes: OnBytes,
        decode: Decode | None = None,
        job_bytes: int = 0,
    ) -> Flow[None]:
        """Fill ``out``, contiguous and of the box's shape, with the weights of a box; ``version`` is the model's.

        ``on_bytes`` is called with the bytes that were moved, or were here already, as they come.
        ``job_bytes`` are those of all reads that this is one of: the cache is passed by where they do not fit.
        """
        what = wanted(line, box, decode or self.decode)
        parts = cut(line, what, self.part_bytes)
        size = max(job_bytes, what.n_bytes(line))
        first = list(islice(parts, 2))
        if len(first) == 1:
            yield from self._part(line, version, what, first[0], out, on_bytes, size)
        elif first:
            every = chain(first, parts)
            yield Together(self._part(line, version, what, part, out, on_bytes, size) for part in every)

    def size(self, line: TensorLine, box: Box, decode: Decode | None = None) -> int:
        """How many bytes of bodies `floats` moves for a box, where nothing is here yet."""
        return wanted(line, box, decode or self.decode).n_bytes(line)

    def native(self, line: TensorLine, version: str, box: Box, out: NDArray[np.uint8], on_bytes: OnBytes) -> Flow[None]:
        """Fill ``out`` with the stored blocks of a box of whole rows."""
        what = wanted(line, box, "client")
        size = what.n_bytes(line)

        def flows() -> Iterator[Flow[None]]:
            at = 0
            for part in cut(line, what, self.part_bytes):
                yield self._fill(line, version, what, part, out[at : at + part.n_bytes].data, on_bytes, size)
                at += part.n_bytes

        yield Together(flows())

    def _part(
        self, line: TensorLine, version: str, what: Wanted, part: Part, out: Floats, on_bytes: OnBytes, read_bytes: int
    ) -> Flow[None]:
        flat = out.reshape(-1)
        is_float = what.body == "raw" or line.type_id == GGMLType.F32
        if is_float and what.takes_all and sys.byteorder == "little":
            place = flat[part.first : part.stop].view(np.uint8).data
            yield from self._fill(line, version, what, part, place, on_bytes, read_bytes)
            return
        buffer = self._buffer(part.n_bytes)
        staging = buffer[: part.n_bytes]
        try:
            yield from self._fill(line, version, what, part, staging.data, on_bytes, read_bytes)
            if part.n_bytes < _WORTH_A_THREAD:
                _finish(line, what, part, staging, flat)
            else:
                yield Compute(lambda: _finish(line, what, part, staging, flat))
        finally:
            if _WORTH_KEEPING < part.n_bytes <= self.part_bytes:
                self._idle.append(buffer)

    def _fill(
        self,
        line: TensorLine,
        version: str,
        what: Wanted,
        part: Part,
        place: memoryview,
        on_bytes: OnBytes,
        read_bytes: int,
    ) -> Flow[None]:
        """Fill a place with the bytes of a part: from the cache, and what is missing from the service."""
        cache = self.cache
        if not part.intervals or cache is None or not cache.keeps(read_bytes):
            yield self._ask(line, version, what, part, place, on_bytes)
            return
        key = (version, line.data, what.body)

        def kept() -> list[Piece]:
            return [piece for start, stop in part.intervals for piece in cache.cover(key, start, stop, read_bytes)]

        is_slow = cache.is_slow(read_bytes)
        pieces: list[Piece] = (yield Compute(kept)) if is_slow else kept()
        missing: list[tuple[int, int, int]] = []
        at = 0
        for first, last, known in pieces:
            if known is None:
                missing.append((first, last, at))
            else:
                place[at : at + len(known)] = known
                on_bytes(len(known))
            at += last - first
        row_bytes = line.row_bytes if what.body == "native" else line.row_weights * 4
        if sum(last - first for first, last, _ in missing) == part.n_bytes:
            yield self._ask(line, version, what, part, place, on_bytes)
        elif len(missing) > 1 and all(first % row_bytes == last % row_bytes == 0 for first, last, _ in missing):
            rows = np.array([(first // row_bytes, last // row_bytes) for first, last, _ in missing])
            gathered = memoryview(bytearray(sum(last - first for first, last, _ in missing)))
            intervals = tuple((first, last) for first, last, _ in missing)
            yield self._ask(line, version, what, Part(intervals, rows, len(gathered), 0, 0), gathered, on_bytes)
            taken = 0
            for first, last, at in missing:
                place[at : at + last - first] = gathered[taken : taken + last - first]
                taken += last - first
        else:
            for first, last, at in missing:
                sink = Sink(place[at : at + last - first], on_bytes)
                yield Ask(f"{line.data}?format={what.body}", {"If-Match": version}, sink=sink, first=first)

        def keep() -> None:
            for first, last, at in missing:
                cache.insert(key, first, bytes(place[at : at + last - first]), read_bytes)

        if is_slow:
            yield Compute(keep)
        else:
            keep()

    def _ask(
        self, line: TensorLine, version: str, what: Wanted, part: Part, place: memoryview, on_bytes: OnBytes
    ) -> Ask:
        """The request for a part."""
        headers, sink = {"If-Match": version}, Sink(place, on_bytes)
        if len(part.intervals) == 1:
            # A range of the whole body: what lies between can keep it, and it is resumed like any download.
            return Ask(f"{line.data}?format={what.body}", headers, sink=sink, first=part.intervals[0][0])
        picked: dict[str, Any] = {"format": what.body, "rows": rows_text(part.rows)}
        if not part.intervals:
            columns = what.columns
            picked["cols"] = f"{columns.start}:{columns.stop}" + (f":{columns.step}" if columns.step != 1 else "")
        if len(picked["rows"]) <= _LONGEST_QUERY:
            return Ask(f"{line.data}?{urlencode(picked, safe=':,')}", headers, sink=sink)
        return Ask(line.data, headers, json=picked, sink=sink)

    def close(self) -> None:
        """Give memory back; another read takes some again."""
        self._idle.clear()

    def after_fork(self) -> None:
        """In a child: buffers may be in use by threads that are not here."""
        self._idle = deque(maxlen=self.most)

    def _buffer(self, n_bytes: int) -> NDArray[np.uint8]:
        """Memory for a part: fresh memory costs more than the decoding of what goes into it."""
        if not _WORTH_KEEPING < n_bytes <= self.part_bytes:
            return np.empty(n_bytes, np.uint8)
        try:
            return self._idle.pop()
        except IndexError:
            return np.empty(self.part_bytes, np.uint8)


def _finish(line: TensorLine, what: Wanted, part: Part, staging: NDArray[np.uint8], flat: Floats) -> None:
    """Decode the bytes of a part, pick its columns, and put them in their place."""
    if what.takes_all:
        if what.body == "native":
            dequantize(staging, line.type_id, out=flat[part.first : part.stop])
        else:
            flat[part.first : part.stop] = staging.view("<f4")
        return
    moved = dequantize(staging, line.type_id) if what.body == "native" else staging.view("<f4")
    table = moved.reshape(-1, len(what.columns))[:, what.picked]
    first = part.first // len(what.columns) * table.shape[1]
    flat[first : first + table.size] = table.reshape(-1)
