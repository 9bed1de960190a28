"""How much memory this process may use: the limits of its control groups, or the machine's memory."""

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

__all__ = ["allowed_memory", "default_cache_bytes"]

_OWN_GROUPS = Path("/proc/self/cgroup")
# Control groups of version 2, alone or beside version 1, and of version 1.
_HIERARCHIES = (
    (Path("/sys/fs/cgroup"), "", "memory.max"),
    (Path("/sys/fs/cgroup/unified"), "", "memory.max"),
    (Path("/sys/fs/cgroup/memory"), "memory", "memory.limit_in_bytes"),
)
_LEAST_CACHE = 64 << 20


def allowed_memory() -> int:
    """Bytes of memory that this process may use: what the machine has, or the least limit of a control group.

    A process is bound by the limits of its own group and of all above it. Source: the kernel's documentation,
    admin-guide/cgroup-v1/memory.rst and admin-guide/cgroup-v2.rst.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in _limit_files():
        try:
            text = path.read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            continue
        if text.isdecimal():  # version 2 says "max" where there is no limit; version 1 a number larger than any memory
            memory = min(memory, int(text))
    return memory


def default_cache_bytes(workers: int) -> int:
    """The window cache of one worker process: a quarter of the allowed memory shared by all, at least 64 MiB."""
    return max(_LEAST_CACHE, allowed_memory() // 4 // workers)


def _limit_files() -> Iterator[Path]:
    """The files that may state a limit, from each of the process's groups up to the root of its hierarchy.

    Inside a container the group's path may be the host's, which is not there: the container's own group is the root.
    """
    groups = _own_groups()
    for root, controller, name in _HIERARCHIES:
        group = groups.get(controller, PurePosixPath("/"))
        if ".." in group.parts:  # the process was moved out of what its container can see
            group = PurePosixPath("/")
        for folder in (group, *group.parents):
            yield root / folder.relative_to("/") / name


def _own_groups() -> dict[str, PurePosixPath]:
    """The process's group by controller; that of version 2 has the name ``""``."""
    try:
        lines = _OWN_GROUPS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return {}
    groups: dict[str, PurePosixPath] = {}
    for line in lines:  # number:controllers:path
        _, _, named = line.partition(":")
        controllers, _, path = named.partition(":")
        if path.startswith("/"):
            groups.update(dict.fromkeys(controllers.split(","), PurePosixPath(path)))
    return groups
