"""Content: a body before it is made, as literal bytes and sections of tensors, any byte range of which can be taken.

Taking a range narrows the plan: what is outside is neither read nor decoded.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import NDArray

from app.selection import Selection
from app.windows import Source

__all__ = ["Content", "Section", "content_length", "narrowed"]


@dataclass(frozen=True, slots=True)
class Section:
    """The encoded items of a selection of one source, from byte ``skip`` on, ``n_bytes`` of them.

    ``encode`` turns an array of items, and the position of its first in the selection, into bytes: ``item_bytes`` for
    each item. A text has no such size: its ``item_bytes`` and ``n_bytes`` are None, and no range of it can be taken.
    ``copies_nothing``: contiguous items are encoded by looking at them as bytes.
    """

    source: Source
    selection: Selection
    encode: Callable[[NDArray[Any], int], bytes | memoryview]
    item_bytes: int | None
    copies_nothing: bool
    skip: int = 0
    n_bytes: int | None = None

    @classmethod
    def of_items(
        cls,
        source: Source,
        selection: Selection,
        encode: Callable[[NDArray[Any]], memoryview],
        item_bytes: int,
        *,
        copies_nothing: bool,
    ) -> "Section":
        """The section of all items of a selection, each of ``item_bytes``."""
        return cls(
            source,
            selection,
            lambda items, _: encode(items),
            item_bytes,
            copies_nothing,
            n_bytes=selection.n_items * item_bytes,
        )

    def narrowed(self, first: int, stop: int) -> "Section":
        """Its bytes ``first`` to ``stop``: only the items that they lie in."""
        if self.item_bytes is None:
            raise ValueError("a text has no byte ranges before it is made")
        start = self.skip + first
        first_item, skip = divmod(start, self.item_bytes)
        stop_item = -(-(self.skip + stop) // self.item_bytes)
        selection = self.selection.narrowed(first_item, stop_item)
        return replace(self, selection=selection, skip=skip, n_bytes=stop - first)


Content = Sequence[bytes | Section]


def content_length(content: Content) -> int | None:
    """How many bytes a content is; None if it has a text, which is known only when it is made."""
    length = 0
    for element in content:
        size = len(element) if isinstance(element, bytes) else element.n_bytes
        if size is None:
            return None
        length += size
    return length


def narrowed(content: Content, first: int, stop: int) -> Iterable[bytes | Section]:
    """The bytes ``first`` to ``stop`` of a content of known length, as a content."""
    at = 0
    for element in content:
        size = len(element) if isinstance(element, bytes) else element.n_bytes or 0
        low, high = max(first - at, 0), min(stop - at, size)
        if low == 0 and high == size and size:
            yield element
        elif low < high:
            yield element[low:high] if isinstance(element, bytes) else element.narrowed(low, high)
        at += size
        if at >= stop:
            break
