"""The memory and the cores that the process may use, as control groups of both versions state them."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from app import machine
from app.machine import allowed_cores, allowed_memory, default_cache_bytes, default_decode_threads
from app.settings import Settings

MIB = 1 << 20
CORES = 16
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
    monkeypatch.setattr(machine, "_HIERARCHIES", made.root)
    monkeypatch.setattr(machine, "_OWN_GROUPS", made.own)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(CORES)))
    return made


def test_the_files_are_those_of_the_kernel() -> None:
    assert str(machine._OWN_GROUPS) == "/proc/self/cgroup"
    assert str(machine._HIERARCHIES) == "/sys/fs/cgroup"


def test_without_control_groups_it_is_the_machines(system: System) -> None:
    assert allowed_memory() == MACHINE
    assert allowed_cores() == CORES


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
    monkeypatch.setattr(machine, "allowed_memory", lambda: limit)
    assert default_cache_bytes(workers) == expected


def quota(system: System, version: str, group: str, quota: int | None, period: int = 100_000) -> None:
    """Allow a group ``quota`` microseconds of processor time in each period; None: any."""
    if version == "1":
        system.limit(f"cpu/{group}/cpu.cfs_quota_us", f"{-1 if quota is None else quota}\n")
        system.limit(f"cpu/{group}/cpu.cfs_period_us", f"{period}\n")
    else:
        folder = "unified" if version == "2 beside 1" else "."
        system.limit(f"{folder}/{group}/cpu.max", f"{'max' if quota is None else quota} {period}\n")


@pytest.fixture(params=["1", "2", "2 beside 1"])
def version(request: pytest.FixtureRequest, system: System) -> str:
    system.own.write_text(VERSION_1 if request.param == "1" else VERSION_2)
    return str(request.param)


@pytest.mark.parametrize(
    ("limit", "period", "expected"),
    [
        (100_000, 100_000, 1),
        (50_000, 100_000, 1),
        (1_000, 1_000_000, 1),
        (100_001, 100_000, 2),
        (150_000, 100_000, 2),
        (250_000, 50_000, 5),
        (64_000_000, 100_000, CORES),
        (None, 100_000, CORES),
    ],
)
def test_a_quota_counts_in_whole_cores(
    system: System, version: str, limit: int | None, period: int, expected: int
) -> None:
    quota(system, version, ".", limit, period)
    assert allowed_cores() == expected


def test_the_quotas_of_the_own_group_and_of_all_above_it_count(system: System, version: str) -> None:
    quota(system, version, "a/b:c", 350_000)
    quota(system, version, "a", None)
    quota(system, version, "other", 10_000)
    assert allowed_cores() == 4
    quota(system, version, "a", 250_000)
    assert allowed_cores() == 3
    quota(system, version, ".", 50_000)
    assert allowed_cores() == 1


@pytest.mark.parametrize(
    "content", ["", "max\n", "100000\n", "0 100000\n", "100000 0\n", "-1 100000\n", "é\n", "x y\n"]
)
def test_what_states_no_quota_is_none(system: System, content: str) -> None:
    system.limit("cpu.max", content)
    system.limit("cpu/cpu.cfs_quota_us", content)
    assert allowed_cores() == CORES


def test_cores_that_the_process_may_not_run_on_do_not_count(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    quota(system, "2", ".", 400_000)
    assert allowed_cores() == 1


@pytest.mark.parametrize(("cores", "expected"), [(1, 2), (2, 3), (64, 65), (256, 256), (1000, 256)])
def test_threads_follow_the_cores(monkeypatch: pytest.MonkeyPatch, cores: int, expected: int) -> None:
    """Also on machines with more cores than the setting allows threads: workers are handed the default as a setting."""
    monkeypatch.setattr(machine, "allowed_cores", lambda: cores)
    assert default_decode_threads() == expected
    assert Settings(decode_threads=default_decode_threads()).decode_threads == expected


@pytest.fixture
def group_of_version_1() -> Iterator[Path]:
    """A real control group with a core and a half, below that of this process."""
    own = machine._own_groups().get("cpu")
    if own is None:
        pytest.skip("this system has no cpu controller of version 1")
    above = Path("/sys/fs/cgroup/cpu", own.relative_to("/"))
    folder = above / f"tensortap-test-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / "cpu.cfs_quota_us").write_text("150000")
    except OSError as error:
        with suppress(OSError):
            folder.rmdir()
        pytest.skip(f"control groups cannot be made here: {error}")
    try:
        yield folder
    finally:
        folder.rmdir()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="with one core no quota can be told from it")
def test_a_real_group_has_its_quota_counted(group_of_version_1: Path) -> None:
    program = (
        "import os, sys; open(sys.argv[1], 'w').write(str(os.getpid()));"
        "from app.machine import *; print([allowed_cores(), default_decode_threads()])"
    )
    for limit, expected in [("100000", [1, 2]), ("20000", [1, 2]), ("110000", [2, 3])]:
        (group_of_version_1 / "cpu.cfs_quota_us").write_text(limit)
        command = [sys.executable, "-c", program, str(group_of_version_1 / "cgroup.procs")]
        result = subprocess.run(command, capture_output=True, text=True, check=True)
        assert json.loads(result.stdout) == expected


def test_the_service_starts_no_thread_for_each_core_of_the_host() -> None:
    """As numpy's linear algebra would; where the number of threads is limited it then fails to load."""
    program = (
        "import os, runpy, sys; sys.argv = ['app', 'settings']\n"
        "try: runpy.run_module('app', run_name='__main__')\n"
        "except SystemExit: pass\n"
        "import app.server, threading; assert 'numpy' in sys.modules\n"
        "print('threads', len(os.listdir('/proc/self/task')), threading.active_count())"
    )
    variables = {name: value for name, value in os.environ.items() if not name.startswith("OPENBLAS")}
    result = subprocess.run([sys.executable, "-c", program], env=variables, capture_output=True, text=True, check=True)
    assert result.stdout.endswith("threads 1 1\n")
