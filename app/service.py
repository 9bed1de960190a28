"""The service: what lives as long as the process, behind methods that never block the event loop."""

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor

import anyio.to_thread

from app.cache import WindowCache
from app.catalogue import Catalogue, Listed
from app.errors import Problem
from app.reader import Reader
from app.settings import Settings
from app.snapshot import Snapshot
from app.volume import Volume

__all__ = ["Service"]

_log = logging.getLogger("tensortap")
_TIDY_SECONDS = 10


class Service:
    """The catalogue, the cache and the reader of one process, and the ways to them that never block the event loop."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.cache = WindowCache(settings.cache_budget)
        self.reader = Reader(self.cache, settings.decode_threads)
        self.catalogue = Catalogue(
            Volume(settings.root, outside_symlinks=settings.outside_symlinks),
            most_open=settings.open_models,
            recheck_seconds=settings.recheck_seconds,
            on_gone=self.cache.drop,
        )
        # Listing a large volume for the first time takes long: it must not keep threads from those who ask for a model.
        self._lister = ThreadPoolExecutor(1, thread_name_prefix="list")

    async def snapshot(self, model_id: bytes) -> Snapshot:
        """The present snapshot of a model, held for the caller; raises what `Catalogue.snapshot` does."""
        recent = self.catalogue.recent(model_id)
        if recent is not None:
            return recent
        return await anyio.to_thread.run_sync(self.catalogue.snapshot, model_id)

    async def models(self) -> list[Listed]:
        """Every model on the volume; raises what `Catalogue.list` does."""
        return await asyncio.get_running_loop().run_in_executor(self._lister, self.catalogue.list)

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

    def _first_look(self) -> None:
        try:
            models = self.catalogue.list()
        except Problem as problem:
            _log.warning("first look at the volume: %s", problem)
        else:
            _log.info("first look at the volume: %d models", len(models))
