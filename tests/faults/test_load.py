"""Short forms of the scenes of ``python -m bench load``, on real servers: no wrong byte, no wait, nothing left."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bench._checker import Checker
from bench._scene import Act, Attack, Scene, Seen, play, prepare
from bench._servers import Usage, usage
from bench._versions import load_versions, put
from tests.server import Server
from tests.waiting import eventually

# Two seconds, since one may pass before a client has its turn that is one of very many on a machine with much to do.
_PATIENCE = {"stall_seconds": 2, "request_seconds": 1}
_STALLED = Attack("stalled", 100, 4.0)  # they are cut after two and a half, or three
_HALF_OPEN = Attack("half-open", 100, 2.5)
_DROPPED = Attack("dropped", 200)
_CLIENTS = (1, 4, 0.0)
_WARM_UP = Act([replace(_DROPPED, count=50)], _CLIENTS, 1.0, 0.2)
_EVERYTHING = Act([replace(one, rounds=0) for one in (_STALLED, _HALF_OPEN, _DROPPED)], _CLIENTS, 3.5, 0.5)
# What a moment of the machine may add: leaks of so many clients would be far more.
_MOST_GROWN = 64 << 20
_LATE_FILES = 20
_MOST_THREADS = 40


class Loaded(Server):
    """A server that says what it holds."""

    def usage(self) -> Usage:
        """What it and its workers hold now."""
        return usage(self.process.pid)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("load")
    prepare(folder)
    return folder


@pytest.fixture(scope="module")
def loaded(folder: Path) -> Iterator[Loaded]:
    with Loaded(folder / "volume", **_PATIENCE) as server:
        play(server, Scene("short", {}, None, _WARM_UP, rest_seconds=0.25), folder)
        yield server


def played(
    server: Loaded, folder: Path, act: Act, *refusals: str, warm_up: Act | None = None, workers: int = 1
) -> Seen:
    """What is seen of an act, when all is well with it; streams may be refused where ``refusals`` has 503.

    Of several workers one may open the models, and the files of its metrics, later than the others.
    """
    server.log.clear()
    seen = play(server, Scene("short", {}, warm_up, act, rest_seconds=0.25), folder)
    assert seen.wrong == []
    assert seen.counts["wrong"] == 0
    assert seen.counts["requests"] > 20
    assert set(seen.errors) <= set(refusals)
    assert seen.health_failed == 0
    assert seen.health
    assert max(seen.health) < 5000

    def is_as_before() -> bool:
        now = server.usage()
        # A file or a connection may just be open, of some hundreds.
        return (
            now.descriptors <= seen.before.descriptors + 2 + _LATE_FILES * (workers - 1)
            and now.threads <= seen.before.threads + _MOST_THREADS
            and now.memory - seen.before.memory - seen.cached < _MOST_GROWN * workers
        )

    eventually(is_as_before)
    eventually(lambda: "\ntensortap_streams_open 0.0\n" in server.client.get("/metrics").text)
    log = "".join(server.log)
    assert "Traceback" not in log
    assert " status=500" not in log
    return seen


def test_readers_that_stall_are_cut_or_refused_and_others_are_served(loaded: Loaded, folder: Path) -> None:
    seen = played(loaded, folder, Act([_STALLED], _CLIENTS, 3.0), "503")
    # 64 streams run, 32 wait for them, and come in when those are cut or are refused.
    ends = seen.attackers["stalled"]
    assert ends.total() == 100
    assert set(ends) <= {"cut", "503", "held"}
    assert ends["cut"] >= 64
    assert ends["503"] >= 4
    assert ends["held"] <= 32


def test_senders_that_never_end_their_request_are_cut(loaded: Loaded, folder: Path) -> None:
    seen = played(loaded, folder, Act([_HALF_OPEN], _CLIENTS, 3.0))
    assert seen.attackers["half-open"] == {"cut": 100}
    # Those that had sent a head were requests, to which nothing was answered.
    posted = [line for line in loaded.log if "method=POST" in line and "client left" in line]
    assert len(posted) >= 40
    assert not [line for line in posted if " status=" in line]


def test_connections_that_are_dropped_in_mid_stream_leave_nothing(loaded: Loaded, folder: Path) -> None:
    seen = played(loaded, folder, Act([_DROPPED], _CLIENTS, 2.0))
    ends = seen.attackers["dropped"]
    assert ends["left"] + ends["left by reset"] == 200
    assert min(ends["left"], ends["left by reset"]) > 50


def test_random_requests_get_one_version_whole_while_models_are_replaced(loaded: Loaded, folder: Path) -> None:
    seen = played(loaded, folder, Act(clients=(2, 4, 0.0), seconds=2.0, replace_seconds=0.3))
    assert seen.replaced >= 4


def test_all_of_it_at_once(loaded: Loaded, folder: Path) -> None:
    seen = played(loaded, folder, _EVERYTHING, "503")
    assert set(seen.attackers) == {"stalled", "half-open", "dropped"}


def test_all_of_it_at_once_with_two_workers(folder: Path) -> None:
    with Loaded(folder / "volume", **_PATIENCE, workers=2) as server:
        eventually(lambda: sum("startup complete" in line for line in server.log) == 2)
        played(server, folder, _EVERYTHING, "503", warm_up=_WARM_UP, workers=2)


def test_what_checks_every_byte_sees_wrong_ones(folder: Path, tmp_path: Path) -> None:
    versions = load_versions(folder / "versions")
    model = "types"
    put(folder / "versions", tmp_path, model, 0)
    path = tmp_path / f"{model}.gguf"
    content = bytearray(path.read_bytes())
    weights = sum(held.stored.size for held in versions[model][0].tensors) // 2  # the data of the last tensors
    content[-weights:] = bytes(byte ^ 1 for byte in content[-weights:])
    path.write_bytes(content)
    with Loaded(tmp_path) as server:
        checker = Checker(server.port, {model: versions[model]}, seed=1)
        until = time.monotonic() + 30
        while not checker.counts["wrong"] and time.monotonic() < until:
            checker.step()
        checker.close()
        assert checker.counts["wrong"]
        assert checker.wrong
