"""The service: what lives as long as the process, behind methods that never block the event loop."""

import asyncio
import itertools
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar

from app.auth import Grant
from app.cache import WindowCache
from app.catalogue import Catalogue, Listed, no_such_model
from app.errors import Problem, Unavailable, exhausted
from app.gate import StreamGate
from app.metrics import Metrics
from app.reader import Reader
from app.settings import Settings
from app.snapshot import Snapshot
from app.threads import Threads
from app.volume import Volume

__all__ = ["Service"]

_T = TypeVar("_T")

_log = logging.getLogger("tensortap")
_TIDY_SECONDS = 10
_TIDIES_A_COUNT = 6  # nobody may ask for the list, and alerts go by how many models there are
_READY_SECONDS = 2
_STUCK_SECONDS = 10.0  # a window takes 2 ms to decode, and a slow share half a second to give
_CLOSE_SECONDS = 1.0  # for work that hangs in the volume; other work ends in milliseconds
# Threads that look for models and open them, and how many requests may wait for one. They share the interpreter with
# the event loop, so there are few; a slow volume makes their queue long.
_VOLUME_THREADS = 8
_WORK_THREADS = 4
_MOST_WAITING = 128
# How long a look at the volume may take before what it told last is good enough, if that is there.
_PATIENCE_SECONDS = 0.1
# What it told longer ago than this is waited for longer: a file that was replaced meanwhile is to be seen.
_KNOWN_SECONDS = 10.0
_LONG_PATIENCE_SECONDS = 2.0
_LONGEST_WAIT_SECONDS = 30.0  # clients give up, and ask again: those who wait must not become more and more


class _Look(Generic[_T]):
    """A look at the volume that is under way, for all who wait for it: when it was asked for, and what ``came`` of it.

    ``begun``: a thread has taken it up; who comes later may not be told by it, where every look must be new.
    ``patience``: seconds after which what was known before will do.
    """

    __slots__ = ("asked", "begun", "came", "patience")

    def __init__(self, threads: Threads, work: Callable[[], _T], patience: float = _PATIENCE_SECONDS) -> None:
        self.patience = patience
        self.begun = False
        self.asked = time.monotonic()

        def look() -> _T:
            self.begun = True
            return work()

        self.came = asyncio.wrap_future(threads.submit(look))
        self.came.add_done_callback(_heard)


