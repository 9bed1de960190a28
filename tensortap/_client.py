"""The clients: where the service is, and how to go about it."""

from __future__ import annotations

import asyncio
import functools
import os
import ssl
from collections.abc import Iterator
from types import TracebackType
from typing import Self, TypeVar

import httpx

from ._async import AsyncRunner
from ._flow import Ask, Flow
from ._model import AsyncModel, RemoteModel, opened
from ._progress import Progress
from ._pull import DType, Pulled
from ._settings import Settings
from ._sync import SyncRunner
from ._table import name_of

__all__ = ["AsyncClient", "Client"]

T = TypeVar("T")


@functools.cache
def _trusted() -> ssl.SSLContext:
    """What httpx trusts; reading it takes 50 ms: once for all clients, and an unpickled tensor has its own."""
    return httpx.create_ssl_context()


def _models() -> Flow[list[str]]:
    answer = yield Ask("/v1/models")
    ids: list[str] = answer.read(lambda document: [name_of(line, "id") for line in document["models"]])
    return ids


class Client(Settings):
    """A tensortap service; may be used by many threads, as a context manager or until ``close``.

    Examples
    --------
    ``Client("http://host:8000")["qwen/Qwen2-7B-Q4_K_M"]["blk.0.attn_q.weight"][10:20]`` is ten rows as float32.
    """

    _runner: SyncRunner | None

    def models(self) -> list[str]:
        """The ids of all models on the volume that the API key may read."""
        return self._run(_models())

    def __getitem__(self, model_id: str) -> RemoteModel:
        """A model, as it is now; raises NotFound (a KeyError)."""
        return self._open(model_id, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self.models())

    def __contains__(self, model_id: object) -> bool:
        return model_id in self.models()

    def pull(
        self,
        model_id: str,
        path: str | os.PathLike[str],
        *,
        name: str | None = None,
        exclude: str | None = None,
        dtype: DType = "float32",
        progress: Progress = False,
    ) -> Pulled:
        """Write a whole model to a safetensors file: `RemoteModel.pull` of the model as it is now."""
        return self[model_id].pull(path, name=name, exclude=exclude, dtype=dtype, progress=progress)

    def close(self) -> None:
        """Close the connections; a client that is used again opens new ones."""
        with self._lock:
            runner, self._runner = self._runner, None
        if runner is not None:
            runner.close()
        self._reader.close()
        if self._cache is not None:
            self._cache.close()

    def __del__(self) -> None:
        # Of a client that came with an unpickled tensor, nobody else would close the connections. Whoever the garbage
        # collector interrupts may hold any lock, so none is waited for here.
        if (runner := getattr(self, "_runner", None)) is not None:
            runner.let_go()
        if (cache := getattr(self, "_cache", None)) is not None:
            cache.let_go()

    def _open(self, model_id: str, version: str | None) -> RemoteModel:
        return RemoteModel(self, self._run(opened(model_id, version)))

    def _run(self, flow: Flow[T]) -> T:
        with self._lock:
            if self._runner is None:
                most, retries = self._settings["max_connections"], self._settings["retries"]
                self._runner = SyncRunner(httpx.Client(verify=_trusted(), **self._http_settings), most, retries)
            runner = self._runner
        return runner.run(flow)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class AsyncClient(Settings):
    """The same for asyncio, in one event loop: ``model = await tap["demo"]``, then ``await model["w"][10:20]``."""

    _runner: AsyncRunner | None
    _loop: asyncio.AbstractEventLoop

    async def models(self) -> list[str]:
        """As `Client.models`."""
        return await self._run(_models())

    async def __getitem__(self, model_id: str) -> AsyncModel:
        """A model, as it is now; raises NotFound (a KeyError)."""
        return AsyncModel(self, await self._run(opened(model_id, None)))

    async def pull(
        self,
        model_id: str,
        path: str | os.PathLike[str],
        *,
        name: str | None = None,
        exclude: str | None = None,
        dtype: DType = "float32",
        progress: Progress = False,
    ) -> Pulled:
        """As `Client.pull`."""
        model = await self[model_id]
        return await model.pull(path, name=name, exclude=exclude, dtype=dtype, progress=progress)

    async def close(self) -> None:
        """Close the connections; a client that is used again opens new ones."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.close()
        self._reader.close()
        if self._cache is not None:
            self._cache.close()

    async def _run(self, flow: Flow[T]) -> T:
        loop = asyncio.get_running_loop()
        if self._runner is None:
            most, retries = self._settings["max_connections"], self._settings["retries"]
            self._loop = loop
            self._runner = AsyncRunner(httpx.AsyncClient(verify=_trusted(), **self._http_settings), most, retries)
        if self._loop is not loop:
            raise RuntimeError("an AsyncClient belongs to the event loop that it was first used in: make one for each")
        return await self._runner.run(flow)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()
