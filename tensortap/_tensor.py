"""Remote tensors: what looks like a numpy array and moves only what is asked for."""

from __future__ import annotations

import math
import operator
import os
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from decoders import GGMLType

from ._errors import Unreadable
from ._flow import Compute, Flow
from ._index import Box, boxed
from ._partial import refuse_folder
from ._progress import Progress, progress_of
from ._read import Decode, Floats, OnBytes
from ._table import TensorLine, type_of

if TYPE_CHECKING:
    from ._model import AsyncModel, RemoteModel

__all__ = ["AsyncTensor", "RemoteTensor"]

_NOTHING: Any = lambda _: None  # noqa: E731
_SAVED_BYTES = 32 << 20  # of a file that is written, at a time
_ITERATED_BYTES = 4 << 20  # of an iteration, ahead


class _Tensor:
    """What both kinds of tensor have: everything that is known without moving a weight.

    Attributes
    ----------
    name
        The tensor's name.
    shape
        In numpy's order.
    dtype
        float32: what every ggml type is decoded to.
    """

    dtype = np.dtype(np.float32)

    def __init__(self, model: Any, line: TensorLine) -> None:
        self._model = model
        self._line = line
        self.name = line.name
        self.shape = line.shape

    @property
    def ggml_type(self) -> GGMLType | None:
        """The type in which it is stored; None for an id that is no type of ggml's."""
        return type_of(self._line.type_id)

    @property
    def ndim(self) -> int:
        """How many axes it has."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """How many weights it has."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of its weights as float32."""
        return self.size * self.dtype.itemsize

    @property
    def native_nbytes(self) -> int | None:
        """Bytes as it is stored; None for an unknown type."""
        return self._line.n_bytes

    @property
    def n_rows(self) -> int:
        """How many rows it has: ``ne[0]`` consecutive weights each, whatever its rank."""
        return math.prod(self.shape[:-1])

    @property
    def readable(self) -> bool:
        """Whether its weights can be read."""
        return self._line.fault is None

    def get_shape(self) -> list[int]:
        """The shape, as the slices of safetensors give it."""
        return list(self.shape)

    def get_dtype(self) -> str:
        """The dtype, as the slices of safetensors give it."""
        return "F32"

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def __repr__(self) -> str:
        stored = self._line.type_name or f"type {self._line.type_id}"
        readable = "" if self.readable else ", unreadable"
        return f"<{type(self).__name__} {self.name!r} {stored} {self.shape} of {self._model.id!r}{readable}>"

    def _box(self, index: Any) -> Box:
        if self._line.fault is not None:
            kind = str(self._line.fault.get("type", "")).rpartition("/")[2]
            raise Unreadable(f"{self.name}: {self._line.fault.get('detail')}", slug=kind, problem=self._line.fault)
        return boxed(index, self.shape)

    def _read(self, index: Any, out: NDArray[Any] | None, progress: Progress, decode: Decode | None) -> Flow[Any]:
        if decode not in (None, "auto", "client", "server"):
            raise ValueError(f"decode is 'auto', 'client' or 'server', not {decode!r}")
        box = self._box(index)
        place = _place(out, box)
        if progress is False:
            yield from self._floats(box, place, _NOTHING, decode)
        else:
            with progress_of(progress, self.name, self._model._reader.size(self._line, box, decode)) as on_bytes:
                yield from self._floats(box, place, on_bytes, decode)
        return place[box.local] if out is None else out

    def _floats(self, box: Box, out: Floats, on_bytes: OnBytes, decode: Decode | None = None) -> Flow[None]:
        yield from self._model._reader.floats(self._line, self._model.version, box, out, on_bytes, decode)

    def _one_of_many(self, index: Any) -> Flow[Any]:
        """A read of a pass through all weights."""
        box = self._box(index)
        out = np.empty(box.shape, np.float32)
        reader, version = self._model._reader, self._model.version
        yield from reader.floats(self._line, version, box, out, _NOTHING, job_bytes=self._pass_bytes())
        return out[box.local]

    def _pass_bytes(self) -> int:
        """What a pass through all weights moves: what does not fit into the cache would push out all else."""
        size: int = self._model._reader.size(self._line, self._box(...))
        return size

    def _native(self, start: int | None, stop: int | None) -> Flow[NDArray[np.uint8]]:
        self._box(...)
        first, last, _ = slice(start, stop).indices(self.n_rows)
        if not self._line.is_native:
            raise Unreadable(f"{self.name}: the service does not give its stored blocks.", slug="unsupported-type")
        # As a matrix of rows, whatever the shape.
        box = Box((range(first, max(first, last)), range(self._line.row_weights)), ())
        line = self._rows_line()
        out = np.empty(len(box.picks[0]) * line.row_bytes, np.uint8)
        yield from self._model._reader.native(line, self._model.version, box, out, _NOTHING)
        return out

    def _rows(self, first: int, stop: int, on_bytes: OnBytes = _NOTHING) -> Flow[Floats]:
        self._box(...)
        line = self._rows_line()
        box = Box((range(first, stop), range(line.row_weights)), ())
        out = np.empty(box.shape, np.float32)
        reader, version = self._model._reader, self._model.version
        yield from reader.floats(line, version, box, out, on_bytes, job_bytes=self._pass_bytes())
        return out

    def _batches(self, n: int) -> list[tuple[int, int]]:
        """All rows, as intervals of ``n``."""
        if operator.index(n) < 1:
            raise ValueError(f"n is a number of rows, at least 1, not {n}")
        return [(first, min(first + n, self.n_rows)) for first in range(0, self.n_rows, n)]

    def _rows_line(self) -> TensorLine:
        """The line as that of a matrix: of its rows."""
        return replace(self._line, shape=(self.n_rows, self._line.row_weights))

    def _save(self, path: str | os.PathLike[str], progress: Progress) -> Flow[None]:
        # In batches, through memory: a mapped file ends the process where the disk is full.
        box = self._box(...)
        target = Path(path)
        refuse_folder(target)
        part = target.with_name(f".{target.name}.{uuid.uuid4().hex}.part")
        n = max(1, _SAVED_BYTES // (4 * max(1, self._line.row_weights)))
        try:
            with (
                part.open("wb") as file,
                progress_of(progress, self.name, self._model._reader.size(self._line, box)) as on_bytes,
            ):
                header = {"descr": "<f4", "fortran_order": False, "shape": self.shape}
                np.lib.format.write_array_header_1_0(file, header)
                for first, stop in self._batches(n):
                    rows = yield from self._rows(first, stop, on_bytes)
                    yield Compute(partial(file.write, rows.astype("<f4", copy=False).data))
            os.replace(part, target)
        finally:
            part.unlink(missing_ok=True)


class RemoteTensor(_Tensor):
    """A tensor of a model that lives elsewhere. Indexing gives float32 arrays, as numpy's indexing would.

    Examples
    --------
    ``w[10:20]``, ``w[-1]``, ``w[::2, :64]``, ``w[[3, 7, 3]]``, ``w[...]`` and ``np.asarray(w)`` move what they need.
    """

    _model: RemoteModel

    def __getitem__(self, index: Any) -> Any:
        """What numpy's indexing of the whole array would give: an array, or a float32 where every axis is dropped.

        Raises
        ------
        SelectionError
            An IndexError: the index does not fit.
        ModelChanged
            The model on the volume is another one by now.
        TensorTapError
            Another of its kinds: the weights could not be brought.
        """
        return self._model._run(self._read(index, None, False, None))

    def read(
        self,
        index: Any = ...,
        *,
        out: NDArray[Any] | None = None,
        progress: Progress = False,
        decode: Decode | None = None,
    ) -> Any:
        """What an index selects, by default everything.

        Parameters
        ----------
        index
            As between brackets.
        out
            Filled with the result and returned: contiguous float32, of the shape of what is selected. For an index of
            positive steps without lists.
        progress
            True shows a bar; a function is called with the bytes that have come and the bytes that will.
        decode
            ``"client"``, ``"server"`` or ``"auto"``, in place of the client's own choice.
        """
        return self._model._run(self._read(index, out, progress, decode))

    def iter_rows(self, n: int = 4096) -> Iterator[Floats]:
        """All rows in order, as arrays of ``n`` rows (the last may have fewer): of shape (n, row length)."""
        self._box(...)
        return (self._model._run(self._rows(first, stop)) for first, stop in self._batches(n))

    def native(self, start: int | None = None, stop: int | None = None) -> NDArray[np.uint8]:
        """The stored blocks of rows, as ``decoders.dequantize`` takes them: uint8, 1-D. Rows clamp as a slice does."""
        return self._model._run(self._native(start, stop))

    def save(self, path: str | os.PathLike[str], *, progress: Progress = False) -> None:
        """Write an ``.npy`` file, which takes the place of one that is there when it is whole."""
        self._model._run(self._save(path, progress))

    def to_torch(self) -> Any:
        """The weights as a torch tensor of float32; needs torch."""
        try:
            import torch
        except ImportError:
            raise ImportError("to_torch needs torch: pip install 'tensortap[torch]'") from None
        return torch.from_numpy(self.read())

    def to_dask(self, rows: int | None = None) -> Any:
        """A dask array that reads when it is computed, in chunks of ``rows`` of the first axis; needs dask."""
        try:
            import dask.array
        except ImportError:
            raise ImportError("to_dask needs dask: pip install 'tensortap[dask]'") from None
        from_array: Any = dask.array.from_array  # it has no types
        if not self.shape:
            return from_array(self, asarray=True)
        return from_array(self, chunks=(rows or "auto", *self.shape[1:]), asarray=True, fancy=True)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("the weights live elsewhere: an array of them is always a copy")
        weights = np.asarray(self.read())
        return weights if dtype is None else weights.astype(dtype, copy=False)

    def __iter__(self) -> Iterator[Any]:
        """The members of the first axis, some brought at a time."""
        if not self.shape:
            raise TypeError("iteration over a 0-d array")
        self._box(...)
        step = max(1, _ITERATED_BYTES // max(1, 4 * math.prod(self.shape[1:])))
        firsts = range(0, len(self), step)
        batches = (self._model._run(self._one_of_many(slice(first, first + step))) for first in firsts)
        return (member for batch in batches for member in batch)

    def __dask_tokenize__(self) -> tuple[str, ...]:
        """What stands for the weights: dask names its tasks after it."""
        return (*self._model._state, self.name)

    def __reduce__(self) -> tuple[Any, ...]:
        return _tensor_again, (self._model, self.name)


class AsyncTensor(_Tensor):
    """The same for asyncio: ``await w[10:20]``, ``await w.read()``, ``async for rows in w.iter_rows(4096)``."""

    _model: AsyncModel

    async def __getitem__(self, index: Any) -> Any:
        """As `RemoteTensor.__getitem__`."""
        return await self._model._run(self._read(index, None, False, None))

    async def read(
        self,
        index: Any = ...,
        *,
        out: NDArray[Any] | None = None,
        progress: Progress = False,
        decode: Decode | None = None,
    ) -> Any:
        """As `RemoteTensor.read`."""
        return await self._model._run(self._read(index, out, progress, decode))

    async def iter_rows(self, n: int = 4096) -> AsyncIterator[Floats]:
        """As `RemoteTensor.iter_rows`."""
        for first, stop in self._batches(n):
            yield await self._model._run(self._rows(first, stop))

    async def native(self, start: int | None = None, stop: int | None = None) -> NDArray[np.uint8]:
        """As `RemoteTensor.native`."""
        return await self._model._run(self._native(start, stop))

    async def save(self, path: str | os.PathLike[str], *, progress: Progress = False) -> None:
        """As `RemoteTensor.save`."""
        await self._model._run(self._save(path, progress))


def _tensor_again(model: RemoteModel, name: str) -> RemoteTensor:
    return model[name]


def _place(out: NDArray[Any] | None, box: Box) -> Floats:
    """Memory for a box: new, or the caller's as an array of the box's shape."""
    if out is None:
        return np.empty(box.shape, np.float32)
    if not isinstance(out, np.ndarray):
        raise TypeError(f"out is a numpy array, not {type(out).__name__}")
    if not _is_plain(box):
        raise ValueError("out goes with an index of positive steps and without lists: assign the result to it instead")
    shape = np.broadcast_to(np.float32(0), box.shape)[box.local].shape
    if out.dtype != np.float32 or out.shape != shape or not out.flags.c_contiguous or not out.flags.writeable:
        raise ValueError(f"out must be writable, contiguous float32 of shape {shape}")
    return out.reshape(box.shape)


def _is_plain(box: Box) -> bool:
    return not any(isinstance(rest, np.ndarray) or rest == slice(None, None, -1) for rest in box.local)
