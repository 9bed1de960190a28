"""A slow volume: only those who need it wait, in a bounded number, and a stop does not wait for it."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.faults.server import FaultyServer, Reply, get, model, steady, values
from tests.waiting import eventually

ALL = ["open", "stat", "lstat", "scandir", "listdir", "preadv"]
# Until the rule is taken away: clients give up after 20 s, requests after 30.
LONG = 15


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyServer]:
    folder = tmp_path_factory.mktemp("slow")
    root = folder / "volume"
    root.mkdir()
    for number, name in enumerate("mnopq"):
        (root / f"{name}.gguf").write_bytes(model(number))
    with FaultyServer(root, folder / "rules", recheck_seconds=0.05, decode_threads=2) as server:
        yield server


@pytest.fixture(autouse=True)
def without_faults(slow: FaultyServer) -> Iterator[None]:
    slow.log.clear()
    yield
    slow.rules()


def rows(server: FaultyServer, name: str, row: int = 0) -> Reply:
    return get(server.port, f"/v1/models/{name}/-/data/w?rows={row}")


def test_what_is_cached_does_not_wait_for_a_slow_volume(slow: FaultyServer) -> None:
    assert rows(slow, "m").body == values(0)[:4096]
    with steady(slow), ThreadPoolExecutor(4) as pool:
        time.sleep(0.1)  # what was seen just now holds no more
        slow.rules({"call": ALL, "path": "volume", "seconds": LONG})
        waiting = [pool.submit(get, slow.port, f"/v1/models{path}") for path in ("", "/x")]
        eventually(lambda: slow.hanging("lstat") >= 2)
        for _ in range(10):
            assert rows(slow, "m").body == values(0)[:4096]
            assert slow.get("/healthz").status == 200
        # Twenty answers came while the first look at the volume lasted.
        assert not any(one.done() for one in waiting)
        slow.rules()
        assert [one.result().status for one in waiting] == [200, 404]


def test_no_more_wait_than_may_and_the_others_are_refused(slow: FaultyServer) -> None:
    assert rows(slow, "m").status == 200
    with steady(slow), ThreadPoolExecutor(160) as pool:
        threads = slow.threads()
        slow.rules({"call": ALL, "path": "volume/hangs", "seconds": LONG})
        waiting = [pool.submit(get, slow.port, f"/v1/models/hangs{number}") for number in range(150)]
        eventually(lambda: sum(one.done() for one in waiting) >= 10)
        assert slow.threads() == threads
        refused = [one.result() for one in waiting if one.done()]
        assert len(refused) < 150
        assert {one.slug for one in refused} == {(503, "overloaded")}
        assert rows(slow, "m").status == 200
        assert slow.get("/healthz").status == 200
        slow.rules()
        assert {one.result().status for one in waiting} == {503, 404}


def test_a_read_that_hangs_holds_up_its_own_answer_only(slow: FaultyServer) -> None:
    for name in "mno":
        assert rows(slow, name).status == 200
    with steady(slow), ThreadPoolExecutor(4) as pool:
        slow.rules({"call": "preadv", "path": "n.gguf", "seconds": LONG})
        hanging = pool.submit(get, slow.port, "/v1/models/n/-/data/w")
        eventually(lambda: slow.hanging("preadv"))
        assert get(slow.port, "/v1/models/o/-/data/w").body == values(2)
        assert slow.get("/readyz").status == 200
        assert not hanging.done()
        slow.rules()
        assert hanging.result().body == values(1)


def test_a_stop_does_not_wait_for_a_volume_that_hangs(tmp_path: Path) -> None:
    (tmp_path / "volume").mkdir()
    for number, name in enumerate("mn"):
        (tmp_path / "volume" / f"{name}.gguf").write_bytes(model(number))
    with FaultyServer(tmp_path / "volume", tmp_path / "rules", recheck_seconds=3600, grace_seconds=1) as server:
        for name in "mn":
            assert rows(server, name).status == 200
        server.rules(
            {"call": "preadv", "path": "n.gguf", "seconds": 3600},
            {"call": "lstat", "path": "other.gguf", "seconds": 3600},
            {"call": "scandir", "path": "volume", "seconds": 3600},
        )
        # The stream has begun, with a window that is cached.
        asked: dict[str, Callable[[], object]] = {
            "/v1/models/n/-/data/w?rows=-1": lambda: server.hanging("preadv"),
            "/v1/models/n/-/data/w": lambda: b"\ntensortap_streams_open 1.0\n" in server.get("/metrics").body,
            "/v1/models/other": lambda: server.hanging("lstat"),
            "/readyz": lambda: server.hanging("scandir"),
        }
        with ThreadPoolExecutor(len(asked)) as pool:
            waiting = []
            for path, is_under_way in asked.items():
                waiting.append(pool.submit(get, server.port, path, timeout=60))
                eventually(is_under_way)
            assert server.stop(timeout=30) == 0
            row, stream, other, ready = (one.result() for one in waiting)
        assert stream.status == 200
        assert not stream.whole
        assert row.slug == other.slug == (503, "shutting-down")
        # It says the other after two seconds, which the stop may take on a machine that has much to do.
        assert ready.slug in ((503, "shutting-down"), (503, "volume-error"))
        assert any("a thread still waits for the volume" in line for line in server.log)
        assert not [line for line in server.log if "Traceback" in line]


def test_readiness_says_that_the_volume_does_not_answer(slow: FaultyServer) -> None:
    with steady(slow):
        slow.rules({"call": "scandir", "path": "volume", "seconds": LONG})
        assert slow.get("/readyz").slug == (503, "volume-error")
        slow.rules()
        assert slow.get("/readyz").is_refusal or slow.get("/readyz").status == 200
