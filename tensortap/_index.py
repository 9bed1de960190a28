"""numpy's indexing, taken apart: which indices of each axis are needed, and what is then left to do locally.

What is needed of an axis is always ascending and without repeats, so that it can be moved in the order of the file.
numpy itself then applies what is left, negative steps, repeats, dropped and new axes, to the *box* of what was moved:
its result is numpy's by construction.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ._errors import SelectionError

__all__ = ["Box", "Indices", "boxed"]

Indices: TypeAlias = "range | NDArray[np.int64]"


@dataclass(frozen=True, slots=True)
class Box:
    """The part of an array that an index needs.

    Attributes
    ----------
    picks
        Of each axis, the indices that are needed: ascending, each once.
    local
        What numpy is to apply to the array of the picked, whose shape is the lengths of ``picks``.
    """

    picks: tuple[Indices, ...]
    local: tuple[Any, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array of the picked."""
        return tuple(len(pick) for pick in self.picks)


def boxed(index: Any, shape: Sequence[int]) -> Box:
    """Take an index apart: integers, slices, ``...``, ``None``, and one list, array or mask of an axis.

    Raises
    ------
    SelectionError
        An integer is outside of its axis, there are too many indices, or several lists; also for what numpy does not
        take as an index. It is an IndexError, as numpy's.
    ValueError
        A slice's step is zero, as in numpy.
    """
    members = index if isinstance(index, tuple) else (index,)
    used = sum(member is not None and member is not Ellipsis for member in members)
    if used > len(shape):
        raise SelectionError(f"too many indices for array: array is {len(shape)}-dimensional, but {used} were indexed")
    if sum(member is Ellipsis for member in members) > 1:
        raise SelectionError("an index can only have a single ellipsis ('...')")
    if used < len(shape) and not any(member is Ellipsis for member in members):
        members = (*members, Ellipsis)
    picks: list[Indices] = []
    local: list[Any] = []
    lists = 0
    for member in members:
        if member is None or member is Ellipsis:
            # Left to numpy as it is: where it stands decides the place of a list's axis, also if it stands for nothing.
            local.append(member)
            if member is Ellipsis:
                filled = len(picks)
                picks += map(range, shape[filled : filled + len(shape) - used])
            continue
        axis = len(picks)
        pick, rest = _axis(member, axis, shape[axis])
        lists += isinstance(rest, np.ndarray)
        picks.append(pick)
        local.append(rest)
    if lists > 1:
        raise SelectionError("one list of indices at a time: index the result of the first with the second")
    return Box(tuple(picks), tuple(local))


def _axis(member: Any, axis: int, size: int) -> tuple[Indices, Any]:
    """The indices that one member of an index needs of its axis, and what is left of it for the picked."""
    if isinstance(member, slice):
        wanted = range(size)[member]
        if not wanted:
            return range(0), slice(None)
        if wanted.step < 0:
            return wanted[::-1], slice(None, None, -1)
        return wanted, slice(None)
    if isinstance(member, (np.ndarray, Sequence)) and not isinstance(member, (str, bytes)) and np.ndim(member):
        # An empty list is one of indices, although numpy makes floats of it; an empty array of floats is not.
        is_empty = not isinstance(member, np.ndarray) and not len(member)
        return _listed(np.empty(0, np.int64) if is_empty else np.asarray(member), axis, size)
    if isinstance(member, (bool, np.bool_)):
        raise SelectionError("a single bool is no index here: use a mask as long as the axis, or an integer")
    try:
        number = operator.index(member)
    except TypeError:
        raise SelectionError(
            "only integers, slices (`:`), ellipsis (`...`), numpy.newaxis (`None`) and integer or boolean arrays "
            f"are valid indices, not {type(member).__name__}"
        ) from None
    if not -size <= number < size:
        raise SelectionError(f"index {number} is out of bounds for axis {axis} with size {size}")
    number %= size
    return range(number, number + 1), 0


def _listed(wanted: NDArray[Any], axis: int, size: int) -> tuple[Indices, Any]:
    if wanted.ndim != 1:
        raise SelectionError(f"a list of indices has one dimension; this one has {wanted.ndim}")
    if wanted.dtype == np.bool_:
        if len(wanted) != size:
            raise SelectionError(
                f"boolean index did not match indexed array along axis {axis}; size of axis is {size} but size of "
                f"corresponding boolean axis is {len(wanted)}"
            )
        wanted = np.flatnonzero(wanted)
    elif wanted.dtype.kind not in "iu":
        raise SelectionError("arrays used as indices must be of integer (or boolean) type")
    outside = wanted[(wanted < -size) | (wanted >= size)]
    if outside.size:
        raise SelectionError(f"index {outside[0]} is out of bounds for axis {axis} with size {size}")
    numbers = wanted.astype(np.int64)
    numbers[numbers < 0] += size
    picked, places = np.unique(numbers, return_inverse=True)
    return picked, places.reshape(-1)
