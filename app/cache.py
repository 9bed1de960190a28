"""The window cache: decoded windows kept by bytes, decoded once however many ask at the same time.

Kept windows live in two queues, each in order of last use (a segmented LRU). A window enters *probation*; a second
use moves it to *protected*, which may hold four fifths of the budget and hands its least used back to probation.
What must go goes from probation first, so windows used once cannot push out windows used often. A *scan*, a read
that is larger than the whole budget, takes what is there, but neither adds nor promotes anything.

The cache knows nothing of files: a key is any tuple whose first member is the *group* (a snapshot) it belongs to.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

__all__ = ["CacheFigures", "WindowCache"]

Window = NDArray[Any]
Key = tuple[Hashable, ...]
_PROTECTED_SHARE = 4, 5


@dataclass(frozen=True, slots=True)
class CacheFigures:
    """What the cache has done and holds: counts since the start, bytes and windows now."""

    hits: int
    misses: int
    evictions: int
    windows: int
    bytes: int
    budget: int


class WindowCache:
    """Arrays by key, at most ``budget`` bytes of them; every method may be called from any thread.

    An array that the cache hands out is read-only and is never written again: its memory goes back when the last
    reader lets go of it.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self._protected_budget = budget * _PROTECTED_SHARE[0] // _PROTECTED_SHARE[1]
        self._lock = threading.Lock()
        self._probation: OrderedDict[Key, Window] = OrderedDict()
        self._protected: OrderedDict[Key, Window] = OrderedDict()
        self._groups: dict[Hashable, set[Key]] = {}
        self._flights: dict[Key, _Flight] = {}
        self._bytes = self._protected_bytes = 0
        self._hits = self._misses = self._evictions = 0

    def peek(self, key: Key, *, scan: bool = False) -> Window | None:
        """The window if it is here (a hit, and a use), else None, which counts as nothing: never waits."""
        with self._lock:
            return self._use(key, scan)

    def get(self, key: Key, decode: Callable[[], Window], *, scan: bool = False) -> Window:
        """The window, decoded by ``decode`` if it is not here; a thread that comes meanwhile waits for that one.

        An error of ``decode`` reaches everyone who waits for it, and is not kept.
        """
        with self._lock:
            window = self._use(key, scan)
            if window is not None:
                return window
            other = self._flights.get(key)
            if other is None:
                self._misses += 1
                flight = self._flights[key] = _Flight(keep=not scan)
            else:
                self._hits += 1
                other.keep |= not scan
        if other is not None:
            return other.landed.result()
        try:
            window = decode()
            window.flags.writeable = False
        except BaseException as error:
            with self._lock:
                self._flights.pop(key)
            flight.landed.set_exception(error)
            raise
        try:
            with self._lock:
                self._flights.pop(key)
                if flight.keep and not flight.dropped:
                    self._insert(key, window)
        except MemoryError:
            pass  # it is good, and not kept
        finally:
            flight.landed.set_result(window)
        return window

    def drop(self, group: Hashable) -> None:
        """Forget every window of ``group``, also those being decoded now; counts no eviction."""
        with self._lock:
            for key in self._groups.pop(group, ()):
                window = self._probation.pop(key, None)
                if window is None:
                    window = self._protected.pop(key)
                    self._protected_bytes -= window.nbytes
                self._bytes -= window.nbytes
            for key, flight in self._flights.items():
                flight.dropped |= key[0] == group

    def figures(self) -> CacheFigures:
        """The figures at one moment, consistent with each other."""
        with self._lock:
            return CacheFigures(
                self._hits,
                self._misses,
                self._evictions,
                len(self._probation) + len(self._protected),
                self._bytes,
                self.budget,
            )

    def _use(self, key: Key, scan: bool) -> Window | None:
        window = self._protected.get(key)
        if window is not None:
            self._hits += 1
            if not scan:
                self._protected.move_to_end(key)
            return window
        window = self._probation.get(key)
        if window is not None:
            self._hits += 1
            if not scan:
                self._promote(key, window)
        return window

    def _promote(self, key: Key, window: Window) -> None:
        # What may fail for want of memory comes first, here and below: then nothing is changed.
        self._protected[key] = window
        del self._probation[key]
        self._protected_bytes += window.nbytes
        while self._protected_bytes > self._protected_budget:
            demoted, least = next(iter(self._protected.items()))
            self._probation[demoted] = least
            del self._protected[demoted]
            self._protected_bytes -= least.nbytes

    def _insert(self, key: Key, window: Window) -> None:
        if window.nbytes > self.budget:
            return
        while self._bytes + window.nbytes > self.budget:
            if self._probation:
                old, least = self._probation.popitem(last=False)
            else:
                old, least = self._protected.popitem(last=False)
                self._protected_bytes -= least.nbytes
            self._bytes -= least.nbytes
            self._evictions += 1
            keys = self._groups[old[0]]
            keys.remove(old)
            if not keys:
                del self._groups[old[0]]
        keys = self._groups.setdefault(key[0], set())
        try:
            keys.add(key)
            self._probation[key] = window
        except MemoryError:
            keys.discard(key)
            if not keys:
                del self._groups[key[0]]
            raise
        self._bytes += window.nbytes


class _Flight:
    """One decode under way: where its window lands, and whether it may be kept."""

    __slots__ = ("dropped", "keep", "landed")

    def __init__(self, *, keep: bool) -> None:
        self.landed: Future[Window] = Future()
        self.keep = keep
        self.dropped = False
