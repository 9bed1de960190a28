"""The memory that the process may use, as control groups of both versions state it."""

import os
from pathlib import Path

import pytest

from app import memory
from app.memory import allowed_memory, default_cache_bytes

MIB = 1 << 20
MACHINE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.fixture
def limit_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    files = tmp_path / "memory.max", tmp_path / "memory.limit_in_bytes"
    monkeypatch.setattr(memory, "_LIMIT_FILES", files)
    return files


def test_the_files_are_those_of_the_kernel() -> None:
    assert [str(path) for path in memory._LIMIT_FILES] == [
        "/sys/fs/cgroup/memory.max",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
    ]


def test_without_control_groups_it_is_the_machines(limit_files: tuple[Path, Path]) -> None:
    assert allowed_memory() == MACHINE


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (f"{100 * MIB}\n", 100 * MIB),
        ("max\n", MACHINE),
        ("9223372036854771712\n", MACHINE),
        ("", MACHINE),
        ("-1\n", MACHINE),
    ],
)
def test_a_limit_counts_where_it_is_one(
    limit_files: tuple[Path, Path], version: int, content: str, expected: int
) -> None:
    limit_files[version].write_text(content)
    assert allowed_memory() == expected


def test_the_least_limit_counts(limit_files: tuple[Path, Path]) -> None:
    limit_files[0].write_text(f"{200 * MIB}\n")
    limit_files[1].write_text(f"{100 * MIB}\n")
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
