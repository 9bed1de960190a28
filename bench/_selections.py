"""Random selections of a tensor: as query parameters, as a JSON document, and as what numpy selects."""

import math
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Selected", "select"]

_LONG_URL = 1500
_MOST_GATHERED = 500


@dataclass(slots=True)
class Selected:
    """A selection of a tensor of some shape.

    ``query`` has it as parameters, ``posted`` as members of a JSON document; ``is_long``: it is too long for a URL.
    """

    whole: tuple[int, ...]
    rows: list[int | slice] | None = None
    cols: slice | None = None
    nd: tuple[Any, ...] | None = None
    query: dict[str, str] = field(default_factory=dict)
    posted: dict[str, Any] = field(default_factory=dict)
    shape: tuple[int, ...] = ()

    @property
    def n_items(self) -> int:
        """How many weights it has."""
        return math.prod(self.shape)

    @property
    def is_long(self) -> bool:
        """Whether it belongs into a POST."""
        return sum(map(len, self.query.values())) > _LONG_URL

    def of(self, array: NDArray[Any]) -> NDArray[Any]:
        """What is selected of an array of the tensor's shape."""
        if self.nd is not None:
            return np.asarray(array[self.nd])
        if self.rows is None and self.cols is None:
            return array
        rows = self.of_rows(array.reshape(-1, self.whole[-1]))
        return rows if self.cols is None else rows[:, self.cols]

    def of_rows(self, rows: NDArray[Any]) -> NDArray[Any]:
        """The selected rows of a two-dimensional array."""
        if self.rows is None:
            return rows
        parts = [rows[part] if isinstance(part, slice) else rows[part][None] for part in self.rows]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


def select(rng: Random, whole: tuple[int, ...], most: int, *, rows_only: bool = False) -> Selected:
    """A random selection of at most ``most`` weights of a tensor (or of one row, if that is more)."""
    selected = Selected(whole)
    n_rows, row = math.prod(whole[:-1]), whole[-1]
    most_rows = max(1, min(n_rows, most // row))
    chance = rng.random()
    if chance < 0.1 and math.prod(whole) <= most:
        pass  # all of it
    elif chance < 0.3 and not rows_only:
        _choose_nd(rng, selected, most)
    elif chance < 0.55:
        _choose_rows(selected, _gathered(rng, n_rows, most_rows))
    else:
        _choose_rows(selected, [_part(rng, n_rows, most_rows)])
        if not rows_only and rng.random() < 0.3:
            part = _part(rng, row, row)
            selected.cols = part if isinstance(part, slice) else slice(part, part + 1 or None)
            selected.query["cols"] = _text(part)
            selected.posted["cols"] = part if isinstance(part, int) else _text(part)
    empty = np.broadcast_to(np.uint8(0), whole)  # takes no memory
    selected.shape = selected.of(empty).shape
    return selected


def _choose_rows(selected: Selected, parts: list[int | slice]) -> None:
    selected.rows = parts
    selected.query["rows"] = ",".join(map(_text, parts))
    selected.posted["rows"] = [part if isinstance(part, int) else _text(part) for part in parts]


def _choose_nd(rng: Random, selected: Selected, most: int) -> None:
    axes: list[Any] = []
    left = most
    # From the last axis, in which weights follow each other.
    for size in reversed(selected.whole):
        part = _part(rng, size, max(1, min(size, left)))
        left //= max(1, len(range(size)[part]) if isinstance(part, slice) else 1)
        axes.insert(0, part)
    selected.nd = tuple(axes)
    text = ",".join(map(_text, axes))
    selected.query["slice"] = selected.posted["slice"] = text


def _gathered(rng: Random, size: int, most: int) -> list[int | slice]:
    """Some integers, in no order and with repeats, and a few slices among them."""
    parts: list[int | slice] = []
    left = rng.randint(1, min(most, _MOST_GATHERED))
    while left > 0:
        if rng.random() < 0.1:
            part = _part(rng, size, left)
            left -= len(range(size)[part]) if isinstance(part, slice) else 1
            parts.append(part)
        else:
            parts.append(rng.randint(-size, size - 1))
            left -= 1
    return parts


def _part(rng: Random, size: int, most: int) -> int | slice:
    """An integer, or a slice of at most ``most`` members of an axis of ``size``; now and then an empty one."""
    chance = rng.random()
    if chance < 0.15:
        return rng.randint(-size, size - 1)
    if chance < 0.17:
        return slice(size // 2, size // 2)
    step = rng.choice((1, 1, 1, 1, 2, 3, -1, -2))
    count = rng.randint(1, max(1, min(most, math.ceil(size / abs(step)))))
    span = (count - 1) * abs(step) + 1
    low = rng.randint(0, size - span)
    if step > 0:
        start, stop = low, low + span
        first = None if start == 0 and rng.random() < 0.5 else start
        # A stop beyond the end is cut to it.
        last = rng.choice((None, stop + 7, stop)) if stop == size else stop
        return slice(first, last, None if step == 1 else step)
    start = low + span - 1
    return slice(start - size if rng.random() < 0.3 else start, None if low == 0 else low - 1, step)


def _text(part: int | slice) -> str:
    if isinstance(part, int):
        return str(part)
    start, stop = ("" if edge is None else str(edge) for edge in (part.start, part.stop))
    return f"{start}:{stop}" if part.step is None else f"{start}:{stop}:{part.step}"
