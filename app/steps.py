"""Steps: a content piece by piece, each to be made and sent by itself."""

from collections.abc import Iterator
from dataclasses import dataclass

from app.content import Content, Section
from app.plan import Piece, plan

__all__ = ["Chunk", "Step", "steps_of"]

Chunk = bytes | memoryview
_NO_PIECE = Piece((), 0)


@dataclass(slots=True, eq=False)
class Step:
    """Literal bytes, or a piece of a section, ``start`` being the position of its first item in the section.

    ``scan`` is for pieces of reads larger than the cache, which change nothing in it; ``cut`` is what is wanted of the
    piece's bytes. The rest is how far it is: its ``chunk`` once it is made, whether that is of ``cached`` windows,
    whether a thread has it in its hands (``held``), and how many bytes of it are ``sent``.
    """

    element: bytes | Section
    piece: Piece = _NO_PIECE
    start: int = 0
    scan: bool = False
    cut: slice | None = None
    chunk: Chunk | None = None
    cached: bool = False
    held: bool = False
    sent: int = 0


def steps_of(content: Content, budget: int) -> Iterator[Step]:
    """The steps that make a content, in order; ``budget`` is that of the cache.

    The first and the last piece of a section are cut to its byte range.
    """
    for element in content:
        if isinstance(element, bytes):
            yield Step(element, chunk=element)
            continue
        n_items = min(element.selection.n_items, element.source.n_items)
        scan = n_items * element.source.dtype.itemsize > budget
        start, skip, left = 0, element.skip, element.n_bytes
        for piece in plan(element.selection, element.source.window_items):
            stop = None
            if left is not None and element.item_bytes is not None:
                stop = min(piece.n_items * element.item_bytes, skip + left)
                left -= stop - skip
            yield Step(element, piece, start, scan, slice(skip, stop))
            start, skip = start + piece.n_items, 0
