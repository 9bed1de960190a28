"""What the window cache is held against: a plain LRU, and the best that any cache can do (Belady's)."""

import heapq
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence

__all__ = ["LRU", "belady_hits"]


class LRU:
    """The plain one: keeps the ``capacity`` things used last, whatever they are used for."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._kept: OrderedDict[Hashable, object] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], object]) -> object:
        """What is kept under the key, made by ``make`` if nothing is."""
        kept = self._kept.get(key)
        if kept is not None:
            self._kept.move_to_end(key)
            return kept
        made = make()
        if len(self._kept) == self._capacity:
            self._kept.popitem(last=False)
        self._kept[key] = made
        return made


def belady_hits(trace: Sequence[Hashable], capacity: int) -> list[bool]:
    """For each use in a trace, whether a cache that knows the future would have had it.

    It throws away what is used again last, which may be what has just been used: no cache of that capacity has more
    hits. Source: L. A. Belady, A study of replacement algorithms for a virtual-storage computer, 1966.
    """
    never = len(trace)
    next_use = [never] * len(trace)
    seen: dict[Hashable, int] = {}
    for at in range(len(trace) - 1, -1, -1):
        next_use[at] = seen.get(trace[at], never)
        seen[trace[at]] = at
    hits, kept, farthest = [], dict[Hashable, int](), list[tuple[int, int]]()
    for at, key in enumerate(trace):
        hits.append(key in kept)
        kept[key] = next_use[at]
        heapq.heappush(farthest, (-next_use[at], at))
        while len(kept) > capacity:
            use, pushed = heapq.heappop(farthest)
            # An entry from before a later use of the same key says nothing any more.
            if kept.get(trace[pushed]) == -use:
                del kept[trace[pushed]]
    return hits
