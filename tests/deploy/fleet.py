"""A fleet: real replicas behind a real nginx that has the configuration of deploy/nginx."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import httpx
import numpy as np
from prometheus_client.parser import text_string_to_metric_families

import decoders
from decoders import GGMLType
from tests import builder
from tests.deploy.network import Network
from tests.programs.conftest import program
from tests.server import free_port
from tests.waiting import eventually

__all__ = [
    "MODEL",
    "N_TENSORS",
    "ROW",
    "ROWS",
    "Fleet",
    "Replica",
    "data",
    "model",
    "nginx_configuration",
    "settled",
    "weights",
]

DEPLOY = Path(__file__).parents[2] / "deploy"
MODEL, N_TENSORS, ROW, ROWS = "team/fleet", 12, 4096, 512  # 8 windows each
_READY_SECONDS = 30
T = TypeVar("T")


def _blocks(version: int, tensor: int) -> bytes:
    made = np.random.default_rng([version, tensor]).integers(0, 256, (ROW * ROWS // 32, 18), np.uint8)
    made[:, 1] &= 0x3F  # scales below 2
    return made.tobytes()


def model(version: int = 0) -> bytes:
    """A file of ``N_TENSORS`` tensors of Q4_0, all different in each version."""
    tensors = [(f"t{n:02}", [ROW, ROWS], GGMLType.Q4_0, _blocks(version, n)) for n in range(N_TENSORS)]
    return builder.build(tensors, [("general.architecture", builder.STRING, "llama")])


def weights(version: int = 0) -> list[np.ndarray[tuple[int, int], np.dtype[np.float32]]]:
    """What its tensors hold, each of shape (ROWS, ROW)."""
    return [decoders.dequantize(_blocks(version, n), GGMLType.Q4_0).reshape(ROWS, ROW) for n in range(N_TENSORS)]


def data(tensor: int) -> str:
    """The path of a tensor's weights."""
    return f"/v1/models/{MODEL}/-/data/t{tensor:02}"


def nginx_configuration(folder: Path, listen: str, replicas: Sequence[str]) -> Path:
    """The configuration of deploy/nginx for these replicas, with all that nginx writes in ``folder``."""
    text = (DEPLOY / "nginx" / "tensortap.conf").read_text(encoding="utf-8")
    text = _in(folder, text).replace("listen 80;", f"listen {listen};")
    upstreams = (DEPLOY / "nginx" / "replicas.conf").read_text(encoding="utf-8")
    for more in replicas[3:]:
        upstreams = re.sub(
            r"(^ +server )127\.0\.0\.1:8001( .*\n)", rf"\g<0>\g<1>{more}\g<2>", upstreams, flags=re.MULTILINE
        )
    for number in range(3):
        line = re.compile(rf"^( +server )127\.0\.0\.1:{8001 + number}( .*\n)", re.MULTILINE)
        upstreams = line.sub(rf"\g<1>{replicas[number]}\g<2>" if number < len(replicas) else "", upstreams)
    path = folder / "nginx.conf"
    (folder / "cache").mkdir(exist_ok=True)
    main = (DEPLOY / "nginx" / "nginx.conf").read_text(encoding="utf-8")
    main = re.sub(r"^ +include .*\n", "", main, flags=re.MULTILINE).rstrip().removesuffix("}")
    main = _in(folder, main).replace("/dev/stderr warn", f"{folder}/error.log")
    path.write_text(f"daemon off; user root; {main}\n{text}\n{upstreams}\n}}\n")
    return path


def _in(folder: Path, text: str) -> str:
    return text.replace("/var/cache/nginx", f"{folder}/cache").replace("/run/nginx", str(folder))


def settled(read: Callable[[], T]) -> T:
    """What ``read`` gives once it has given the same for a second: of what is counted a moment after an answer."""
    last, since = read(), time.monotonic()

    def has_settled() -> bool:
        nonlocal last, since
        time.sleep(0.1)
        if (now := read()) != last:
            last, since = now, time.monotonic()
        return time.monotonic() > since + 1

    eventually(has_settled)
    return last


