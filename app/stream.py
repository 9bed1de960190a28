"""A stream: a long body, made and sent by the reader's threads, in order and a few steps ahead of the client.

A thread takes the next step, makes its chunk, and sends it when its turn comes; another one makes the next chunk
meanwhile. So a window is sent where it was decoded, out of the core's cache, and its memory is used again at once. No
thread waits for a client for longer than a moment: when the client takes no more, the event loop waits for it, and then
sets a thread to work again.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress

from app.reader import Reader
from app.snapshot import Snapshot
from app.steps import Step
from app.wire import Wire

__all__ = ["Stream"]

_MOST_THREADS = 2
_STALL_SECONDS = 2


class Stream:
    """Sends steps over a wire, which it closes in the end.

    Parameters
    ----------
    first
        A step whose chunk is made.
    steps
        Those after it.
    snapshot
        Where they are read from; it must be held until `stop`.
    read_ahead
        Steps made ahead of the one being sent. Together they are all the memory that a stream takes.

    Attributes
    ----------
    sent
        Bytes sent so far.
    ended
        Done when it was stopped and its threads have left: ``sent`` is final then.
    """

    def __init__(
        self, first: Step, steps: Iterator[Step], wire: Wire, reader: Reader, snapshot: Snapshot, read_ahead: int
    ) -> None:
        self.sent = 0
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._steps = steps
        self._wire = wire
        self._reader = reader
        self._snapshot = snapshot
        self._read_ahead = read_ahead
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[None] = self._loop.create_future()
        self._stalled: asyncio.TimerHandle | None = None
        # What follows is guarded by the lock.
        self._lock = threading.Lock()
        self._turn = threading.Condition(self._lock)
        self._queue = deque([first])
        self._threads = 0
        self._decoding = not first.cached
        self._blocked = self._exhausted = self._over = self._stopped = False

    def start(self) -> asyncio.Future[None]:
        """Begin to send; gives a future that is done when everything is sent.

        Its error is ClientLeft where the connection is broken, and otherwise what the reader raised.
        """
        with self._lock:
            self._add_thread()
        return self._done

    def stop(self) -> None:
        """End, whether everything is sent or not; must be called. What is being sent then may still be sent."""
        if self._stopped:
            return
        if self._stalled is not None:
            self._stalled.cancel()
        with self._lock:
            self._over = self._stopped = True
            self._turn.notify_all()
            if self._blocked:
                self._loop.remove_writer(self._wire.fd)
            if self._threads == 0:
                self._close()

    def _close(self) -> None:
        self._queue.clear()
        self._wire.close()
        with suppress(RuntimeError):  # a loop that is closed has nobody left who would want to know
            self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    def _add_thread(self) -> None:
        """Set one more thread to work; under the lock."""
        snapshot = self._snapshot.acquire()  # a thread may come to its work when the response is over
        try:
            self._reader.submit(self._work)
        except BaseException as error:  # the service stops
            snapshot.release()
            self._finish(error)
        else:
            self._threads += 1

    def _work(self) -> None:
        """What a thread does: make a chunk, send it when its turn comes, and again, while there is something to do."""
        again = False
        try:
            while self._send_what_is_left() and not again and (step := self._next()) is not None:
                chunk, cached = self._reader.make(step, self._is_wanted)
                step.chunk, step.cached = chunk, cached
                del chunk
                if self._comes_to_its_turn(step):
                    self._send(step)
                del step
                again = self._reader.is_crowded
        except BaseException as error:
            if not self._over:
                self._finish(error)
        with self._lock:
            self._threads -= 1
            self._turn.notify_all()
            if self._stopped and self._threads == 0:
                self._close()
            elif again and not self._over:
                self._add_thread()  # behind those who wait for a thread
        self._snapshot.release()

    def _is_wanted(self) -> bool:
        return not self._over

    def _next(self) -> Step | None:
        """The next step to make, if one may be made already."""
        with self._lock:
            if self._over:
                return None
            step = next((step for step in self._queue if step.chunk is None and not step.held), None)
            if step is None and len(self._queue) <= self._read_ahead and not self._exhausted:
                step = next(self._steps, None)
                if step is not None:
                    self._queue.append(step)
                else:
                    self._exhausted = True
                    if not self._queue:
                        self._finish(None)
            if step is not None:
                step.held = True
                if self._decoding and self._threads < _MOST_THREADS and not self._reader.is_crowded:
                    self._add_thread()
            return step

    def _comes_to_its_turn(self, step: Step) -> bool:
        """Wait, while another thread has the head of the queue in its hands; whether a step is the head then.

        If it is not, or the client takes none, the step is left in the queue, for any thread to send.
        """
        with self._lock:
            self._decoding = not step.cached
            while self._queue[0] is not step and self._queue[0].held and not self._blocked and not self._over:
                self._turn.wait()
            step.held = self._queue[0] is step and not self._blocked
            return step.held

    def _send_what_is_left(self) -> bool:
        """Send the chunks at the head of the queue that no thread has in its hands; whether the stream goes on."""
        while True:
            with self._lock:
                head = self._queue[0] if self._queue else None
                if self._over or self._blocked or head is None or head.chunk is None or head.held:
                    return not self._over
                head.held = True
            self._send(head)

    def _send(self, head: Step) -> None:
        """Send the chunk at the head of the queue, which is held; it stays there where the client does not take all."""
        while head.chunk is not None:
            left = memoryview(head.chunk)[head.sent :]
            count = self._wire.write(left, lasting=head.cached)
            n_left = len(left) - count
            del left  # its memory is needed for the next window
            head.sent += count
            self.sent += count
            if n_left == 0:
                head.chunk = None
            elif self._reader.is_crowded or not self._wire.is_writable_soon():
                with self._lock:
                    head.held, self._blocked = False, True
                    self._wire.waiting = n_left
                    self._turn.notify_all()
                self._loop.call_soon_threadsafe(self._wait)
                return
        with self._lock:
            self._queue.popleft()
            if self._exhausted and not self._queue:
                self._finish(None)
            self._turn.notify_all()

    def _wait(self) -> None:
        """Wait in the event loop until the client has taken some bytes."""
        if self._over:
            return
        try:
            self._stalled = self._loop.call_later(_STALL_SECONDS, self._let_go)
            self._loop.add_writer(self._wire.fd, self._go_on)
        except Exception as error:  # nobody else would set this stream to work again
            self._finish(error)

    def _go_on(self) -> None:
        self._loop.remove_writer(self._wire.fd)
        if self._stalled is not None:
            self._stalled.cancel()
        self._wire.waiting = 0
        with self._lock:
            self._blocked = False
            self._add_thread()

    def _let_go(self) -> None:
        """Drop the chunks made ahead: a client that takes nothing for a while shall not hold their memory."""
        with self._lock:
            for step in list(self._queue)[1:]:
                if not step.held and not isinstance(step.element, bytes):
                    step.chunk = None

    def _finish(self, error: BaseException | None) -> None:
        self._over = True
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._land, error)

    def _land(self, error: BaseException | None) -> None:
        if self._done.done():
            return
        if error is None:
            self._done.set_result(None)
        else:
            self._done.set_exception(error)
