"""What was moved before: in memory, and on the disk if that is wanted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from ._segments import Piece, Segments

if TYPE_CHECKING:
    from ._disk import DiskSegments

__all__ = ["Cache"]

Key = tuple[str, str, str]  # a version of a model, the path of a tensor's weights, and which body of it


@dataclass(frozen=True, slots=True)
class Cache:
    """Bytes of bodies in one or two layers; its methods may be called from any thread.

    A read of more than half of a layer passes it by: it would only push out what is used again.

    Attributes
    ----------
    memory, disk
        The layers; None for one that is not wanted.
    """

    memory: Segments | None
    disk: DiskSegments | None

    @classmethod
    def of(cls, url: str, memory_bytes: int, folder: str | None, disk_bytes: int) -> Self | None:
        """The cache of a service's answers; None if nothing is to be kept."""
        disk = None
        if folder is not None:
            try:
                from ._disk import DiskSegments
            except ImportError:
                raise ImportError("a cache on the disk needs diskcache: pip install 'tensortap[disk]'") from None
            disk = DiskSegments(folder, disk_bytes, url)
        memory = Segments(memory_bytes) if memory_bytes else None
        return None if memory is None and disk is None else cls(memory, disk)

    def keeps(self, read_bytes: int) -> bool:
        """Whether anything is kept of a read of so many bytes."""
        return self._memory(read_bytes) is not None or self._disk(read_bytes) is not None

    def is_slow(self, read_bytes: int) -> bool:
        """Whether a look into it for such a read takes long enough to be in the way of an event loop."""
        return self._disk(read_bytes) is not None

    def cover(self, key: Key, start: int, stop: int, read_bytes: int) -> list[Piece]:
        """The interval in pieces, in order: ``(start, stop, bytes)``, with None for what is not here."""
        memory, disk = self._memory(read_bytes), self._disk(read_bytes)
        pieces: list[Piece] = [(start, stop, None)] if memory is None else memory.cover(key, start, stop)
        if disk is None:
            return pieces
        found: list[Piece] = []
        for piece in pieces:
            found += [piece] if piece[2] is not None else disk.cover(key, piece[0], piece[1])
        if memory is not None:
            for first, _, known in found:
                if known is not None:
                    memory.insert(key, first, bytes(known))
        return found

    def insert(self, key: Key, start: int, data: bytes, read_bytes: int) -> None:
        """Keep some bytes of a read of ``read_bytes``."""
        for layer in (self._memory(read_bytes), self._disk(read_bytes)):
            if layer is not None:
                layer.insert(key, start, data)

    def close(self) -> None:
        """Let go of the disk; another use takes it up again."""
        if self.disk is not None:
            self.disk.close()

    def let_go(self) -> None:
        """As `close`, without waiting for anything: for the garbage collector."""
        if self.disk is not None:
            self.disk.let_go()

    def after_fork(self) -> None:
        """In a child: locks may be held by threads that are not here."""
        if self.memory is not None:
            self.memory.after_fork()
        if self.disk is not None:
            self.disk.after_fork()

    def _memory(self, read_bytes: int) -> Segments | None:
        return self.memory if self.memory is not None and read_bytes <= self.memory.budget // 2 else None

    def _disk(self, read_bytes: int) -> DiskSegments | None:
        return self.disk if self.disk is not None and read_bytes <= self.disk.budget // 2 else None
