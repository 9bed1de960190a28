"""What happens to a fleet under load: ``python -m tests.deploy.chaos`` runs every scene and prints what it counted.

Whoever asks checks every byte. Three kinds of clients ask: plain ones for small answers, which nginx can ask another
replica for as long as none of it has been sent on; curl for tensors, which goes on where it was cut off, and our own
client, which does so itself. What they ask for is hardly ever the same: the shared cache spares the replicas nothing.
"""

import argparse
import random
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import numpy as np

from tensortap import Client
from tests.deploy.fleet import MODEL, N_TENSORS, ROW, ROWS, Fleet, data, model, weights
from tests.deploy.network import Network
from tests.programs.conftest import program

__all__ = ["SCENES", "Counts", "fleet", "load"]

_PLAIN, _READERS, _DOWNLOADS = 8, 2, 1
_TRIES = 20


@dataclass
class Counts:
    """What clients met: requests by kind, failures with their reasons, answers that broke off, how long it took."""

    requests: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    cut: int = 0
    resumed: int = 0
    slow: int = 0
    slowest: float = 0.0

    def __str__(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.requests.items()))
        return (
            f"{self.requests.total()} requests ({kinds}), {len(self.failures)} failed, {self.cut} cut off, "
            f"{self.slow} took more than a second, the slowest {self.slowest:.1f} s, {self.resumed} downloads resumed"
        )


class _Plain:
    """A client of small answers: rows as raw and npy, posted rows, HEAD, and a tensor's entry."""

    def __init__(self, url: str, seed: int) -> None:
        self._random = random.Random(seed)
        self._client = httpx.Client(base_url=url, timeout=60)
        self._weights = weights()

    def ask(self) -> tuple[str, str]:
        """One request: its kind, and what was wrong with its answer."""
        n, row = self._random.randrange(N_TENSORS), self._random.randrange(ROWS - 1)
        wanted = self._weights[n][row : row + 2].tobytes()
        kind = self._random.choice(("rows", "rows", "rows", "posted rows", "HEAD", "entry"))
        if kind == "rows":
            answer = self._client.get(data(n), params={"rows": f"{row}:{row + 2}"})
            good = answer.content == wanted
        elif kind == "posted rows":
            answer = self._client.post(data(n), json={"rows": [row, row + 1]})
            good = answer.content == wanted
        elif kind == "HEAD":
            answer = self._client.head(data(n))
            good = answer.headers.get("content-length") == str(ROW * ROWS * 4)
        else:
            answer = self._client.get(f"/v1/models/{MODEL}/-/tensors/t{n:02}")
            good = answer.is_success and answer.json()["shape"] == [ROWS, ROW]
        return (
            kind,
            "" if answer.status_code == 200 and good else f"{kind}: {answer.status_code} {answer.content[:200]!r}",
        )

    def close(self) -> None:
        self._client.close()


