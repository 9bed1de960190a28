"""The reader: windows from the cache, or read and decoded in a bounded pool of threads."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Any

from numpy.typing import NDArray

from app.buffers import Buffers
from app.cache import WindowCache
from app.plan import Visit, gather
from app.representation import Representation
from app.windows import WINDOW_WEIGHTS, Source

__all__ = ["Piece", "Reader"]

Piece = bytes | memoryview
# A cached piece of no more work than this is made where it is asked for: a thread's hand-over costs more (some 50 us).
_INLINE_ITEMS = 4096
_INLINE_VIEWS = 64
_KEPT_BUFFERS = 16


class Reader:
    """Makes the pieces of bodies.

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

    def piece(
        self, representation: Representation, visit: Visit, start: int, *, scan: bool
    ) -> Piece | asyncio.Future[Piece]:
        """The encoded items of one visit, ``start`` being the position of its first in the answer.

        At once if the window is cached and little is left to do, else as a future; a future that is cancelled before
        a thread has taken it up does no work. ``scan`` is for reads larger than the cache, which change nothing in it.
        """
        source = representation.source
        if source.kind != "native":
            window = self.cache.peek(source.key(visit.window), scan=scan)
            if window is not None and _is_quick(representation, visit):
                return representation.encode(gather(visit, window), start)
        # The job outlives a client that leaves: it holds the files open on its own account.
        snapshot = source.snapshot.acquire()
        try:
            job = self._pool.submit(self._make, representation, visit, start, scan)
        except BaseException:
            snapshot.release()
            raise
        job.add_done_callback(lambda _: snapshot.release())
        return asyncio.wrap_future(job)

    def close(self) -> None:
        """Refuse new work, drop what has not begun, and wait for what has."""
        self._pool.shutdown(cancel_futures=True)

    def _make(self, representation: Representation, visit: Visit, start: int, scan: bool) -> Piece:
        source = representation.source
        if source.kind == "native":  # untouched bytes: the system's page cache has them already
            window = source.read(visit.window, self._buffers)
        else:
            window = self.cache.get(source.key(visit.window), lambda: self._decode(source, visit.window), scan=scan)
        return representation.encode(gather(visit, window), start)

    def _decode(self, source: Source, number: int) -> NDArray[Any]:
        began = perf_counter()
        window = source.read(number, self._buffers)
        if self._on_decoded is not None:
            self._on_decoded(source.type.name, window.nbytes, perf_counter() - began)
        return window


def _is_quick(representation: Representation, visit: Visit) -> bool:
    if len(visit.views) == 1 and representation.copies_nothing:
        view = visit.views[0]
        if view.n_runs == 1 and (view.stride == 1 or view.n_items == 1):
            return True
    return visit.n_items <= _INLINE_ITEMS and len(visit.views) <= _INLINE_VIEWS
