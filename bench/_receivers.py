"""Several receivers at once: each a process that reads one answer and throws it away."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from bench._servers import cpu_seconds

__all__ = ["Read", "Receivers"]


@dataclass(frozen=True, slots=True)
class Read:
    """What some receivers read together: bytes, from the first request to the last byte in seconds."""

    n_bytes: int
    seconds: float

    @property
    def speed(self) -> float:
        """GB/s."""
        return self.n_bytes / self.seconds / 1e9


class Receivers:
    """``most`` receivers that wait for work; a context manager that ends them."""

    def __init__(self, most: int) -> None:
        command = [sys.executable, "-m", "bench._receiver"]
        self._processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(most)
        ]

    def read(self, port: int, paths: Sequence[str]) -> Read:
        """Have one receiver read each path, all at once. Raises ConnectionError if one cannot."""
        chosen = self._processes[: len(paths)]
        for process, path in zip(chosen, paths, strict=True):
            _tell(process, f"{port} {path}")
        for process in chosen:
            _told(process)
        for process in chosen:
            _tell(process, "go")
        results = [_told(process).split() for process in chosen]
        first = min(float(start) for _, start, _ in results)
        last = max(float(end) for _, _, end in results)
        return Read(sum(int(n_bytes) for n_bytes, _, _ in results), last - first)

    def cpu_seconds(self) -> float:
        """Processor time of all receivers so far."""
        return sum(cpu_seconds(process.pid) for process in self._processes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()


def _tell(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def _told(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise ConnectionError("a receiver ended; its message is above")
    return line
