"""Selections as the service writes them, ``rows=3,7,10:20`` and ``slice=0,:,::2``, read in batches of bounded size."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from .._errors import BadRequest, SelectionError
from .._tensor import RemoteTensor

__all__ = ["Floats", "Selection", "as_matrix", "parsed_rows", "select_all", "select_nd", "select_rows"]

Floats: TypeAlias = NDArray[np.float32]

_INTEGER = "-?[0-9]{1,19}"
_SLICE = re.compile(f"({_INTEGER})?:({_INTEGER})?(?::({_INTEGER})?)?")
_BATCH_WEIGHTS = 16 << 20  # 64 MiB of float32, which is many parts to fetch at a time


class Selection:
    """What is to be read of a tensor: ``shape`` of the result, and `batches` of it.

    ``members`` has, for each axis, an integer, which drops it, a range of indices or an array of them.
    """

    def __init__(
        self,
        tensor: RemoteTensor,
        members: Sequence[int | range | NDArray[np.int64]],
        shape: tuple[int, ...] | None = None,
    ) -> None:
        self._tensor = tensor
        self._members = list(members)
        self.shape = tuple(len(one) for one in members if not isinstance(one, int)) if shape is None else shape

    @property
    def n_weights(self) -> int:
        """How many weights it has."""
        return math.prod(self.shape)

    def batches(self) -> Iterator[Floats]:
        """Its weights in C order, as flat arrays of at most 16 Mi weights."""
        if self.n_weights:
            for index in _cut(self._members):
                yield np.ascontiguousarray(self._tensor[index], np.float32).reshape(-1)


def as_matrix(tensor: RemoteTensor) -> RemoteTensor:
    """A tensor as the matrix of its rows: ``ne[0]`` consecutive weights each, whatever its rank."""
    return RemoteTensor(tensor._model, tensor._rows_line())


def select_all(tensor: RemoteTensor) -> Selection:
    """Everything, in the tensor's shape."""
    matrix = as_matrix(tensor)
    return Selection(matrix, [range(length) for length in matrix.shape], tensor.shape)


def select_rows(tensor: RemoteTensor, text: str) -> Selection:
    """Rows, as a matrix; raises as `parsed_rows`."""
    matrix = as_matrix(tensor)
    parts = parsed_rows(text, len(matrix))
    rows = parts[0] if len(parts) == 1 else np.concatenate([np.asarray(part, np.int64) for part in parts])
    return Selection(matrix, [rows, range(matrix.shape[1])])


def select_nd(tensor: RemoteTensor, text: str) -> Selection:
    """Basic N-D indexing in numpy's order: integers drop their axis, slices clamp, ``...`` is all other axes.

    Raises
    ------
    BadRequest
        It is not written so.
    SelectionError
        It has more axes than the tensor, or an integer is outside.
    """
    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    missing = tensor.ndim - (len(parts) - parts.count("..."))
    if missing < 0 or parts.count("...") > 1:
        raise SelectionError(f"--slice {text!r} does not fit a tensor of {tensor.ndim} axes")
    at = parts.index("...") if "..." in parts else len(parts)
    parts[at : at + 1] = [":"] * missing
    return Selection(tensor, [_member("--slice", part, size) for part, size in zip(parts, tensor.shape, strict=True)])


def parsed_rows(text: str, n_rows: int) -> list[range]:
    """Integers and slices, joined by commas, as ranges of rows.

    Raises
    ------
    BadRequest
        It is not written so.
    SelectionError
        An integer is outside.
    """
    members = [_member("--rows", part.strip(), n_rows) for part in text.split(",")]
    return [range(one, one + 1) if isinstance(one, int) else one for one in members]


def _member(option: str, text: str, size: int) -> int | range:
    """An integer, not negative any more, or the range of a slice."""
    if re.fullmatch(_INTEGER, text):
        place = int(text)
        if not -size <= place < size:
            raise SelectionError(f"{option}: {place} is outside; there are {size}")
        return place % size
    found = _SLICE.fullmatch(text)
    if found is None:
        raise BadRequest(f"{option}: {text!r} is neither an integer nor a slice, like 10:20 or ::2")
    start, stop, step = (None if one is None else int(one) for one in found.groups())
    if step == 0:
        raise BadRequest(f"{option}: the step of {text!r} is zero")
    return range(size)[start:stop:step]


def _cut(members: Sequence[int | range | NDArray[np.int64]]) -> Iterator[tuple[int | slice | NDArray[np.int64], ...]]:
    """Indices that take the selection apart along its first axes, in C order."""
    axis = next((place for place, one in enumerate(members) if not isinstance(one, int)), None)
    if axis is None:
        yield tuple(one for one in members if isinstance(one, int))
        return
    wanted = members[axis]
    assert not isinstance(wanted, int)  # noqa: S101 - it is the first that is none
    each = math.prod(len(one) for one in members[axis + 1 :] if not isinstance(one, int))
    if each <= _BATCH_WEIGHTS:
        step = _BATCH_WEIGHTS // each
        for at in range(0, len(wanted), step):
            yield tuple(_indices(one[at : at + step] if place == axis else one) for place, one in enumerate(members))  # type: ignore[index]
        return
    for one in wanted:
        yield from _cut([*members[:axis], int(one), *members[axis + 1 :]])


def _indices(member: int | range | NDArray[np.int64]) -> int | slice | NDArray[np.int64]:
    if not isinstance(member, range):
        return member
    return slice(member.start, None if member.stop < 0 else member.stop, member.step)
