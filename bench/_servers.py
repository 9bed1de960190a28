"""The servers that are measured: tensortap, nginx, and what else a command starts on a port.

What they log goes to /dev/null, since a reader of it would take time from what is measured.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

__all__ = ["Running", "Usage", "cpu_seconds", "free_port", "nginx", "tensortap", "usage"]

_SCHEDULED = 2  # CPUCLOCK_SCHED of the kernel


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process and its children hold: bytes of resident memory, open descriptors, threads."""

    memory: int
    descriptors: int
    threads: int


class Running:
    """A server in processes of its own; a context manager that stops it.

    Raises RuntimeError if nothing listens on the port within 30 seconds.
    """

    def __init__(self, command: Sequence[str], port: int, environment: Mapping[str, str] | None = None) -> None:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("TENSORTAP_")}
        self.port = port
        self._process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**inherited, **(environment or {})},
        )
        deadline = time.monotonic() + 30
        while not _listens(port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"no server on port {port}; run it to see why: {' '.join(command)}")
            time.sleep(0.02)

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.port}"

    def cpu_seconds(self) -> float:
        """Processor time of the process so far; its children are not counted."""
        return cpu_seconds(self._process.pid)

    def memory(self, name: str = "VmRSS") -> int:
        """Bytes of memory of the process: VmRSS is now, VmHWM the most since the start."""
        for line in Path(f"/proc/{self._process.pid}/status").read_text(encoding="utf-8").splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024
        raise LookupError(name)

    def usage(self) -> Usage:
        """What the server holds, its worker processes included."""
        return usage(self._process.pid)

    def stop(self) -> None:
        """End it: SIGTERM, and SIGKILL if that is not enough."""
        self._process.terminate()
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()


def cpu_seconds(pid: int) -> float:
    """Processor time of a process and all its threads so far, user and system."""
    # The clock that clock_getcpuclockid(3) names: exact, where /proc/PID/stat counts in steps of 10 ms.
    return time.clock_gettime(~pid << 3 | _SCHEDULED)


def usage(pid: int) -> Usage:
    """What a process and its children hold now. Pages that they share count for each of them."""
    memory = descriptors = threads = 0
    for one in _family(pid):
        try:
            status = Path(f"/proc/{one}/status").read_text(encoding="utf-8")
            descriptors += len(os.listdir(f"/proc/{one}/fd"))
        except (FileNotFoundError, ProcessLookupError):  # it has just ended
            continue
        fields = dict(line.split(":", 1) for line in status.splitlines())
        memory += int(fields.get("VmRSS", "0 kB").split()[0]) * 1024
        threads += int(fields["Threads"])
    return Usage(memory, descriptors, threads)


def _family(pid: int) -> set[int]:
    """A process and all that it has started, and those have."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            # The name, in parentheses, may have any character; the parent is the second field after it.
            parents[int(path.parent.name)] = int(path.read_text(encoding="utf-8").rpartition(")")[2].split()[1])
    family = {pid}
    while more := {child for child, parent in parents.items() if parent in family} - family:
        family |= more
    return family


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def tensortap(root: Path, **settings: object) -> Running:
    """The service on the models of a folder; keyword arguments are its settings."""
    port = free_port()
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    return Running([sys.executable, "-m", "app", "serve", f"--root={root}", f"--port={port}", *flags], port)


def nginx(root: Path) -> Running:
    """Nginx on the files of a folder, as Debian sets it up (sendfile and tcp_nopush on), with one worker process."""
    port = free_port()
    user = "user root;" if os.geteuid() == 0 else ""  # else its worker could not read a folder of root's
    configuration = root / "nginx.conf"
    configuration.write_text(
        f"daemon off; {user} pid {root}/nginx.pid; error_log /dev/null; worker_processes 1;\n"
        "events { worker_connections 768; }\n"
        "http {\n"
        "    sendfile on; tcp_nopush on; default_type application/octet-stream; access_log /dev/null;\n"
        f"    client_body_temp_path {root}/client; proxy_temp_path {root}/proxy; fastcgi_temp_path {root}/fastcgi;\n"
        f"    uwsgi_temp_path {root}/uwsgi; scgi_temp_path {root}/scgi;\n"
        f"    server {{ listen 127.0.0.1:{port}; root {root}; }}\n"
        "}\n",
        encoding="utf-8",
    )
    return Running(["nginx", "-p", str(root), "-c", str(configuration)], port)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
