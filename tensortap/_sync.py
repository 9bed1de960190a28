"""Runs flows with threads, over an httpx.Client."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar
from weakref import WeakSet

import httpx
import tenacity

from ._errors import ServiceError
from ._flow import Answer, Ask, Compute, Effect, Flow, cores
from ._gate import Gate, Slots, Stopped
from ._http import (
    PassingError,
    after_close,
    attempt_headers,
    broken_off,
    check_head,
    check_place,
    check_whole,
    failed,
    failed_to_connect,
    shown_url,
)
from ._retry import Patience

__all__ = ["SyncRunner"]

T = TypeVar("T")

_GRACE_SECONDS = 1.0  # how long an end waits for threads that will see at their next bytes that it is over


class SyncRunner:
    """Runs flows; its methods may be called from any thread.

    Parameters
    ----------
    http
        What sends.
    most
        Requests at a time.
    retries
        Failures in a row that a request may have.
    """

    def __init__(self, http: httpx.Client, most: int, retries: int) -> None:
        self._http = http
        self._most = most
        self._retries = retries
        self._url = shown_url(http.base_url)
        self._base = str(http.base_url).rstrip("/")
        self._threads: WeakSet[threading.Thread] = WeakSet()
        self._sockets: set[socket.socket] = set()  # no weak ones: the garbage collector takes those before `let_go`
        self._cores = threading.Semaphore(cores())
        self._slots = Slots(most)
        http.event_hooks = {"request": [self._check_place]}
        self._is_closed = False
        self._lock = threading.Lock()

    def run(self, flow: Flow[T]) -> T:
        """Run a flow to its end, and give its result."""
        return self._run(flow, Gate())

    def close(self) -> None:
        """Close the connections. What waits for an answer in another thread gets a ConnectionFailed."""
        with self._lock:
            self._is_closed = True
            sockets, threads = list(self._sockets), list(self._threads)
        self._slots.open()
        for one in sockets:
            _wake(one)
        self._http.close()
        _join(threads)

    def let_go(self) -> None:
        """End the connections, and neither wait for anybody nor for any lock: for the garbage collector."""
        self._is_closed = True
        for one in tuple(self._sockets):
            _wake(one)
            one.close()

    def _run(self, flow: Flow[T], gate: Gate) -> T:
        result: Any = None
        error: Exception | None = None
        try:
            while True:
                try:
                    with gate:
                        effect = flow.send(result) if error is None else flow.throw(error)
                except StopIteration as end:
                    value: T = end.value
                    return value
                result = error = None
                try:
                    result = self._do(effect, gate)
                except Exception as raised:
                    error = raised
        finally:
            flow.close()

    def _do(self, effect: Effect, gate: Gate) -> Any:
        if isinstance(effect, Ask):
            return self._ask(effect, gate)
        if isinstance(effect, Compute):
            with self._cores, gate:
                return effect.work()
        return self._together(effect.flows)

    def _together(self, flows: Iterable[Flow[None]]) -> None:
        """Run flows in threads, a few at a time; after it, none of them touches memory, also where one has failed.

        The threads are daemons of this read alone: they may wait for a stalled server longer than the read lasts, and
        neither the next read nor the end of the program waits for them.
        """
        gate, ends, coming = Gate(), SimpleQueue[BaseException | None](), _Shared(flows)
        threads: list[threading.Thread] = []
        try:
            while len(threads) < self._most and (flow := coming.take()) is not None:
                thread = threading.Thread(target=self._work, args=(flow, coming, gate, ends), daemon=True)
                thread.name = f"tensortap-{len(threads)}"
                with self._lock:
                    self._threads.add(thread)
                thread.start()
                threads.append(thread)
            for _ in threads:
                error = ends.get()
                if error is not None:
                    raise error
        except BaseException:
            gate.close()
            self._slots.give_all(gate)  # what is stalled would keep the next read from them
            raise
        finally:
            _join(threads)

    def _work(
        self, flow: Flow[None] | None, coming: _Shared, gate: Gate, ends: SimpleQueue[BaseException | None]
    ) -> None:
        """What a thread does: one flow after the other."""
        try:
            while flow is not None:
                self._run(flow, gate)
                with gate:
                    flow = coming.take()
        except BaseException as error:
            ends.put(error)
        else:
            ends.put(None)

    def _ask(self, ask: Ask, gate: Gate) -> Answer:
        patience = Patience(ask, self._retries)
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(PassingError),
            stop=patience.stop,
            wait=patience.wait,
            sleep=tenacity.sleep_using_event(gate.closed),
            reraise=True,
        )
        try:
            return retrying(self._bounded, ask, gate)
        except PassingError as passing:
            raise passing.error from passing.__cause__

    def _check_place(self, request: httpx.Request) -> None:
        check_place(self._http.base_url, request.url)

    def _bounded(self, ask: Ask, gate: Gate) -> Answer:
        """An attempt, when there is room for it; it waits for no other one, and so ends."""
        self._slots.take(gate)
        try:
            return self._attempt(ask, gate)
        finally:
            self._slots.give(gate)

    def _attempt(self, ask: Ask, gate: Gate) -> Answer:
        if gate.closed.is_set():
            raise Stopped
        url = self._url + ask.path
        if self._is_closed:
            raise after_close(url)
        headers = attempt_headers(ask)
        request = self._http.build_request(
            "GET" if ask.json is None else "POST",
            self._base + ask.path,
            headers=headers,
            json=ask.json,
            extensions={"trace": self._trace},
        )
        try:
            response = self._http.send(request, stream=True, follow_redirects=ask.json is None)
        except (httpx.TransportError, httpx.TooManyRedirects) as error:
            raise failed_to_connect(url, error) from error
        except RuntimeError as error:
            raise (after_close(url) if self._http.is_closed else error) from error
        try:
            if not check_head(ask, url, response):
                raise failed(response, url, response.read())
            if ask.sink is None:
                return Answer(response.status_code, response.headers, response.read(), url)
            for chunk in response.iter_raw():
                with gate:
                    ask.sink.take(chunk)
        except httpx.TransportError as error:
            raise broken_off(ask, url, error) from error
        except httpx.DecodingError as error:
            raise ServiceError(f"the answer of {url} cannot be read: {error}", url=url) from error
        finally:
            response.close()
        check_whole(ask, url)
        return Answer(response.status_code, response.headers, b"", url)

    def _trace(self, event: str, info: dict[str, Any]) -> None:
        """Called by httpcore: keeps the sockets in view, for `close`."""
        if event in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            one = info["return_value"].get_extra_info("socket")
            with self._lock:
                self._sockets = {other for other in self._sockets if other.fileno() >= 0} | {one}
                is_closed = self._is_closed
            if is_closed:
                _wake(one)


class _Shared:
    """Flows that are taken one by one, by any thread."""

    def __init__(self, flows: Iterable[Flow[None]]) -> None:
        self._flows: Iterator[Flow[None]] = iter(flows)
        self._lock = threading.Lock()

    def take(self) -> Flow[None] | None:
        """The next; None after the last."""
        with self._lock:
            return next(self._flows, None)


def _wake(one: socket.socket) -> None:
    """End a connection under a thread that waits for it. Closing it would leave the thread waiting."""
    with suppress(OSError):  # it is closed already
        # socket's own method: that of an SSLSocket takes away what the thread is reading from.
        socket.socket.shutdown(one, socket.SHUT_RDWR)


def _join(threads: Iterable[threading.Thread]) -> None:
    end = time.monotonic() + _GRACE_SECONDS
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
