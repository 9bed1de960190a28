"""The reader: windows from the cache, or read and decoded in a bounded pool of threads."""

import asyncio
from collections.abc import Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from time import perf_counter
from typing import Any

from numpy.typing import NDArray

from app.buffers import Buffers
from app.cache import WindowCache
from app.content import Section
from app.plan import Piece, assemble
from app.windows import WINDOW_WEIGHTS, Source

__all__ = ["Chunk", "Reader"]

Chunk = bytes | memoryview
# A piece of cached windows that takes less than about a millisecond is made where it is asked for (measured: 0.8 ms for
# a whole piece of 107 views). A thread takes 50 us to hand over, and milliseconds where two want the interpreter.
_INLINE_VIEWS = 128
_INLINE_CONVERTED = 4096  # items, where each is converted
_KEPT_BUFFERS = 16


class Reader:
    """Makes the chunks of bodies.

    Parameters
    ----------
    cache
        Where decoded windows are kept.
    threads
        How many threads read, decode and convert.
    on_decoded
        Called in such a thread after each window that was read and decoded for the cache, with the name of its tensor's
        type, its bytes after, and the seconds it took.
    """

    def __init__(
        self, cache: WindowCache, threads: int, on_decoded: Callable[[str, int, float], object] | None = None
    ) -> None:
        self.cache = cache
        self._on_decoded = on_decoded
        self._buffers = Buffers(WINDOW_WEIGHTS, _KEPT_BUFFERS)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="decode")

    def chunk(
        self, section: Section, piece: Piece, start: int, *, scan: bool, wanted: Callable[[], bool]
    ) -> Chunk | asyncio.Future[Chunk]:
        """The encoded items of one piece, ``start`` being the position of its first in the section.

        At once if its windows are cached and little is left to do, else as a future; a future that is cancelled before
        a thread has taken it up does no work. ``scan`` is for reads larger than the cache, which change nothing in it.
        ``wanted`` is asked in the thread before each window, since a piece may need many: where it says no, work ends.
        """
        source = section.source
        if _is_quick(section, piece):
            windows = self._cached(source, piece, scan)
            if windows is not None:
                return section.encode(assemble(piece, windows.__getitem__), start)
        # The job outlives a client that leaves: it holds the files open on its own account.
        snapshot = source.snapshot.acquire()
        try:
            job = self._pool.submit(self._make, section, piece, start, scan, wanted)
        except BaseException:
            snapshot.release()
            raise
        job.add_done_callback(lambda _: snapshot.release())
        return asyncio.wrap_future(job)

    def turn(self) -> asyncio.Future[None]:
        """A future that is done when a decoding thread comes to it: behind what was asked for before."""
        return asyncio.wrap_future(self._pool.submit(lambda: None))

    def close(self) -> None:
        """Refuse new work, drop what has not begun, and wait for what has."""
        self._pool.shutdown(cancel_futures=True)

    def _cached(self, source: Source, piece: Piece, scan: bool) -> dict[int, NDArray[Any]] | None:
        """The windows of a piece by number, if the cache has all of them."""
        windows: dict[int, NDArray[Any]] = {}
        for visit in piece.visits:
            window = self.cache.peek(source.key(visit.window), scan=scan)
            if window is None:
                return None
            windows[visit.window] = window
        return windows

    def _make(self, section: Section, piece: Piece, start: int, scan: bool, wanted: Callable[[], bool]) -> Chunk:
        source = section.source

        def window(number: int) -> NDArray[Any]:
            if not wanted():
                raise CancelledError
            if source.kind == "native":  # untouched bytes: the system's page cache has them already
                return source.read(number, self._buffers)
            return self.cache.get(source.key(number), lambda: self._decode(source, number), scan=scan)

        return section.encode(assemble(piece, window), start)

    def _decode(self, source: Source, number: int) -> NDArray[Any]:
        began = perf_counter()
        window = source.read(number, self._buffers)
        if self._on_decoded is not None:
            self._on_decoded(source.type.name, window.nbytes, perf_counter() - began)
        return window


def _is_quick(section: Section, piece: Piece) -> bool:
    if section.source.kind == "native":
        return False
    if not section.copies_nothing and piece.n_items > _INLINE_CONVERTED:
        return False
    return sum(len(visit.views) for visit in piece.visits) <= _INLINE_VIEWS
