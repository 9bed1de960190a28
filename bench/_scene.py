"""A scene of the load benchmark: a server, attacks on it, clients that check every byte, and what is seen meanwhile."""

import re
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import httpx

from bench._files import write_holes
from bench._helper import Helper
from bench._hostile import LARGE
from bench._servers import Usage
from bench._versions import MODELS, put, write_versions

__all__ = ["Act", "Attack", "Scene", "Seen", "Watched", "play", "prepare"]

_VERSIONS = 3
_LARGE_BYTES = 1 << 30
_WATCH_SECONDS = 0.1
_SETTLE_SECONDS = 20
_POLL_SECONDS = 0.25
_NOTHING = Usage(0, 0, 0)


class Watched(Protocol):
    """A server that can be watched from outside."""

    port: int

    def usage(self) -> Usage:
        """What it holds now."""


@dataclass(frozen=True, slots=True)
class Attack:
    """Hostile clients, as `bench._hostile` has them. 0 rounds: as many as there are until the scene ends."""

    kind: str
    count: int
    seconds: float = 0.0
    rounds: int = 1


@dataclass(frozen=True, slots=True)
class Act:
    """What happens at the same time, until ``seconds`` are over and all attacks with a number of rounds have ended.

    ``clients`` are processes, connections of each, and seconds that each pauses between its requests. A model is
    replaced by another version every ``replace_seconds``.
    """

    attacks: Sequence[Attack] = ()
    clients: tuple[int, int, float] = (1, 2, 0.01)
    seconds: float = 0.0
    replace_seconds: float = 30.0


@dataclass(frozen=True, slots=True)
class Scene:
    """A name, settings of the server, what warms it up, and the act that counts.

    After each the server must hold the same for ``rest_seconds``, or time for that is up.
    """

    name: str
    settings: dict[str, object]
    warm_up: Act | None
    act: Act
    rest_seconds: float = 2.0


@dataclass(slots=True)
class Seen:
    """What was seen of an act.

    ``before``, ``peak`` and ``after`` are what the server held; ``cached``: how many bytes more of windows its cache
    held after than before. ``health`` are milliseconds.
    """

    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    attackers: dict[str, Counter[str]] = field(default_factory=dict)
    health: list[float] = field(default_factory=list)
    health_failed: int = 0
    asker_latest: float = 0.0
    replaced: int = 0
    before: Usage = _NOTHING
    peak: Usage = _NOTHING
    after: Usage = _NOTHING
    cached: int = 0
    streams_open: int = 0

    @property
    def errors(self) -> dict[str, int]:
        """Requests that were not answered as they should be, by the kind of what came instead."""
        prefix = "error "
        return {kind.removeprefix(prefix): n for kind, n in sorted(self.counts.items()) if kind.startswith(prefix)}

    @property
    def grown(self) -> int:
        """Bytes of memory that the server held more after than before, those of the cache not counted."""
        return self.after.memory - self.before.memory - self.cached


def prepare(folder: Path) -> None:
    """Write into ``folder`` what all scenes need: the versions of the models, and a volume with the first of each."""
    write_versions(folder / "versions", _VERSIONS)
    volume = folder / "volume"
    volume.mkdir()
    for model in MODELS:
        put(folder / "versions", volume, model, 0)
    write_holes(volume / f"{LARGE}.gguf", _LARGE_BYTES // 4)


def play(server: Watched, scene: Scene, folder: Path) -> Seen:
    """Play a scene on a server of the volume that `prepare` wrote: first what warms it up, then the act that counts."""
    if scene.warm_up is not None:
        _act(server, scene.warm_up, folder, seed=1)
    _settle(server, scene.rest_seconds)
    before, cached = server.usage(), _metric(server, "tensortap_cache_bytes")
    with _Peak(server) as peak:
        seen = _act(server, scene.act, folder, seed=2)
    seen.peak = peak.usage
    _settle(server, scene.rest_seconds)
    seen.before, seen.after = before, server.usage()
    seen.cached = _metric(server, "tensortap_cache_bytes") - cached
    seen.streams_open = _metric(server, "tensortap_streams_open")
    return seen


def _act(server: Watched, act: Act, folder: Path, seed: int) -> Seen:
    seen = Seen()
    processes, connections, pause = act.clients
    with ExitStack() as stack:
        checkers = [
            stack.enter_context(
                Helper("_checker", server.port, folder / "versions", connections, seed * 100 + number, pause)
            )
            for number in range(processes)
        ]
        health = stack.enter_context(Helper("_health", server.port))
        attackers = [
            (one, stack.enter_context(Helper("_hostile", one.kind, server.port, one.count, one.seconds, one.rounds)))
            for one in act.attacks
        ]
        for helper in (*checkers, health, *(helper for _, helper in attackers)):
            helper.wait_until_it_begins()
        began = time.monotonic()
        due = began + act.replace_seconds
        while time.monotonic() - began < act.seconds or not all(
            helper.is_over for attack, helper in attackers if attack.rounds
        ):
            time.sleep(_POLL_SECONDS)
            if time.monotonic() >= due:
                seen.replaced += 1
                model, number = MODELS[seen.replaced % len(MODELS)], (seen.replaced + 1) // len(MODELS) % _VERSIONS
                put(folder / "versions", folder / "volume", model, number)
                due += act.replace_seconds
        seen.seconds = time.monotonic() - began
        # The clients first: what they ask for is to be answered while the attacks go on.
        found = [figures for checker in checkers for figures in checker.end()]
        asked = health.end()
        for attack, helper in attackers:
            seen.attackers[attack.kind] = Counter(helper.end())
    seen.health, seen.health_failed, seen.asker_latest = asked["milliseconds"], asked["failed"], asked["latest"]
    _sum_up(seen, found)
    return seen


def _sum_up(seen: Seen, found: list[dict[str, Any]]) -> None:
    """Add what the clients found up, and compare the ETags of what several of them have asked for."""
    etags: dict[str, str] = {}
    for figures in found:
        seen.counts.update(figures["counts"])
        seen.wrong += figures["wrong"]
        for key, value in figures["etags"].items():
            if etags.setdefault(key, value) != value:
                seen.counts["wrong"] += 1
                seen.wrong.append(f"for one client {key} is {etags[key]}, for another {value}")


class _Peak:
    """The most that a server holds, looked at every 0.1 s in a thread; a context manager."""

    def __init__(self, server: Watched) -> None:
        self.usage = server.usage()
        self._server = server
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        while not self._over.wait(_WATCH_SECONDS):
            now, most = self._server.usage(), self.usage
            self.usage = Usage(
                max(now.memory, most.memory),
                max(now.descriptors, most.descriptors),
                max(now.threads, most.threads),
            )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()


def _settle(server: Watched, rest: float) -> None:
    """Wait until the server has let go of what has ended: it holds the same for so many seconds, or time is up."""
    end = time.monotonic() + _SETTLE_SECONDS
    steady, held = 0, server.usage()
    while steady < rest / _POLL_SECONDS and time.monotonic() < end:
        time.sleep(_POLL_SECONDS)
        now = server.usage()
        steady = steady + 1 if now.descriptors == held.descriptors and now.threads == held.threads else 0
        held = now


def _metric(server: Watched, name: str) -> int:
    """The value of a gauge, summed over its labels."""
    with httpx.Client(timeout=60) as client:
        text = client.get(f"http://127.0.0.1:{server.port}/metrics").raise_for_status().text
    return int(sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE)))