class Replica:
    """One server process, which may be killed, stopped, paused, and started again where it was."""

    def __init__(
        self, address: str, port: int, log: Path, command: Sequence[str], settings: Mapping[str, object]
    ) -> None:
        self.authority = f"{address}:{port}"
        self.process: subprocess.Popen[bytes] | None = None
        self._log = log
        settings = {"host": address, "port": port, "cache_bytes": "128MiB", "grace_seconds": 20, **settings}
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
        self._command = [*command, sys.executable, "-m", "app", "serve", *flags]
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("TENSORTAP_")}

    def start(self) -> None:
        """Start it, and wait until it is ready."""
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log, env=self._environment)
        until = time.monotonic() + _READY_SECONDS
        while time.monotonic() < until and self.process.poll() is None:
            try:
                if httpx.get(f"http://{self.authority}/readyz", timeout=5).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.05)
        raise RuntimeError(f"the replica did not start:\n{self._log.read_text()}")

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    def wait(self) -> int:
        """Wait for its end, and give its exit code."""
        assert self.process is not None
        return self.process.wait(30)

    def log(self) -> str:
        """What it has logged."""
        return self._log.read_text(encoding="utf-8")

    def count(self, name: str, labels: Mapping[str, str] | None = None) -> float:
        """The sum of the samples of one of its metrics that have these labels."""
        wanted = (labels or {}).items()
        text = httpx.get(f"http://{self.authority}/metrics", timeout=10).text
        samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
        return sum(sample.value for sample in samples if sample.name == name and wanted <= sample.labels.items())


class Fleet:
    """Replicas and nginx before them; a context manager.

    Parameters
    ----------
    folder
        An empty folder for what they write.
    roots
        The volume of each replica.
    network
        Run each replica on a host of its own, and nginx on one more, instead of all on this one.
    settings
        More settings of the replicas.
    """

    def __init__(
        self,
        folder: Path,
        roots: Sequence[Path],
        network: Network | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        self._stack = ExitStack()
        self.folder = folder
        self._network = network
        self._at = (network.address(len(roots)), 80) if network else ("127.0.0.1", free_port())
        self.url = "http://{}:{}".format(*self._at)
        self.replicas = [
            Replica(
                network.address(number) if network else "127.0.0.1",
                free_port(),
                folder / f"replica{number}.log",
                network.command(number) if network else [],
                {"root": root, **(settings or {})},
            )
            for number, root in enumerate(roots)
        ]

    def connect(self) -> socket.socket:
        """A connection to nginx."""
        return socket.create_connection(self._at, timeout=60)

    @property
    def port(self) -> int:
        """nginx's port."""
        return self._at[1]

    def proxies(self) -> list[int]:
        """The processes of nginx."""
        master = int((self.folder / "pid").read_text())
        return [master, *map(int, Path(f"/proc/{master}/task/{master}/children").read_text().split())]

    def errors(self) -> list[str]:
        """What nginx has logged of errors."""
        path = self.folder / "error.log"
        return path.read_text().splitlines() if path.exists() else []

    def count(self, name: str, labels: Mapping[str, str] | None = None) -> list[float]:
        """A metric of each replica."""
        return [replica.count(name, labels) for replica in self.replicas]

    def _start_nginx(self) -> subprocess.Popen[bytes]:
        """On a host of its own as a container would, with deploy/nginx as it is; else with other paths and ports."""
        replicas = [replica.authority for replica in self.replicas]
        if self._network is None:
            path = nginx_configuration(self.folder, ":".join(map(str, self._at)), replicas)
            return subprocess.Popen([program("nginx"), "-c", path], stderr=subprocess.DEVNULL)
        folders = "mount -t tmpfs none /run && mount -t tmpfs none /var/cache && mkdir /var/cache/nginx"
        command = [
            *self._network.command(len(replicas)),
            "unshare",
            "--mount",
            "sh",
            "-c",
            f'{folders} && exec sh "$0"',
        ]
        with (self.folder / "error.log").open("wb") as log:
            environment = {**os.environ, "REPLICAS": " ".join(replicas)}
            return subprocess.Popen([*command, DEPLOY / "nginx" / "start.sh"], stderr=log, env=environment)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(self._at) == 0

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for replica in self.replicas:
                stack.callback(_end, replica)
                replica.start()
            process = self._start_nginx()
            stack.callback(process.wait, 10)
            stack.callback(process.terminate)
            until = time.monotonic() + _READY_SECONDS
            while not self._listens():
                if process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError("nginx did not start:\n" + "\n".join(self.errors()))
                time.sleep(0.05)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()


def _end(replica: Replica) -> None:
    if replica.process is not None and replica.process.poll() is None:
        replica.signal(signal.SIGCONT)
        replica.signal(signal.SIGKILL)
        replica.wait()
