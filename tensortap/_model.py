"""Remote models: a mapping from names to remote tensors, all of one version of the model."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Iterator, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from ._errors import ModelChanged, NotFound, ServiceError
from ._flow import Ask, Flow
from ._metadata import AsyncMetadata, Metadata
from ._progress import Progress
from ._pull import DType, Pulled, pulled
from ._read import Reader
from ._table import TensorLine, name_of
from ._tensor import AsyncTensor, RemoteTensor

if TYPE_CHECKING:
    from ._client import AsyncClient, Client

__all__ = ["AsyncModel", "RemoteModel", "model_path", "opened"]

T = TypeVar("T")

VERSION = "X-Model-ETag"
_TRIES = 5
# Parts of an id that a URL would take for something else.
_ALONE = {b"-": "%2D", b".": "%2E", b"..": "%2E%2E"}


class Opened:
    """What the service says of a model: its summary, its tensor table, and which version of it they are of."""

    def __init__(self, summary: Mapping[str, Any], version: str, lines: list[TensorLine]) -> None:
        self.summary = summary
        self.version = version
        self.lines = {line.name: line for line in reversed(lines)}  # of a name that is given twice, the first
        self.lines = dict(reversed(self.lines.items()))


def model_path(model_id: str) -> str:
    """The path of a model by its id; surrogate escapes stand for bytes that are no UTF-8."""
    if not isinstance(model_id, str):
        raise TypeError(f"a model id is text, not {type(model_id).__name__}")
    parts = model_id.encode("utf-8", "surrogateescape").split(b"/")
    return "/v1/models/" + "/".join(_ALONE.get(part) or quote(part, safe="") for part in parts)


def opened(model_id: str, version: str | None) -> Flow[Opened]:
    """Look at a model; if a version is given, only at that one."""
    for _ in range(_TRIES):
        try:
            return (yield from _opened(model_id, version))
        except ModelChanged as error:
            if version is not None:
                raise
            changed = error  # between the summary and the last page of the table: look again
    raise changed


def _opened(model_id: str, version: str | None) -> Flow[Opened]:
    wanted = {} if version is None else {"If-Match": version}
    answer = yield Ask(model_path(model_id), wanted)
    found = answer.headers.get(VERSION)
    if found is None:
        raise ServiceError("the service says no version of the model (X-Model-ETag): is it an older one?")
    headers = {"If-Match": found}
    summary, byte_orders, path = answer.read(_summary)
    lines: list[TensorLine] = []
    while path is not None:
        page = yield Ask(path, headers)
        more, path = page.read(lambda document: _page(document, byte_orders))
        lines += more
    return Opened(summary, found, lines)


def _summary(document: Any) -> tuple[dict[str, Any], tuple[str, ...], str]:
    orders = tuple(str(file["byte_order"]) for file in document["files"])
    name_of(document, "id")
    return dict(document), orders, str(document["links"]["tensors"])


def _page(document: Any, byte_orders: tuple[str, ...]) -> tuple[list[TensorLine], str | None]:
    lines = [TensorLine.of(line, byte_orders) for line in document["tensors"]]
    return lines, str(document["next"]) if lines and document.get("next") is not None else None


class _Model:
    """What both kinds of model have: all that its summary and its tensor table say.

    Attributes
    ----------
    id
        The model id.
    version
        A text that stands for the content: everything is read from this version, or not at all.
    """

    def __init__(self, client: Any, found: Opened) -> None:
        self._client = client
        self._opened = found
        self.id = name_of(found.summary, "id")
        self.version = found.version

    @property
    def summary(self) -> Mapping[str, Any]:
        """The service's summary: architecture, name, parameters, bytes, files, types, warnings."""
        return self._opened.summary

    @property
    def nbytes(self) -> int:
        """Bytes of its files."""
        return int(self.summary["bytes"])

    @property
    def parameters(self) -> int:
        """Weights of all tensors."""
        return int(self.summary["parameters"])

    @property
    def _reader(self) -> Reader:
        reader: Reader = self._client._reader
        return reader

    def _pulled(
        self,
        path: str | os.PathLike[str],
        name: str | None,
        exclude: str | None,
        dtype: DType,
        progress: Progress,
    ) -> Flow[Pulled]:
        href = str(self.summary["links"]["safetensors"])
        return pulled(href, self.version, path, name, exclude, dtype, progress)

    def _line(self, name: str) -> TensorLine:
        try:
            return self._opened.lines[name]
        except KeyError:
            detail = f"the model {self.id!r} has no tensor {name!r}; its keys() are all of them."
            raise NotFound(detail, slug="no-such-tensor") from None

    def __len__(self) -> int:
        return len(self._opened.lines)

    def __contains__(self, name: object) -> bool:
        return name in self._opened.lines

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and self._state == other._state

    def __hash__(self) -> int:
        return hash(self._state)

    @property
    def _state(self) -> tuple[str, str, str]:
        """What says which model it is, and in which state."""
        return self._client.url, self.id, self.version

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id!r}: {len(self)} tensors, {self.parameters:,} parameters>"


