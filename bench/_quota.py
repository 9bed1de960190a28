"""A share of the processor for a process: a control group with a quota (Linux, as root)."""

import os
import time
from pathlib import Path
from types import TracebackType
from typing import Self

__all__ = ["Quota"]

_V2, _V1 = Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/cpu")
_PERIOD_US = 100_000  # the usual one of container engines


class Quota:
    """A group whose processes get ``cores`` of a core together; a context manager that removes it when they have ended.

    Raises OSError where groups cannot be made.
    """

    def __init__(self, name: str, cores: float) -> None:
        quota = round(cores * _PERIOD_US)
        controllers = _V2 / "cgroup.controllers"
        if controllers.exists() and "cpu" in controllers.read_text(encoding="ascii").split():
            self._folder = _V2 / name
            limits = {"cpu.max": f"{quota} {_PERIOD_US}"}
        else:
            self._folder = _V1 / name
            limits = {"cpu.cfs_period_us": f"{_PERIOD_US}", "cpu.cfs_quota_us": f"{quota}"}
        self._folder.mkdir()
        for file, text in limits.items():
            (self._folder / file).write_text(text, encoding="ascii")

    def take(self, pid: int) -> None:
        """Put a process and its threads into the group."""
        (self._folder / "cgroup.procs").write_text(f"{pid}", encoding="ascii")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        until = time.monotonic() + 10
        while (self._folder / "cgroup.procs").read_text(encoding="ascii") and time.monotonic() < until:
            time.sleep(0.05)
        os.rmdir(self._folder)
