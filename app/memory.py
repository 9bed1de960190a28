"""How much memory this process may use: the container's limit, or the machine's memory."""

import os
from pathlib import Path

__all__ = ["allowed_memory", "default_cache_bytes"]

# cgroup v2 first, then v1; inside a container its own limit is mounted at the root of the hierarchy.
_LIMIT_FILES = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
_LEAST_CACHE = 64 << 20


def allowed_memory() -> int:
    """Bytes of memory that this process may use: the least of the cgroup's limit and what the machine has."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in _LIMIT_FILES:
        try:
            text = path.read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdecimal():  # v2 says "max" where there is no limit; v1 says a number larger than any memory
            memory = min(memory, int(text))
    return memory


def default_cache_bytes(workers: int) -> int:
    """The window cache of one worker process: a quarter of the allowed memory shared by all, at least 64 MiB."""
    return max(_LEAST_CACHE, allowed_memory() // 4 // workers)