class RemoteModel(_Model, Mapping[str, RemoteTensor]):
    """A model that lives elsewhere: ``model["blk.0.attn_q.weight"]`` is a `RemoteTensor`. Nothing is moved for that."""

    _client: Client

    def __getitem__(self, name: str) -> RemoteTensor:
        """A tensor; raises NotFound (a KeyError)."""
        return RemoteTensor(self, self._line(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._opened.lines)

    @property
    def metadata(self) -> Metadata:
        """The model's metadata by key."""
        if not hasattr(self, "_metadata"):
            self._metadata = Metadata(self.summary["links"]["metadata"], {"If-Match": self.version}, self._client._run)
        return self._metadata

    def pull(
        self,
        path: str | os.PathLike[str],
        *,
        name: str | None = None,
        exclude: str | None = None,
        dtype: DType = "float32",
        progress: Progress = False,
    ) -> Pulled:
        """Write the whole model, decoded, to a safetensors file, in parallel ranges.

        What comes is kept in ``PATH.part`` and, what of it is there, in ``PATH.part.json``. Whatever ends a pull, the
        same call goes on where it ended, unless the model has changed: then it begins anew. `tensortap._pull` says
        what is verified before the file gets its name, in place of one that has it.

        Parameters
        ----------
        path
            Of the file.
        name, exclude
            Globs (``*``, ``?``, ``[abc]``) of the tensors to take, and of those of them to leave out.
        dtype
            Of every weight: ``"float32"``, ``"float16"``, ``"bfloat16"``, or ``"stored"``, the file's own, for models
            that are not quantized.
        progress
            As of `RemoteTensor.read`; the bytes that are there include those of earlier calls.

        Raises
        ------
        Unreadable
            A tensor cannot be read: it has to be left out.
        NotFound
            No tensor has such a name.
        ModelChanged
            The model on the volume is another one by now.
        BlockingIOError
            Another process pulls to the same path.
        OSError
            The file cannot be written.
        """
        with closing(self._pulled(path, name, exclude, dtype, progress)) as flow:
            return self._run(flow)

    def get_tensor(self, name: str) -> NDArray[np.float32]:
        """All weights of a tensor, as ``safe_open``'s files of safetensors give them."""
        weights: NDArray[np.float32] = self[name].read()
        return weights

    def get_slice(self, name: str) -> RemoteTensor:
        """A tensor to take slices of, as ``safe_open``'s files of safetensors give it."""
        return self[name]

    def _run(self, flow: Flow[T]) -> T:
        return self._client._run(flow)

    def __reduce__(self) -> tuple[Any, ...]:
        return _model_again, (self._client, self.id, self.version)


class AsyncModel(_Model):
    """The same for asyncio: ``model["blk.0.attn_q.weight"]`` is an `AsyncTensor`."""

    _client: AsyncClient

    def __getitem__(self, name: str) -> AsyncTensor:
        """A tensor; raises NotFound (a KeyError)."""
        return AsyncTensor(self, self._line(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._opened.lines)

    def keys(self) -> list[str]:
        """The names of all tensors, in the file's order."""
        return list(self)

    @property
    def metadata(self) -> AsyncMetadata:
        """The model's metadata by key."""
        if not hasattr(self, "_metadata"):
            self._metadata = AsyncMetadata(
                self.summary["links"]["metadata"], {"If-Match": self.version}, self._client._run
            )
        return self._metadata

    async def pull(
        self,
        path: str | os.PathLike[str],
        *,
        name: str | None = None,
        exclude: str | None = None,
        dtype: DType = "float32",
        progress: Progress = False,
    ) -> Pulled:
        """As `RemoteModel.pull`."""
        with closing(self._pulled(path, name, exclude, dtype, progress)) as flow:
            return await self._run(flow)

    def _run(self, flow: Flow[T]) -> Awaitable[T]:
        return self._client._run(flow)


def _model_again(client: Client, model_id: str, version: str) -> RemoteModel:
    """A pickled model, opened again: the version that it was, or ModelChanged."""
    return client._open(model_id, version)
