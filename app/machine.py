"""How much memory and how many cores this process may use: the limits of its control groups, or the machine's own."""

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

__all__ = ["allowed_cores", "allowed_memory", "default_cache_bytes", "default_decode_threads"]

_OWN_GROUPS = Path("/proc/self/cgroup")
_HIERARCHIES = Path("/sys/fs/cgroup")
_LEAST_CACHE = 64 << 20
_MOST_THREADS = 256


def allowed_memory() -> int:
    """Bytes of memory that this process may use: what the machine has, or the least limit of a control group.

    A process is bound by the limits of its own group and of all above it. Source: the kernel's documentation,
    admin-guide/cgroup-v1/memory.rst and admin-guide/cgroup-v2.rst.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for group in _groups("memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):  # of version 2 and of version 1
            for limit in _numbers(group / name)[:1]:  # version 1 has a number larger than any memory for no limit
                memory = min(memory, limit)
    return memory


def allowed_cores() -> int:
    """Cores that this process may use, at least 1: those it may run on, or the least quota of a control group.

    A quota is the processor time that a group may take in each period, counted in cores and rounded up: half a core is
    one. Source: the kernel's documentation, scheduler/sched-bwc.rst and admin-guide/cgroup-v2.rst.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for group in _groups("cpu"):
        limits = [
            _numbers(group / "cpu.max"),  # of version 2: quota and period
            _numbers(group / "cpu.cfs_quota_us") + _numbers(group / "cpu.cfs_period_us"),  # of version 1
        ]
        for limit in limits:
            if len(limit) == 2 and all(limit):
                quota, period = limit
                cores = min(cores, -(-quota // period))
    return cores


def default_cache_bytes(workers: int) -> int:
    """The window cache of one worker process: a quarter of the allowed memory shared by all, at least 64 MiB."""
    return max(_LEAST_CACHE, allowed_memory() // 4 // workers)


def default_decode_threads() -> int:
    """The threads of one worker process that read, decode and send windows: the allowed cores and 1, at most 256."""
    # One more than the cores: a thread that waits for the volume leaves its core to another.
    return min(_MOST_THREADS, allowed_cores() + 1)


def _groups(controller: str) -> Iterator[Path]:
    """The folders of control groups that may have limits: each of the process's groups up to the root of its hierarchy.

    Hierarchies are that of version 2, alone or beside version 1, and that of the controller in version 1. Inside a
    container the group's path may be the host's, which is not there: the container's own group is the root.
    """
    own = _own_groups()
    for hierarchy, member in (("", ""), ("unified", ""), (controller, controller)):
        group = own.get(member, PurePosixPath("/"))
        if ".." in group.parts:  # the process was moved out of what its container can see
            group = PurePosixPath("/")
        for level in (group, *group.parents):
            yield _HIERARCHIES / hierarchy / level.relative_to("/")


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


def _numbers(file: Path) -> list[int]:
    """The numbers that a file has; none where it is not there or has words, as "max" and -1 for no limit."""
    try:
        words = file.read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return []
    return [int(word) for word in words] if all(word.isdecimal() for word in words) else []
