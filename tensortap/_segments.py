"""The memory cache: bytes of representations, kept as the intervals in which they came, the least used going first."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Hashable
from typing import TypeAlias

__all__ = ["Piece", "Segments"]

Piece: TypeAlias = "tuple[int, int, memoryview | None]"  # first byte, the one after the last, and what they are

_COST = 256  # bytes that a segment takes besides its own


class Segments:
    """Bytes by key and place, at most ``budget`` of them; every method may be called from any thread.

    A key stands for one body that never changes. Segments of a key never overlap.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self._lock = threading.Lock()
        self._starts: dict[Hashable, list[int]] = {}
        self._kept: OrderedDict[tuple[Hashable, int], bytes] = OrderedDict()
        self._bytes = 0

    @property
    def nbytes(self) -> int:
        """Bytes held, what it takes to hold them included."""
        return self._bytes

    def cover(self, key: Hashable, start: int, stop: int) -> list[Piece]:
        """The interval in pieces, in order: ``(start, stop, bytes)``, with None for what is not here."""
        found: list[Piece] = []
        with self._lock:
            at = start
            starts = self._starts.get(key, [])
            place = max(0, bisect_right(starts, start) - 1)
            while at < stop and place < len(starts) and starts[place] < stop:
                first = starts[place]
                segment = self._kept[key, first]
                last = first + len(segment)
                if last > at:
                    if first > at:
                        found.append((at, first, None))
                        at = first
                    end = min(last, stop)
                    found.append((at, end, memoryview(segment)[at - first : end - first]))
                    self._kept.move_to_end((key, first))
                    at = end
                place += 1
            if at < stop:
                found.append((at, stop, None))
        return found

    def insert(self, key: Hashable, start: int, data: bytes) -> None:
        """Keep some bytes; what is there already of the interval stays, and the rest is kept around it."""
        for first, stop, known in self.cover(key, start, start + len(data)):
            if known is None:
                self._insert(key, first, data if stop - first == len(data) else data[first - start : stop - start])

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._starts.clear()
            self._kept.clear()
            self._bytes = 0

    def after_fork(self) -> None:
        """In a child: begin anew, since a thread that is not here may have been at it."""
        self._lock = threading.Lock()
        self._starts, self._kept, self._bytes = {}, OrderedDict(), 0

    def _insert(self, key: Hashable, start: int, data: bytes) -> None:
        if len(data) + _COST > self.budget:
            return
        with self._lock:
            starts = self._starts.setdefault(key, [])
            place = bisect_right(starts, start)
            before = place and starts[place - 1] + len(self._kept[key, starts[place - 1]]) > start
            if before or (place < len(starts) and starts[place] < start + len(data)):
                return  # another thread was faster
            starts.insert(place, start)
            self._kept[key, start] = data
            self._bytes += len(data) + _COST
            while self._bytes > self.budget:
                (old_key, old_start), old = self._kept.popitem(last=False)
                self._bytes -= len(old) + _COST
                old_starts = self._starts[old_key]
                del old_starts[bisect_right(old_starts, old_start) - 1]
                if not old_starts:
                    del self._starts[old_key]
