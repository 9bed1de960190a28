"""A real server for tests: ``python -m app serve`` in a process of its own, on a free port."""

import os
import random
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

__all__ = ["NO_TLS", "Server", "free_port", "is_open"]

NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For clients that need none: httpx would take 50 ms to read certificates."""

_given: set[int] = set()
_STARTED = re.compile(r"running on http://[^:]+:(\d+)")


def free_port() -> int:
    """A port of this machine that nobody listens on, and that the system gives to no client's connection.

    It is given once: it may be listened on a while later only. Tests that run beside these have others.
    """
    worker, workers = os.environ.get("PYTEST_XDIST_WORKER", "gw0"), os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")
    ports = range(20_000 + int(worker.removeprefix("gw")), 32_768, int(workers))
    while True:
        port = random.choice(ports)
        if port in _given:
            continue
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            _given.add(port)
            return port


def is_open(port: int) -> bool:
    """Whether somebody listens on a port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Server:
    """A server on ``root``; keyword arguments are its settings. A context manager that stops it at the end."""

    def __init__(self, root: Path, **settings: object) -> None:
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TENSORTAP_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "app", "serve", f"--root={root}", "--port=0", *flags],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.log: list[str] = []
        self._started = threading.Event()
        self.port = 0
        self._reading = threading.Thread(target=self._read_log, daemon=True)
        self._reading.start()
        if not self._started.wait(30) or not self.port:
            self.stop()
            raise RuntimeError("the server did not start:\n" + "".join(self.log))
        self.url = f"http://127.0.0.1:{self.port}"
        self.client = httpx.Client(base_url=self.url, timeout=60, verify=NO_TLS)

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)
            if match := _STARTED.search(line):
                self.port = int(match[1])
                self._started.set()
        self._started.set()

    def memory(self, field: str = "VmRSS") -> int:
        """Bytes of memory of the server process: VmRSS is now, VmHWM the most so far."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
        raise LookupError(field)

    def open_files(self) -> int:
        """How many descriptors the server process has."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def stop(self, timeout: float = 30) -> int:
        """Send SIGTERM, wait, and give the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout)
        self._reading.join(5)
        if self.process.stderr is not None:
            self.process.stderr.close()
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.client.close()
        try:
            self.stop()
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
