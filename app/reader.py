"""The reader: windows from the cache, or read and decoded in a bounded pool of threads."""

import asyncio
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from time import perf_counter
from typing import Any

from numpy.typing import NDArray

from app.buffers import Buffers
from app.cache import WindowCache
from app.content import Section
from app.errors import Unavailable
from app.plan import assemble
from app.steps import Chunk, Step
from app.threads import Threads
from app.windows import WINDOW_WEIGHTS, Source

__all__ = ["Reader"]

# A piece of cached windows that takes less than about a millisecond is made where it is asked for (measured: 0.8 ms for
# a whole piece of 107 views). A thread takes 50 us to hand over, and milliseconds where two want the interpreter.
_INLINE_VIEWS = 128
_INLINE_CONVERTED = 4096  # items, where each is converted
_KEPT_BUFFERS = 16
# Small answers of windows that are not cached may wait for a thread in this number. Streams are bounded by their gate.
_MOST_WAITING = 256


class Reader:
    """Makes the chunks of bodies.

    Parameters
    ----------
    cache
        Where decoded windows are kept.
    threads
        How many threads read, decode and convert; raises `app.threads.NoThreads` if they cannot be started.
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
        self._threads = Threads(threads, "decode")

    @property
    def is_crowded(self) -> bool:
        """Whether work waits for a thread."""
        return self._threads.waiting > 0

    def submit(self, work: Callable[[], object]) -> Future[Any]:
        """Have a thread do some work, which should end soon where the reader is crowded, and may come again."""
        return self._threads.submit(work)

    def begin(self, step: Step, wanted: Callable[[], bool]) -> Chunk | asyncio.Future[Chunk]:
        """The chunk of a step: at once if its windows are cached and little is left to do, else as a future.

        A future that is cancelled before a thread has taken it up does no work. ``wanted`` is asked in the thread
        before each window, since a piece may need many: where it says no, work ends.

        Raises
        ------
        Unavailable
            ``overloaded``: too much waits for a thread already.
        """
        if isinstance(step.element, bytes):
            return step.element
        chunk = self.quick(step.element, step)
        if chunk is not None:
            step.cached = True
            return chunk
        if self._threads.waiting >= _MOST_WAITING:
            raise Unavailable(
                "overloaded",
                f"{_MOST_WAITING} answers wait for a thread already: is the volume slow? Try again in a moment.",
                limit=_MOST_WAITING,
            )
        # The job outlives a client that leaves: it holds the files open on its own account.
        snapshot = step.element.source.snapshot.acquire()
        try:
            job: Future[Chunk] = self.submit(lambda: self.make(step, wanted)[0])
        except BaseException:
            snapshot.release()
            raise
        job.add_done_callback(lambda _: snapshot.release())
        return asyncio.wrap_future(job)

    def quick(self, section: Section, step: Step) -> Chunk | None:
        """The chunk of a step of a section, if its windows are all cached and little is left to do; else None."""
        if section.source.kind == "native":
            return None
        if not section.copies_nothing and step.piece.n_items > _INLINE_CONVERTED:
            return None
        if sum(len(visit.views) for visit in step.piece.visits) > _INLINE_VIEWS:
            return None
        windows: dict[int, NDArray[Any]] = {}
        for visit in step.piece.visits:
            window = self.cache.peek(section.source.key(visit.window), scan=step.scan)
            if window is None:
                return None
            windows[visit.window] = window
        return _cut(section.encode(assemble(step.piece, windows.__getitem__), step.start), step)

    def make(self, step: Step, wanted: Callable[[], bool]) -> tuple[Chunk, bool]:
        """The chunk of a step, made in this thread, and whether its windows were cached.

        Raises
        ------
        Unavailable
            The file cannot be read, or was changed.
        CancelledError
            It is not wanted any more.
        """
        self._threads.get_on()  # a stream may keep its thread for long, with cached windows only
        section = step.element
        if isinstance(section, bytes):
            return section, True
        chunk = self.quick(section, step)
        if chunk is not None:
            return chunk, True
        source = section.source

        def window(number: int) -> NDArray[Any]:
            if not wanted():
                raise CancelledError
            self._threads.get_on()
            if source.kind == "native":  # untouched bytes: the system's page cache has them already
                return source.read(number, self._buffers)
            return self.cache.get(source.key(number), lambda: self._decode(source, number), scan=step.scan)

        return _cut(section.encode(assemble(step.piece, window), step.start), step), False

    @property
    def stuck_seconds(self) -> float:
        """For how long every thread has been at one window; 0 where one has nothing to do."""
        return self._threads.stuck_seconds

    def close(self, seconds: float = 60.0) -> bool:
        """Refuse new work, drop what has not begun, and wait for what has; whether it has ended in that time."""
        return self._threads.close(seconds)

    def _decode(self, source: Source, number: int) -> NDArray[Any]:
        began = perf_counter()
        window = source.read(number, self._buffers)
        if self._on_decoded is not None:
            self._on_decoded(source.type.name, window.nbytes, perf_counter() - began)
        return window


def _cut(chunk: Chunk, step: Step) -> Chunk:
    return chunk[step.cut] if step.cut else chunk
