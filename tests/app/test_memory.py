"""The memory that the process may use, as control groups of both versions state it."""

import os
from pathlib import Path

import pytest

from app import memory
from app.memory import allowed_memory, default_cache_bytes

MIB = 1 << 20
MACHINE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class System:
    """A folder in the place of ``/sys/fs/cgroup``, and a file in that of ``/proc/self/cgroup``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.own = root / "own"

    def limit(self, path: str, content: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> System:
    made = System(tmp_path)
    moved = [
        (tmp_path / root.relative_to("/sys/fs/cgroup"), controller, name)
        for root, controller, name in memory._HIERARCHIES
    ]
    monkeypatch.setattr(memory, "_HIERARCHIES", moved)
    monkeypatch.setattr(memory, "_OWN_GROUPS", made.own)
    return made


def test_the_files_are_those_of_the_kernel() -> None:
    assert str(memory._OWN_GROUPS) == "/proc/self/cgroup"
    assert [(str(root), name) for root, _, name in memory._HIERARCHIES] == [
        ("/sys/fs/cgroup", "memory.max"),
        ("/sys/fs/cgroup/unified", "memory.max"),
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
    ]


def test_without_control_groups_it_is_the_machines(system: System) -> None:
    assert allowed_memory() == MACHINE


@pytest.mark.parametrize("file", ["memory.max", "unified/memory.max", "memory/memory.limit_in_bytes"])
@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (f"{100 * MIB}\n", 100 * MIB),
        ("max\n", MACHINE),
        ("9223372036854771712\n", MACHINE),
        ("", MACHINE),
        ("-1\n", MACHINE),
        ("é\n", MACHINE),
    ],
)
def test_a_limit_counts_where_it_is_one(system: System, file: str, content: str, expected: int) -> None:
    system.limit(file, content)
    assert allowed_memory() == expected


def test_the_least_limit_counts(system: System) -> None:
    system.limit("memory.max", f"{200 * MIB}\n")
    system.limit("memory/memory.limit_in_bytes", f"{100 * MIB}\n")
    assert allowed_memory() == 100 * MIB


VERSION_1 = "9:name=systemd:/a\n4:cpu,memory:/a/b:c\n3:cpuset:/other\n0::/\n"
VERSION_2 = "0::/a/b:c\n"


@pytest.mark.parametrize(
    ("own", "folder", "name"),
    [
        (VERSION_1, "memory", "memory.limit_in_bytes"),
        (VERSION_2, ".", "memory.max"),
        (VERSION_2, "unified", "memory.max"),
    ],
    ids=["1", "2", "2 beside 1"],
)
def test_the_limits_of_the_own_group_and_of_all_above_it_count(
    system: System, own: str, folder: str, name: str
) -> None:
    system.own.write_text(own)
    system.limit(f"{folder}/a/b:c/{name}", f"{300 * MIB}\n")
    system.limit(f"{folder}/a/{name}", "max\n")
    system.limit(f"{folder}/other/{name}", f"{10 * MIB}\n")
    assert allowed_memory() == 300 * MIB
    system.limit(f"{folder}/a/{name}", f"{200 * MIB}\n")
    assert allowed_memory() == 200 * MIB
    system.limit(f"{folder}/{name}", f"{100 * MIB}\n")
    assert allowed_memory() == 100 * MIB


@pytest.mark.parametrize(
    "own",
    [
        "0::/docker/0123\n",
        "4:memory:/docker/0123\n",
        "0::/../../x\n4:memory:/../y\n",
        "",
        "nonsense\n::\n:::\n",
        "0::x\n",
    ],
)
def test_in_a_container_the_root_is_its_own_group(system: System, own: str) -> None:
    system.own.write_text(own)
    system.limit("memory.max", f"{200 * MIB}\n")
    assert allowed_memory() == 200 * MIB
    system.limit("memory/memory.limit_in_bytes", f"{100 * MIB}\n")
    assert allowed_memory() == 100 * MIB


@pytest.mark.parametrize(
    ("limit", "workers", "expected"),
    [
        (1024 * MIB, 1, 256 * MIB),
        (1024 * MIB, 2, 128 * MIB),
        (1024 * MIB, 8, 64 * MIB),
        (100 * MIB, 1, 64 * MIB),
        (1000, 1, 64 * MIB),
    ],
)
def test_workers_share_a_quarter(monkeypatch: pytest.MonkeyPatch, limit: int, workers: int, expected: int) -> None:
    monkeypatch.setattr(memory, "allowed_memory", lambda: limit)
    assert default_cache_bytes(workers) == expected
