"""Memory for windows: whole windows get memory of their own, which is used again once nobody can read it any more.

A window outlives its decode by as long as a client takes to read it. From the heap, such blocks would leave holes that
are never given back; and memory fresh from the system costs a page fault for each of its 256 pages, as long as a
decode takes. So a few buffers are kept for the next windows, and the others go back to the system at once.
"""

import mmap
import weakref

import numpy as np
from numpy.typing import NDArray

__all__ = ["Buffers"]

# The pages of a window are asked for at once where the system can do that: 0.36 ms instead of 0.55 ms one by one.
_FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_POPULATE", 0)


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
        self._idle: list[mmap.mmap] = []  # its append and pop are atomic

    def take(self, n_weights: int) -> NDArray[np.float32]:
        """An array of ``n_weights`` weights, of any content.

        Its memory is used again only when the array and all views of it (slices, memoryviews) are gone.
        """
        if n_weights != self._n_weights:
            return np.empty(n_weights, np.float32)
        try:
            memory = self._idle.pop()
        except IndexError:
            memory = mmap.mmap(-1, n_weights * 4, flags=_FLAGS)
        # Views of the array keep the array itself alive, since it does not own its memory: when it goes, all are gone.
        array = np.frombuffer(memory, np.float32)
        weakref.finalize(array, self._give_back, memory).atexit = False
        return array

    def _give_back(self, memory: mmap.mmap) -> None:
        # Runs wherever the last view goes, also inside other code of this class: it may take no lock.
        if len(self._idle) < self._keep:
            self._idle.append(memory)
