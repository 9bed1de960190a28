"""Threads: a fixed number of them, all started when they are made, before work that waits in one queue.

Executors start a thread when work comes. Where the system has no more threads that fails at any time later, with the
work queued already or with the request half answered. These fail when the service starts, or never.

They are daemons: one that hangs in a read of a dead volume does not keep the process from ending.
"""

import asyncio
import logging
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, ParamSpec, TypeVar

from app.errors import Unavailable

__all__ = ["NoThreads", "Threads"]

_log = logging.getLogger("tensortap")

_P = ParamSpec("_P")
_T = TypeVar("_T")


class NoThreads(RuntimeError):
    """The system gives no more threads; the text names how many were wanted and what limits them."""


class Threads:
    """``count`` threads that do what is submitted, in order.

    Parameters
    ----------
    name
        The beginning of the threads' names.
    most_waiting
        How much work may wait for a thread; None: any.

    Raises
    ------
    NoThreads
        They cannot all be started; none runs then.
    """

    def __init__(self, count: int, name: str, *, most_waiting: int | None = None) -> None:
        self._name = name
        self._most_waiting = most_waiting
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()  # its methods are atomic
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._got_on: dict[int, float] = {}  # by thread, while it works; single operations on it are atomic
        # Threads know these two only: when these are forgotten without `close`, they end all the same.
        self._end = weakref.finalize(self, _end, self._queue, count)
        self._end.atexit = False
        try:
            for number in range(count):
                thread = threading.Thread(
                    target=_work, args=(self._queue, self._got_on), name=f"{name}_{number}", daemon=True
                )
                thread.start()
                self._threads.append(thread)
        except (RuntimeError, MemoryError) as error:
            self.close(0)
            raise NoThreads(
                f"thread {len(self._threads) + 1} of {count} for {name!r} cannot be started: {error}. "
                "Raise the limit of processes (ulimit -u, or the container's limit of pids), or use fewer threads."
            ) from error

    @property
    def waiting(self) -> int:
        """How much work waits for a thread, cancelled work that no thread has come to included."""
        return self._queue.qsize()

    @property
    def stuck_seconds(self) -> float:
        """For how long no thread has begun or ended any work, or got on with it; 0 where one has none."""
        times = list(self._got_on.values())
        return time.monotonic() - max(times) if len(times) == len(self._threads) else 0.0

    def get_on(self) -> None:
        """Say, in one of the threads, that the work it does has got on; in any other, this does nothing."""
        if (me := threading.get_ident()) in self._got_on:
            self._got_on[me] = time.monotonic()

    def submit(self, work: Callable[[], _T]) -> "Future[_T]":
        """Have a thread do ``work``; gives what comes of it. Work that is cancelled before it has begun is not done.

        Raises
        ------
        Unavailable
            ``overloaded``: too much waits already. ``shutting-down``: the threads are closed.
        """
        if self._closed:
            raise Unavailable("shutting-down", "the service is stopping. Try again in a moment.")
        if self._most_waiting is not None and self._queue.qsize() >= self._most_waiting:
            raise Unavailable(
                "overloaded",
                f"{self._most_waiting} requests wait for the threads of {self._name!r} already: is the volume slow? "
                "Try again in a moment.",
                limit=self._most_waiting,
            )
        job = _Job(work)
        self._queue.put(job)
        return job.future

    async def run(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Call a function in a thread, and wait for it in the event loop; raises what it does, and as `submit`."""
        return await asyncio.wrap_future(self.submit(partial(function, *args, **kwargs)))

    def close(self, seconds: float) -> bool:
        """Refuse new work, cancel what has not begun, and wait for what has; whether it has ended in that time."""
        self._closed = True
        try:
            while True:
                job = self._queue.get_nowait()
                if job is not None:
                    job.future.cancel()
        except Empty:
            pass
        self._end()
        until = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)


class _Job:
    __slots__ = ("_work", "future")

    def __init__(self, work: Callable[[], Any]) -> None:
        self.future: Future[Any] = Future()
        self._work = work

    def do(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self._work()
        except BaseException as error:
            self.future.set_exception(error)
            self = None  # type: ignore[assignment]  # else the error's frames hold the future, which holds the error
        else:
            self.future.set_result(result)


def _work(queue: "SimpleQueue[_Job | None]", got_on: dict[int, float]) -> None:
    me = threading.get_ident()
    while (job := queue.get()) is not None:
        got_on[me] = time.monotonic()
        try:
            job.do()
        except BaseException:  # whatever it is, work that comes later needs this thread
            _log.exception("a thread could not say what came of its work")
        del job, got_on[me]


def _end(queue: "SimpleQueue[_Job | None]", count: int) -> None:
    for _ in range(count):
        queue.put(None)
