"""What an input of up to 64 KiB may cost: half a second of the processor's time, and 50 MiB of memory."""

import os
import resource
import time
from collections.abc import Callable

__all__ = ["MOST_BYTES", "Costly", "within_limits"]

MOST_BYTES = 64 << 10
"""The largest input."""

_MOST_SECONDS = 0.5
_MOST_MEMORY = 50 << 20
_TRIES = 3
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Costly(AssertionError):
    """An input costs more than it may, each time that it is tried."""


def within_limits(run: Callable[[bytes], None], data: bytes) -> None:
    """Give ``data`` to ``run``, and again, up to three times in all, if it took too much: machines are noisy.

    Time is that of all threads of the process, not of the clock. Memory is the peak above what the process had before;
    it is reset through ``/proc/self/clear_refs``, which with all else here takes 3 us.

    Raises
    ------
    Costly
        Each time it took more than it may.
    """
    for left in reversed(range(_TRIES)):
        resident = _reset_peak()
        began = time.process_time()
        run(data)
        seconds = time.process_time() - began
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - resident
        if seconds < _MOST_SECONDS and memory < _MOST_MEMORY:
            return
        if not left:
            raise Costly(f"{len(data)} bytes take {seconds:.2f} s and {memory / 2**20:.0f} MiB")


def _reset_peak() -> int:
    """Set the peak of the process's memory to what it has now, and give that, in bytes."""
    with open("/proc/self/clear_refs", "wb", buffering=0) as file:
        file.write(b"5")
    with open("/proc/self/statm", "rb", buffering=0) as file:
        return int(file.read().split()[1]) * _PAGE
