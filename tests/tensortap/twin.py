"""AsyncClient with the face of Client, so that one test is of both."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, Self

from tensortap import AsyncClient, AsyncMetadata, AsyncModel, AsyncTensor, Client

__all__ = ["CLIENTS", "Connect", "Twin"]

Connect = Callable[..., Any]


class Twin:
    """An AsyncClient in an event loop of its own; each method waits for what the coroutine gives."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        self._runner = asyncio.Runner()
        self._client = AsyncClient(*args, **settings)

    def models(self) -> list[str]:
        return self._runner.run(self._client.models())

    def __getitem__(self, model_id: str) -> "_Model":
        async def opened() -> AsyncModel:
            return await self._client[model_id]

        return _Model(self._runner, self._runner.run(opened()))

    def close(self) -> None:
        self._runner.run(self._client.close())
        self._runner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


class _Model:
    def __init__(self, runner: asyncio.Runner, model: AsyncModel) -> None:
        self._runner = runner
        self._model = model
        self.id, self.version, self.summary = model.id, model.version, model.summary
        self.metadata = _Metadata(runner, model.metadata)

    def __getitem__(self, name: str) -> "_Tensor":
        return _Tensor(self._runner, self._model[name])

    def keys(self) -> list[str]:
        return self._model.keys()


class _Metadata:
    def __init__(self, runner: asyncio.Runner, metadata: AsyncMetadata) -> None:
        self._runner = runner
        self._metadata = metadata

    def __getitem__(self, key: str) -> Any:
        return self._runner.run(self._metadata.__getitem__(key))

    def __iter__(self) -> Iterator[str]:
        return iter(self._runner.run(self._metadata.keys()))


class _Tensor:
    def __init__(self, runner: asyncio.Runner, tensor: AsyncTensor) -> None:
        self._runner = runner
        self._tensor = tensor
        self.shape, self.readable = tensor.shape, tensor.readable

    def __getitem__(self, index: Any) -> Any:
        return self._runner.run(self._tensor.__getitem__(index))

    def read(self, *args: Any, **options: Any) -> Any:
        return self._runner.run(self._tensor.read(*args, **options))

    def native(self, *args: Any) -> Any:
        return self._runner.run(self._tensor.native(*args))

    def save(self, *args: Any, **options: Any) -> None:
        self._runner.run(self._tensor.save(*args, **options))

    def iter_rows(self, n: int = 4096) -> list[Any]:
        async def rows() -> list[Any]:
            return [some async for some in self._tensor.iter_rows(n)]

        return self._runner.run(rows())


CLIENTS: list[Connect] = [Client, Twin]
