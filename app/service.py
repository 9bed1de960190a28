"""The service: what lives as long as the process, behind methods that never block the event loop."""

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor

import anyio.to_thread

from app.auth import Grant
from app.cache import WindowCache
from app.catalogue import Catalogue, Listed, no_such_model
from app.errors import Problem, Unavailable
from app.gate import StreamGate
from app.metrics import Metrics
from app.reader import Reader
from app.settings import Settings
from app.snapshot import Snapshot
from app.volume import Volume

__all__ = ["Service"]

_log = logging.getLogger("tensortap")
_TIDY_SECONDS = 10
_READY_SECONDS = 2


class Service:
    """The catalogue, the cache and the reader of one process, and the ways to them that never block the event loop."""

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
        self._checks: dict[bytes, asyncio.Future[None]] = {}
        # Listing a large volume for the first time takes long: it must not keep threads from those who ask for a model.
        self._lister = ThreadPoolExecutor(1, thread_name_prefix="list")

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
                found = await anyio.to_thread.run_sync(self.catalogue.volume.find, model_id)
                if found is not None and not grant.allows(found.model_id):
                    raise no_such_model(model_id) from None
            raise
        if not grant.allows(snapshot.model_id):
            snapshot.release()
            raise no_such_model(model_id)
        return snapshot

    async def models(self, grant: Grant) -> list[Listed]:
        """Every model on the volume that ``grant`` allows; raises what `Catalogue.list` does."""
        listed = await asyncio.get_running_loop().run_in_executor(self._lister, self._listed)
        return listed if grant.globs is None else [one for one in listed if grant.allows(one.model_id)]

    async def check_ready(self) -> None:
        """Return if the volume can be listed and the decoding threads take work.

        Raises
        ------
        Unavailable
            ``volume-error`` or ``overloaded``.
        """
        if not await anyio.to_thread.run_sync(self.catalogue.volume.readable):
            raise Unavailable("volume-error", "the volume cannot be listed now. Is it mounted?")
        try:
            async with asyncio.timeout(_READY_SECONDS):
                await self.reader.turn()
        except TimeoutError:
            detail = f"no decoding thread was free for {_READY_SECONDS} s. Try again in a moment."
            raise Unavailable("overloaded", detail) from None

    def look_around(self) -> None:
        """Begin to describe the volume's models, so that the first to list them need not wait as long."""
        self._lister.submit(self._first_look)

    async def tidy(self) -> None:
        """Let go of models that are gone from the volume, every now and then, for as long as the service runs."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_TIDY_SECONDS)
            await loop.run_in_executor(self._lister, self.catalogue.forget_gone)

    def close(self) -> None:
        """Stop the threads and close the files."""
        self._lister.shutdown(cancel_futures=True)
        self.reader.close()
        self.catalogue.close()

    async def _present(self, model_id: bytes) -> Snapshot:
        """The present snapshot, held for the caller; who comes while another checks the files waits for that one."""
        while (snapshot := self.catalogue.recent(model_id)) is None:
            check = self._checks.get(model_id)
            if check is None:
                return await self._check(model_id)
            await asyncio.wait((check,))  # not cancelled with this one of those who wait for it
            if (problem := check.exception()) is not None:
                raise problem.with_traceback(None)
        return snapshot

    async def _check(self, model_id: bytes) -> Snapshot:
        check = self._checks[model_id] = asyncio.get_running_loop().create_future()
        try:
            return await anyio.to_thread.run_sync(self._opened, model_id)
        except Problem as problem:
            check.set_exception(problem)
            check.exception()  # it may be that nobody waits for it
            raise
        finally:
            del self._checks[model_id]
            if not check.done():
                check.set_result(None)

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
        except Problem as problem:
            _log.warning("first look at the volume %s: %s", self.settings.root, problem)
        else:
            _log.info("first look at the volume %s: models: %d", self.settings.root, len(models))