class Service:
    """The catalogue, the cache and the reader of one process, and the ways to them that never block the event loop.

    All threads that it ever has are started with it; raises `app.threads.NoThreads` if they cannot be.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.cache = WindowCache(settings.cache_budget)
        self.metrics = Metrics(self.cache) if settings.metrics else None
        on_decoded = None if self.metrics is None else self.metrics.decoded
        self.reader = Reader(self.cache, settings.decode_threads, on_decoded)
        self.gate = StreamGate(settings.max_streams, settings.stream_queue, settings.queue_seconds)
        self.catalogue = Catalogue(
            Volume(settings.root, outside_symlinks=settings.outside_symlinks),
            most_open=settings.open_models,
            recheck_seconds=settings.recheck_seconds,
            on_gone=self.cache.drop,
        )
        self._looks: dict[bytes, _Look[Snapshot]] = {}
        self._volume_threads = Threads(_VOLUME_THREADS, "volume", most_waiting=_MOST_WAITING)
        # Listing a large volume for the first time takes long: it must not keep threads from those who ask for a model.
        self._lister = Threads(1, "list")
        # For what computes longer than the event loop may: views of large headers, posted selections, metrics.
        self.work = Threads(_WORK_THREADS, "work", most_waiting=_MOST_WAITING)
        self._list: _Look[list[Listed]] | None = None
        self._ready: _Look[bool] | None = None
        self._ready_thread = Threads(1, "ready")  # models that take long to open say nothing of the volume

    async def snapshot(self, model_id: bytes, grant: Grant) -> Snapshot:
        """The present snapshot of a model, held for the caller; raises what `Catalogue.snapshot` does.

        A model that ``grant`` does not allow is a missing one, whatever name leads to it and whatever is wrong with it.
        """
        if not grant.may_mean_allowed(model_id):
            raise no_such_model(model_id)
        try:
            snapshot = await self._present(model_id)
        except Problem:
            if grant.globs is not None:
                found = await self._volume_threads.run(self.catalogue.volume.find, model_id)
                if found is not None and not grant.allows(found.model_id):
                    raise no_such_model(model_id) from None
            raise
        if not grant.allows(snapshot.model_id):
            snapshot.release()
            raise no_such_model(model_id)
        return snapshot

    async def models(self, grant: Grant) -> list[Listed]:
        """Every model on the volume that ``grant`` allows; raises what `Catalogue.list` does."""
        # Who comes while a list is made shares the next one: no more than two are ever under way.
        if self._list is None or self._list.begun:
            self._list = _Look(self._lister, self._listed)
        came = self._list.came
        await _ended(came)
        if (error := came.exception()) is not None:
            raise error.with_traceback(None)
        listed = came.result()
        return listed if grant.globs is None else [one for one in listed if grant.allows(one.model_id)]

    async def check_ready(self) -> None:
        """Return if the volume can be listed, and reads of it do not hang.

        A service that has much to do is ready: were it left out for that, its load would be the others', until they are
        left out as well, and then nobody answers what is cached or small.

        Raises
        ------
        Unavailable
            ``volume-error``
        """
        if self._ready is None or self._ready.came.done():  # on a volume that hangs, one look hangs for all
            self._ready = _Look(self._ready_thread, self.catalogue.volume.readable)
        came = self._ready.came
        await asyncio.wait((came,), timeout=_READY_SECONDS)
        if not came.done():
            raise Unavailable("volume-error", f"the volume has not answered for {_READY_SECONDS} s. Is it mounted?")
        if not came.result():
            raise Unavailable("volume-error", "the volume cannot be listed now. Is it mounted?")
        if (seconds := self.reader.stuck_seconds) > _STUCK_SECONDS:
            detail = f"each decoding thread has been at one window for {seconds:.0f} s: reads of the volume hang."
            raise Unavailable("volume-error", detail)

    def look_around(self) -> None:
        """Begin to describe the volume's models, so that the first to list them need not wait as long."""
        self._lister.submit(self._first_look)

    async def tidy(self) -> None:
        """Let go of models that are gone, every now and then, and count those that are there, until it is cancelled."""
        for number in itertools.count(1):
            await asyncio.sleep(_TIDY_SECONDS)
            try:
                await self._lister.run(self.catalogue.forget_gone)
                if self.metrics is not None and number % _TIDIES_A_COUNT == 0:
                    await self._lister.run(self._listed)
            except Exception as error:  # there is a next time
                _log.warning("the volume could not be looked through: %s", error)

    def close(self) -> None:
        """Stop the threads and close the files; a thread that hangs in the volume is left to itself."""
        until = time.monotonic() + _CLOSE_SECONDS
        ended = [
            close(max(0.0, until - time.monotonic()))
            for close in (
                self._lister.close,
                self._ready_thread.close,
                self._volume_threads.close,
                self.work.close,
                self.reader.close,
            )
        ]
        if not all(ended):
            _log.warning("a thread still waits for the volume; the process ends without it")
        self.catalogue.close()

    async def _present(self, model_id: bytes) -> Snapshot:
        """The present snapshot, held for the caller; who comes while another looks at the files waits for that look.

        Where the volume is slow, a model that is open is served as it was when the volume last told, not when it was
        asked for: what is cached needs no volume.
        """
        while (snapshot := self.catalogue.recent(model_id)) is None:
            look = self._looks.get(model_id)
            is_own = look is None
            if look is None:
                try:
                    look = self._begin_look(model_id)
                except Unavailable:  # too many wait
                    if (snapshot := self._latest(model_id)) is None:
                        raise
                    return snapshot
            try:
                if not await self._came(look) and (snapshot := self._latest(model_id)) is not None:
                    return snapshot
                await _ended(look.came)
                if is_own:
                    is_own = False
                    return look.came.result()
            finally:
                if is_own:  # and is not here to take what comes
                    look.came.add_done_callback(_let_go)
            if isinstance(problem := look.came.exception(), Problem):
                raise problem.with_traceback(None)
        return snapshot

    def _begin_look(self, model_id: bytes) -> "_Look[Snapshot]":
        is_known = self.catalogue.age(model_id) < _KNOWN_SECONDS
        patience = _PATIENCE_SECONDS if is_known else _LONG_PATIENCE_SECONDS
        look = self._looks[model_id] = _Look(self._volume_threads, partial(self._opened, model_id), patience)
        look.came.add_done_callback(lambda _: self._looks.pop(model_id))
        return look

    async def _came(self, look: _Look[Any]) -> bool:
        """Whether a look is over, or will be before patience is."""
        if not look.came.done():
            left = look.asked + look.patience - time.monotonic()
            await asyncio.wait((look.came,), timeout=max(0.0, left))
        return look.came.done()

    def _latest(self, model_id: bytes) -> Snapshot | None:
        """The snapshot to serve where the volume is slow; none where every look must be new."""
        return self.catalogue.latest(model_id) if self.settings.recheck_seconds > 0 else None

    def _opened(self, model_id: bytes) -> Snapshot:
        try:
            return self.catalogue.snapshot(model_id)
        finally:
            if self.metrics is not None:
                self.metrics.open_models(self.catalogue.figures()["open_models"])

    def _listed(self) -> list[Listed]:
        models = self.catalogue.list()
        if self.metrics is not None:
            readable = sum(model.problem is None for model in models)
            self.metrics.models(readable, len(models) - readable)
        return models

    def _first_look(self) -> None:
        try:
            models = self._listed()
        except Exception as error:
            _log.warning("first look at the volume %s: %s", self.settings.root, exhausted(error) or error)
        else:
            _log.info("first look at the volume %s: models: %d", self.settings.root, len(models))


async def _ended(came: "asyncio.Future[Any]") -> None:
    """Wait for a look, which is not cancelled with one of those who wait for it; raises Unavailable in the end."""
    await asyncio.wait((came,), timeout=_LONGEST_WAIT_SECONDS)
    if not came.done():
        raise Unavailable(
            "volume-error", f"the volume has not answered for {_LONGEST_WAIT_SECONDS:g} s. Try again in a moment."
        )


def _heard(came: "asyncio.Future[Any]") -> None:
    """An error that nobody waits for any more is nothing to tell."""
    if not came.cancelled():
        came.exception()


def _let_go(came: "asyncio.Future[Snapshot]") -> None:
    if not came.cancelled() and came.exception() is None:
        came.result().release()
