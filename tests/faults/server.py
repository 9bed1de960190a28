"""A real server whose system fails when it is told to, and what one asks it: answers that may be cut short."""

import http.client
import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from tests.builder import build
from tests.server import NO_TLS, Server
from tests.waiting import eventually

__all__ = ["FaultyServer", "Reply", "get", "model", "steady", "values"]

WINDOW = 1 << 18
MIB = 1 << 20
_SECONDS = 20


def values(version: int, windows: int = 4) -> bytes:
    """The weights of tensor ``w`` of a version of the model: different in each, wherever one looks."""
    return (np.arange(windows * WINDOW, dtype="<f4") + version * 0.25).astype("<f4").tobytes()


def model(version: int = 0, windows: int = 4) -> bytes:
    """A file with a tensor ``w`` of so many windows of float32, in rows of 1024."""
    return build([("w", [1024, windows * 256], 0, values(version, windows))])


@dataclass(frozen=True)
class Reply:
    """What came back; ``whole``: as many bytes as the Content-Length says."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    whole: bool
    seconds: float

    @property
    def slug(self) -> tuple[int, str]:
        """The status and the name of the problem, of a whole answer that is one."""
        assert self.whole
        if self.status == 503:
            assert int(self.headers["retry-after"]) > 0
        return self.status, json.loads(self.body)["type"].removeprefix("/problems/")

    @property
    def is_refusal(self) -> bool:
        """Whether it is a 503 that says that the service cannot now."""
        return self.status == 503 and self.slug[1] in ("overloaded", "volume-error")


def get(
    port: int, path: str = "/v1/models/m/-/data/w", headers: Mapping[str, str] | None = None, timeout: float = _SECONDS
) -> Reply:
    """Ask on a connection of its own; raises OSError or HTTPException where not even a status comes."""
    began = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request("GET", path, headers=dict(headers or {}))
        answer = connection.getresponse()
        named = {name.lower(): value for name, value in answer.getheaders()}
        try:
            body, whole = answer.read(), True
        except http.client.IncompleteRead as error:
            body, whole = error.partial, False
        except ConnectionResetError:
            body, whole = b"", False
        return Reply(answer.status, named, body, whole, time.monotonic() - began)
    finally:
        connection.close()


class FaultyServer(Server):
    """A server on ``root`` whose system's calls fail by rules; keyword arguments are its settings.

    Parameters
    ----------
    control
        Where the rules are kept: a file of its own.
    rules
        Those from the start.
    through
        A command that the server is run through.
    """

    def __init__(
        self, root: Path, control: Path, *rules: Mapping[str, Any], through: Sequence[str] = (), **settings: object
    ) -> None:
        self.root = root
        self._control = control
        self.rules(*rules)
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TENSORTAP_")}
        environment["OPENBLAS_NUM_THREADS"] = "1"
        program = [sys.executable, "-m", "tests.faults.inject", str(control)]
        self.process = subprocess.Popen(
            [*through, *program, "serve", f"--root={root}", "--port=0", *flags],
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
            code = self.stop()
            raise RuntimeError(f"the server did not start, and ended with {code}:\n" + "".join(self.log))
        self.url = f"http://127.0.0.1:{self.port}"
        self.client = httpx.Client(base_url=self.url, timeout=60, verify=NO_TLS)

    def rules(self, *rules: Mapping[str, Any]) -> None:
        """Put these rules in the place of those there were; none of them: the system works."""
        new = self._control.with_suffix(".new")
        new.write_text(json.dumps(rules))
        os.replace(new, self._control)

    def get(self, path: str = "/v1/models/m/-/data/w", **headers: str) -> Reply:
        """Ask on a connection of its own."""
        return get(self.port, path, {name.replace("_", "-"): value for name, value in headers.items()})

    @contextmanager
    def limited(self, kind: int, most: int) -> Iterator[None]:
        """Lower a limit of the running process (`resource.RLIMIT_*`) for a while."""
        before = resource.prlimit(self.process.pid, kind)
        resource.prlimit(self.process.pid, kind, (most, before[1]))
        try:
            yield
        finally:
            resource.prlimit(self.process.pid, kind, before)

    def hanging(self, call: str) -> int:
        """How many times a call has begun to take the ``seconds`` of a rule, since the log was emptied."""
        return self.log.count(f"{call} hangs\n")

    def threads(self) -> int:
        """How many threads the process has."""
        return len(os.listdir(f"/proc/{self.process.pid}/task"))

    def cpu_seconds(self) -> float:
        """How long the process has computed."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _descriptors(server: FaultyServer) -> tuple[int, Counter[str]]:
    """How many descriptors the process has but those of models, and how many of each model, replaced files included."""
    others, models = 0, Counter[str]()
    for fd in Path(f"/proc/{server.process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            path = os.readlink(fd).removesuffix(" (deleted)")
            if path.endswith(".gguf"):
                models[path] += 1
            else:
                others += 1
    return others, models


@contextmanager
def steady(server: FaultyServer, *, more_memory: int = 64 * MIB) -> Iterator[None]:
    """What happens within leaves nothing behind: descriptors and threads are as many as before, memory about so.

    Models may be open that were not, each once.
    """
    assert server.get("/v1/models/m/-/data/w?rows=0").status == 200
    server.get("/v1/models")
    files, threads, memory = _descriptors(server)[0], server.threads(), server.memory()
    yield
    assert server.process.poll() is None, "".join(server.log[-20:])
    eventually(lambda: server.get("/v1/models/m/-/data/w?rows=0").status == 200)

    def is_as_before() -> bool:
        others, models = _descriptors(server)
        return others <= files and all(count == 1 for count in models.values())

    eventually(is_as_before)
    assert server.threads() == threads
    assert server.memory() <= memory + more_memory
