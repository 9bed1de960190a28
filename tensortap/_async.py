"""Runs flows with tasks, over an httpx.AsyncClient."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, TypeVar

import httpx
import tenacity

from ._errors import ServiceError
from ._flow import Answer, Ask, Compute, Effect, Flow, cores
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

__all__ = ["AsyncRunner"]

T = TypeVar("T")


class AsyncRunner:
    """Runs flows in the event loop that it is used in; parameters as those of `tensortap._sync.SyncRunner`."""

    def __init__(self, http: httpx.AsyncClient, most: int, retries: int) -> None:
        self._http = http
        self._most = most
        self._retries = retries
        self._url = shown_url(http.base_url)
        self._base = str(http.base_url).rstrip("/")
        self._cores = asyncio.Semaphore(cores())
        self._slots = asyncio.Semaphore(most)
        http.event_hooks = {"request": [self._check_place]}

    async def run(self, flow: Flow[T]) -> T:
        """Run a flow to its end, and give its result."""
        result: Any = None
        error: Exception | None = None
        try:
            while True:
                try:
                    effect = flow.send(result) if error is None else flow.throw(error)
                except StopIteration as end:
                    value: T = end.value
                    return value
                result = error = None
                try:
                    result = await self._do(effect)
                except Exception as raised:
                    error = raised
        finally:
            flow.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def _do(self, effect: Effect) -> Any:
        if isinstance(effect, Ask):
            return await self._ask(effect)
        if isinstance(effect, Compute):
            async with self._cores:
                return await _in_thread(effect)
        return await self._together(effect.flows)

    async def _together(self, flows: Iterable[Flow[None]]) -> None:
        """Run flows in tasks, a few at a time; returns when none runs any more, also where one has failed."""
        running: set[asyncio.Task[None]] = set()
        try:
            for flow in flows:
                if len(running) == self._most:
                    running = await self._landed(running)
                running.add(asyncio.create_task(self.run(flow)))
            while running:
                running = await self._landed(running)
        except BaseException:
            for task in running:
                task.cancel()
            await _ended(running)  # they write into memory that is the caller's again after this
            raise

    async def _landed(self, running: set[asyncio.Task[None]]) -> set[asyncio.Task[None]]:
        done, left = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for one in done:
            one.result()
        return left

    async def _ask(self, ask: Ask) -> Answer:
        patience = Patience(ask, self._retries)
        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type(PassingError),
            stop=patience.stop,
            wait=patience.wait,
            reraise=True,
        )
        try:
            return await retrying(self._bounded, ask)
        except PassingError as passing:
            raise passing.error from passing.__cause__

    async def _check_place(self, request: httpx.Request) -> None:
        check_place(self._http.base_url, request.url)

    async def _bounded(self, ask: Ask) -> Answer:
        """An attempt, when there is room for it; it waits for no other one, and so ends."""
        async with self._slots:
            return await self._attempt(ask)

    async def _attempt(self, ask: Ask) -> Answer:
        url = self._url + ask.path
        request = self._http.build_request(
            "GET" if ask.json is None else "POST", self._base + ask.path, headers=attempt_headers(ask), json=ask.json
        )
        try:
            response = await self._http.send(request, stream=True, follow_redirects=ask.json is None)
        except (httpx.TransportError, httpx.TooManyRedirects) as error:
            raise failed_to_connect(url, error) from error
        except RuntimeError as error:
            raise (after_close(url) if self._http.is_closed else error) from error
        try:
            if not check_head(ask, url, response):
                raise failed(response, url, await response.aread())
            if ask.sink is None:
                return Answer(response.status_code, response.headers, await response.aread(), url)
            async for chunk in response.aiter_raw():
                ask.sink.take(chunk)
        except httpx.TransportError as error:
            raise broken_off(ask, url, error) from error
        except httpx.DecodingError as error:
            raise ServiceError(f"the answer of {url} cannot be read: {error}", url=url) from error
        finally:
            await response.aclose()
        check_whole(ask, url)
        return Answer(response.status_code, response.headers, b"", url)


async def _in_thread(effect: Compute) -> Any:
    """Compute in a thread, and do not leave before it has: it may write into memory that is given back then."""
    work = asyncio.create_task(asyncio.to_thread(effect.work))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await _ended({work})
        raise


async def _ended(running: set[asyncio.Task[Any]]) -> None:
    """Wait until none runs any more, however often this is cancelled meanwhile."""
    while any(not one.done() for one in running):
        try:
            await asyncio.wait(running)
        except asyncio.CancelledError:
            continue
    for one in running:
        if not one.cancelled():
            one.exception()  # seen: asyncio would log an error that nobody has asked for
