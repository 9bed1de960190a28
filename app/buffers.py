"""Memory for windows: whole windows get memory of their own, which is used again once nobody can read it any more.

A window outlives its decode by as long as a client takes to read it. From the heap, such blocks would leave holes that
are never given back; and memory fresh from the system costs a page fault for each of its 256 pages, as long as a
decode takes. So a few buffers are kept for the next windows, and the others go back to the system at once.
"""

import mmap
import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Buffers", "lend"]

# The pages of a window are asked for at once where the system can do that: 0.36 ms instead of 0.55 ms one by one.
_FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_POPULATE", 0)


class _Memory(mmap.mmap):
    lent = False


class Buffers:
    """Float32 arrays, those of ``n_weights`` weights (a whole window) from kept memory.

    Parameters
    ----------
    n_weights
        The size that is kept.
    keep
        Most buffers that are kept while nobody uses them.
    """

    def __init__(self, n_weights: int, keep: int) -> None:
        self._n_weights = n_weights
        self._keep = keep
        self._idle: list[_Memory] = []  # its append and pop are atomic

    def take(self, n_weights: int) -> NDArray[np.float32]:
        """An array of ``n_weights`` weights, of any content.

        Its memory is used again only when the array and all views of it (slices, memoryviews) are gone, and never if
        it was lent. The one that was given back last comes first: it is still in a core's cache. Raises MemoryError.
        """
        if n_weights != self._n_weights:
            return np.empty(n_weights, np.float32)
        try:
            memory = self._idle.pop()
        except IndexError:
            memory = _fresh(n_weights * 4)
        # Views of the array keep the array itself alive, since it does not own its memory: when it goes, all are gone.
        array = np.frombuffer(memory, np.float32)
        weakref.finalize(array, self._give_back, memory).atexit = False
        return array

    def _give_back(self, memory: _Memory) -> None:
        # Runs wherever the last view goes, also inside other code of this class: it may take no lock.
        if len(self._idle) < self._keep and not memory.lent:
            self._idle.append(memory)


def _fresh(n_bytes: int) -> _Memory:
    try:
        return _Memory(-1, n_bytes, flags=_FLAGS)
    except OSError as error:  # of no file: whatever its number, it is memory that there is none of
        raise MemoryError(f"no memory for a window: {error.strerror or error}") from error


def lend(view: memoryview) -> bool:
    """Whether what ``view`` shows may be read for ever, also when nobody here holds it any more.

    That is so for the memory of whole windows, which is then not used again: the system keeps its pages for whoever
    reads them.
    """
    array: Any = view.obj
    while isinstance(array, np.ndarray) and isinstance(array.base, np.ndarray):
        array = array.base
    memory = getattr(getattr(array, "base", None), "obj", None)
    if not isinstance(memory, _Memory):
        return False
    memory.lent = True
    return True