class _Reader:
    """Our own client, which reads tensors from some row on, in parts."""

    def __init__(self, url: str, seed: int) -> None:
        self._random = random.Random(seed)
        self._client = Client(url, cache_bytes=0, retries=_TRIES)
        self._weights = weights()

    def ask(self) -> tuple[str, str]:
        n, row = self._random.randrange(N_TENSORS), self._random.randrange(ROWS // 2)
        got = self._client[MODEL][f"t{n:02}"][row:]
        good = np.array_equal(got, self._weights[n][row:])
        return "tensors by tensortap", "" if good else f"wrong weights of t{n:02} from row {row}"

    def close(self) -> None:
        self._client.close()


class _Download:
    """curl, which is started again to go on where it was cut off; with options of its own if need be."""

    def __init__(self, url: str, seed: int, *options: str) -> None:
        self._random = random.Random(seed)
        self._url = url
        self._weights = weights()
        self._options = options
        self._folder = tempfile.TemporaryDirectory()
        self.resumed = 0

    def ask(self) -> tuple[str, str]:
        n, row = self._random.randrange(N_TENSORS), self._random.randrange(ROWS // 2)
        return self.fetch(f"{data(n)}?rows={row}:", self._weights[n][row:].tobytes())

    def fetch(self, path: str, wanted: bytes) -> tuple[str, str]:
        """Fetch a path: the kind of request, and what was wrong with its answer."""
        target, kind = Path(self._folder.name, "out"), "tensors by curl"
        target.unlink(missing_ok=True)
        command = [program("curl"), "-sSf", "-C", "-", "--limit-rate", "20M", *self._options, "-o", str(target)]
        for tried in range(_TRIES):
            run = subprocess.run([*command, self._url + path], check=False, capture_output=True, timeout=60)
            if run.returncode == 0:
                good = target.read_bytes() == wanted
                return kind, "" if good else f"{kind}: wrong bytes of {path} after {tried} cuts"
            if run.returncode != 18:  # CURLE_PARTIAL_FILE: it was cut off
                return kind, f"{kind}: {run.stderr!r}"
            self.resumed += 1
        return kind, f"{kind}: cut off {_TRIES} times"

    def close(self) -> None:
        self._folder.cleanup()


@contextmanager
def load(url: str) -> Iterator[Counts]:
    """Clients that ask for as long as the context lasts; what they met is complete after it."""
    counts, lock, ended = Counts(), threading.Lock(), threading.Event()

    def run(client: _Plain | _Reader | _Download) -> None:
        while not ended.is_set():
            began = time.monotonic()
            try:
                kind, wrong = client.ask()
            except httpx.RemoteProtocolError:  # fewer bytes than the length that was promised
                kind, wrong = "cut off", ""
                with lock:
                    counts.cut += 1
            except Exception as error:  # whatever a client meets is counted
                kind, wrong = "broken", f"{type(client).__name__}: {error!r}"
            with lock:
                counts.requests[kind] += 1
                seconds = time.monotonic() - began
                counts.slow += seconds > 1
                counts.slowest = max(counts.slowest, seconds)
                if wrong:
                    counts.failures.append(wrong)
        if isinstance(client, _Download):
            counts.resumed += client.resumed
        client.close()

    kinds = [_Plain] * _PLAIN + [_Reader] * _READERS + [_Download] * _DOWNLOADS
    clients: list[_Plain | _Reader | _Download] = [kind(url, seed) for seed, kind in enumerate(kinds)]
    threads = [threading.Thread(target=run, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    try:
        yield counts
    finally:
        ended.set()
        for thread in threads:
            thread.join(120)
    assert not any(thread.is_alive() for thread in threads), "a client waits for an answer yet"


@contextmanager
def fleet(n_replicas: int = 3, *, apart: bool = False) -> Iterator[tuple[Fleet, Network | None]]:
    """A fleet on one volume, on this host or each on a host of its own."""
    with tempfile.TemporaryDirectory(prefix="fleet") as name:
        folder = Path(name)
        path = folder / "volume" / f"{MODEL}.gguf"
        path.parent.mkdir(parents=True)
        path.write_bytes(model())
        if not apart:
            with Fleet(folder, [folder / "volume"] * n_replicas) as running:
                yield running, None
            return
        with Network(n_replicas + 1) as network, Fleet(folder, [folder / "volume"] * n_replicas, network) as running:
            yield running, network


def kill(fleet: Fleet, _: Network | None, rounds: int) -> None:
    """kill -9 of one replica after the other, each started again two seconds later."""
    for number in range(rounds):
        replica = fleet.replicas[number % len(fleet.replicas)]
        time.sleep(1)
        replica.signal(signal.SIGKILL)
        replica.wait()
        time.sleep(2)
        replica.start()


def roll(fleet: Fleet, _: Network | None, rounds: int) -> None:
    """A rolling restart: SIGTERM to one after the other; each is ready again before the next."""
    for number in range(rounds):
        replica = fleet.replicas[number % len(fleet.replicas)]
        time.sleep(1)
        replica.signal(signal.SIGTERM)
        assert replica.wait() == 0
        replica.start()


def hang(fleet: Fleet, _: Network | None, rounds: int) -> None:
    """One replica after the other accepts connections and says nothing for eight seconds."""
    for number in range(rounds):
        replica = fleet.replicas[number % len(fleet.replicas)]
        time.sleep(1)
        replica.signal(signal.SIGSTOP)
        time.sleep(8)
        replica.signal(signal.SIGCONT)


def unplug(fleet: Fleet, network: Network | None, rounds: int) -> None:
    """The cable of one host after the other is pulled for five seconds."""
    assert network is not None
    for number in range(rounds):
        time.sleep(1)
        network.unplug(number % len(fleet.replicas))
        time.sleep(5)
        network.plug(number % len(fleet.replicas))


def slow(fleet: Fleet, network: Network | None, rounds: int) -> None:
    """One host after the other sends no more than 250 bytes a second, for eight seconds."""
    assert network is not None
    for number in range(rounds):
        time.sleep(1)
        network.throttle(number % len(fleet.replicas), 2000)
        time.sleep(8)
        network.throttle(number % len(fleet.replicas), 10**9)


SCENES: dict[str, tuple[Callable[[Fleet, Network | None, int], None], bool]] = {
    "kill": (kill, False),
    "kill, on hosts of their own": (kill, True),
    "roll": (roll, False),
    "hang": (hang, False),
    "unplug": (unplug, True),
    "slow": (slow, True),
}
"""Each scene by name, and whether it needs hosts of their own."""


def _main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.deploy.chaos", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("scenes", nargs="*", metavar="SCENE", help=f"of {', '.join(SCENES)}; default: all")
    parser.add_argument("--rounds", type=int, default=6)
    options = parser.parse_args()
    for name in options.scenes or SCENES:
        scene, apart = SCENES[name]
        with fleet(apart=apart) as (running, network):
            with load(running.url) as counts:
                scene(running, network, options.rounds)
                time.sleep(1)
            decoded = running.count("tensortap_windows_decoded_total")
        print(f"{name}: {scene.__doc__}\n    {counts}; windows decoded by each replica at the end: {decoded}")
        for failure in counts.failures[:10]:
            print(f"    {failure}")


if __name__ == "__main__":
    _main()
