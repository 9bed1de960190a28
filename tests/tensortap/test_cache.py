"""What was moved is not moved again: in memory, and on a disk that several processes share."""

import gc
import json
import os
import pickle
import signal
import sqlite3
import subprocess
import sys
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoders import GGMLType
from tensortap import Client
from tensortap._disk import DiskSegments, _without
from tensortap._segments import Segments
from tests.server import Server
from tests.tensortap.models import blocks, model_of, values
from tests.tensortap.proxy import Proxy
from tests.tensortap.twin import Connect

diskcache = pytest.importorskip("diskcache", reason="the extra disk is not installed")

VALUES = values()
BODY = {key: np.random.default_rng(key).integers(0, 256, 300, np.uint8).tobytes() for key in range(3)}
KEY = ("version", "/path", "raw")

intervals = st.tuples(st.integers(0, 2), st.integers(0, 300), st.integers(0, 300)).map(
    lambda one: (one[0], min(one[1:]), max(one[1:]))
)


@settings(max_examples=300)
@given(st.lists(st.tuples(st.booleans(), intervals), max_size=40), st.sampled_from([300, 1000, 3000, 1 << 20]))
def test_segments_give_the_bytes_that_were_put_in(steps: list[tuple[bool, tuple[int, int, int]]], budget: int) -> None:
    segments = Segments(budget)
    known: dict[int, set[int]] = {key: set() for key in BODY}
    for is_insert, (key, start, stop) in steps:
        if is_insert:
            segments.insert(key, start, BODY[key][start:stop])
            known[key] |= set(range(start, stop))
        else:
            found = segments.cover(key, start, stop)
            assert [first for first, _, _ in found] == [start, *(last for _, last, _ in found[:-1])][: len(found)]
            assert not found or found[-1][1] == stop
            for first, last, data in found:
                assert first < last
                if data is not None:
                    assert bytes(data) == BODY[key][first:last]
                    assert set(range(first, last)) <= known[key]
                elif budget == 1 << 20:  # where nothing was thrown out, all that was put in is there
                    assert not set(range(first, last)) & known[key]
        assert segments.nbytes <= budget
    held = sum(len(data) for key in BODY for _, _, data in segments.cover(key, 0, 300) if data is not None)
    assert held <= segments.nbytes
    segments.clear()
    assert segments.nbytes == 0


def test_the_least_used_goes_first() -> None:
    segments = Segments(3 * (256 + 100))
    for key in (0, 1, 2):
        segments.insert(key, 0, bytes(100))
    segments.cover(0, 10, 20)
    segments.insert(3, 0, bytes(100))
    assert [segments.cover(key, 0, 100)[0][2] is not None for key in range(4)] == [True, False, True, True]


@given(st.lists(st.integers(0, 40), max_size=8, unique=True), st.integers(0, 40), st.integers(0, 40))
def test_what_is_left_of_an_interval(edges: list[int], start: int, stop: int) -> None:
    edges.sort()
    taken = list(zip(edges[::2], edges[1::2], strict=False))
    left = _without(start, stop, taken)
    wanted = set(range(start, stop)) - {place for first, last in taken for place in range(first, last)}
    assert [place for first, last in left for place in range(first, last)] == sorted(wanted)


@pytest.fixture
def counted(server: Server) -> Iterator[Proxy]:
    """A path to the server that keeps a record of what is asked."""
    with Proxy(server.port) as proxy:
        yield proxy


def data_requests(proxy: Proxy) -> int:
    return sum("/-/data/" in head for head in proxy.heads)


READS: list[Any] = [
    ("matrix.q4_0", slice(2, 5)),
    ("matrix.q4_0", 3),
    ("matrix.q4_0", slice(None, None, 2)),
    ("matrix.q4_0", [7, 1, 7]),
    ("cube.q4_1", (1, 2)),
    ("cube", ...),
    ("scalar", ()),
    ("vector", slice(5, 9)),
]


@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "disk"])
def test_what_is_read_again_moves_nothing(counted: Proxy, connect: Connect, on_disk: bool, tmp_path: Path) -> None:
    how = {"disk_cache": tmp_path / "kept", "cache_bytes": 0} if on_disk else {}
    with connect(counted.url, decode="client", **how) as tap:
        model = tap["tests"]
        for name, index in READS:
            assert np.array_equal(model[name][index], VALUES[name][index])
        before = data_requests(counted)
        for name, index in READS:
            if name != "vector":  # columns are no whole rows, and not kept
                assert np.array_equal(model[name][index], VALUES[name][index])
        assert np.array_equal(model["matrix.q4_0"][2:5], VALUES["matrix.q4_0"][2:5])
        assert data_requests(counted) == before
        assert np.array_equal(model["matrix.q4_0"][:9], VALUES["matrix.q4_0"][:9])  # what is missing, in one request
        assert data_requests(counted) == before + 1


def test_a_cache_of_no_bytes_keeps_nothing(counted: Proxy, connect: Connect) -> None:
    with connect(counted.url, cache_bytes=0) as tap:
        tensor = tap["tests"]["matrix"]
        for n in range(3):
            assert np.array_equal(tensor[2], VALUES["matrix"][2])
            assert data_requests(counted) == n + 1


def test_later_clients_read_from_the_disk(counted: Proxy, connect: Connect, tmp_path: Path) -> None:
    for turn in range(2):
        with connect(counted.url, decode="client", disk_cache=tmp_path / "kept") as tap:
            model = tap["tests"]
            for name in VALUES:
                if name != "vector":
                    assert np.array_equal(model[name][...], VALUES[name])
        if turn == 0:
            before = data_requests(counted)
    assert data_requests(counted) == before
    assert oct((tmp_path / "kept").stat().st_mode & 0o777) == "0o700"


@settings(max_examples=40)
@given(steps=st.lists(st.tuples(st.booleans(), intervals), max_size=12), region=st.sampled_from([16, 64, 1 << 20]))
def test_the_disk_gives_the_bytes_that_were_put_in(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[bool, tuple[int, int, int]]], region: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tensortap._disk._REGION", region)
        segments = DiskSegments(str(tmp_path_factory.mktemp("kept")), 1 << 24, "http://host")
        known: dict[int, set[int]] = {key: set() for key in BODY}
        for is_insert, (key, start, stop) in steps:
            if is_insert:
                segments.insert(("version", str(key), "raw"), start, BODY[key][start:stop])
                known[key] |= set(range(start, stop))
                continue
            found = segments.cover(("version", str(key), "raw"), start, stop)
            assert [first for first, _, _ in found] == [start, *(last for _, last, _ in found[:-1])][: len(found)]
            for first, last, data in found:
                if data is None:
                    assert not set(range(first, last)) & known[key]
                else:
                    assert bytes(data) == BODY[key][first:last]
        segments.close()


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_the_disk_stays_within_its_bytes(tmp_path: Path) -> None:
    budget = 8 << 20
    segments = DiskSegments(str(tmp_path / "kept"), budget, "http://host")
    data = os.urandom(1 << 20)
    for n in range(40):
        segments.insert(("version", f"/{n}", "raw"), 0, data)
    segments.close()
    assert budget // 4 < size_of(tmp_path / "kept") < budget + (4 << 20)
    last = segments.cover(("version", "/39", "raw"), 0, 1 << 20)[0][2]
    assert last is not None
    assert bytes(last) == data
    assert segments.cover(("version", "/0", "raw"), 0, 1 << 20)[0][2] is None
    segments.close()


def damaged(folder: Path, how: str) -> None:
    if how == "file":
        folder.write_bytes(b"no folder")
        return
    if how == "no database":
        folder.mkdir()
        (folder / "cache.db").write_bytes(b"no database" * 1000)
        return
    with Client("http://localhost:1", disk_cache=folder) as tap:
        assert tap._cache is not None
        assert tap._cache.disk is not None
        tap._cache.disk.insert(KEY, 0, b"something")
    database = (folder / "cache.db").read_bytes()
    (folder / "cache.db").write_bytes(database[:4096] + os.urandom(len(database) - 4096))


@pytest.mark.parametrize("how", ["file", "no database", "pages of noise"])
def test_a_folder_that_cannot_be_used_is_told_once(server: Server, connect: Connect, tmp_path: Path, how: str) -> None:
    folder = tmp_path / "kept"
    damaged(folder, how)
    with connect(server.url, disk_cache=folder) as tap:
        model = tap["tests"]
        with pytest.warns(RuntimeWarning, match="cannot be used, so weights come from the service") as warned:
            found = {name: model[name][...] for name in VALUES}
        assert len(warned) == 1
    assert all(np.array_equal(found[name], VALUES[name]) for name in VALUES)


class Evil:
    """What runs when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (os.environ["EVIL"],)


def tampered(folder: Path, change: str, *values: object) -> None:
    with sqlite3.connect(folder / "cache.db") as database:
        assert database.execute(f"UPDATE Cache SET {change}", values).rowcount > 0
    database.close()


@pytest.mark.parametrize(
    "what", ["bits", "truncated", "gone", "pickle", "pickle in a file", "outside", "listing", "listing of nonsense"]
)
def test_records_that_are_not_as_they_were_stored_are_not_used(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """And nothing that another program put there is unpickled, or leads to another file."""
    folder, outside = tmp_path / "kept", tmp_path / "outside"
    outside.write_bytes(b"not for this")
    monkeypatch.setenv("EVIL", str(tmp_path / "evil"))
    monkeypatch.setattr(
        diskcache.core, "DEFAULT_SETTINGS", {**diskcache.core.DEFAULT_SETTINGS, "disk_min_file_size": 64}
    )
    whole = VALUES["matrix.q4_k"]

    def read() -> None:
        with Client(server.url, decode="client", cache_bytes=0, disk_cache=folder) as tap:
            for _ in range(2):
                assert np.array_equal(tap["tests"]["matrix.q4_k"][...], whole)

    read()
    files = list(folder.rglob("*.val"))
    assert len(files) == 1
    if what == "bits":
        data = bytearray(files[0].read_bytes())
        data[100] ^= 1
        files[0].write_bytes(data)
    elif what == "truncated":
        os.truncate(files[0], 50)
    elif what == "gone":
        files[0].unlink()
    elif what == "pickle":
        tampered(folder, "mode = 4, filename = NULL, value = ?", pickle.dumps(Evil()))
    elif what == "pickle in a file":
        files[0].write_bytes(pickle.dumps(Evil()))
        tampered(folder, "mode = 4 WHERE filename IS NOT NULL")
    elif what == "outside":
        tampered(folder, "filename = '../outside' WHERE filename IS NOT NULL")
    elif what == "listing":
        tampered(folder, "value = ? WHERE key LIKE '%:r0'", json.dumps([[0, 1 << 60], [-5, 3], [4, 9]]).encode())
    else:
        tampered(folder, "value = ? WHERE key LIKE '%:r0'", b"[" * 100_000)
    with warnings.catch_warnings():
        if what in ("pickle", "pickle in a file", "outside"):
            warnings.simplefilter("ignore", RuntimeWarning)
        read()
    assert not (tmp_path / "evil").exists()
    assert outside.read_bytes() == b"not for this"


HAMMER = """
import random, sys
import numpy as np
from tensortap import Client
url, folder, seed = sys.argv[1:]
picked = random.Random(int(seed))
with Client(url, cache_bytes=0, disk_cache=folder, disk_bytes=1 << 20, decode="client") as tap:
    tensor = tap["m"]["w"]
    whole = tensor.read(decode="server")
    print("begun", flush=True)
    for turn in range(60 if seed != "0" else 100_000):
        first = picked.randrange(2000)
        stop = first + picked.choice([1, 20, 300])
        assert np.array_equal(tensor[first:stop], whole[first:stop]), (first, stop)
"""


def test_four_processes_share_a_folder_and_one_is_killed(volume: Path, tmp_path: Path) -> None:
    (volume / "m.gguf").write_bytes(model_of({"w": ((2000, 256), GGMLType.Q8_0, blocks(GGMLType.Q8_0, 2000 * 256))}))
    folder = tmp_path / "kept"
    with Server(volume) as server:
        children = [
            subprocess.Popen(
                [sys.executable, "-W", "error", "-c", HAMMER, server.url, str(folder), str(seed)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for seed in range(4)
        ]
        killed, *others = children
        assert killed.stdout is not None
        assert killed.stdout.readline() == "begun\n"
        killed.send_signal(signal.SIGKILL)
        killed.communicate()
        for child in others:
            _, errors = child.communicate(timeout=60)
            assert child.returncode == 0, errors
        with Client(server.url, disk_cache=folder, cache_bytes=0, decode="client") as tap:
            tensor = tap["m"]["w"]
            assert np.array_equal(tensor[100:300], tensor.read(decode="server")[100:300])
    assert size_of(folder) < (1 << 20) + (6 << 20)


def test_a_disk_cache_without_diskcache_says_what_to_install(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "diskcache", None)
    monkeypatch.delitem(sys.modules, "tensortap._disk", raising=False)
    with pytest.raises(ImportError, match=r"tensortap\[disk\]"):
        connect("http://localhost:1", disk_cache="x")


COLLECTED = """
import faulthandler, gc, queue, sys, threading, time
faulthandler.dump_traceback_later(20, exit=True)
gc.disable()
from concurrent.futures import ThreadPoolExecutor, thread
from tensortap import Client
tap = Client(sys.argv[1], disk_cache=sys.argv[2])
model = tap["tests"]
model.metadata["general.name"], model["matrix"][:2]
model.cycle = model
del tap, model
begin = thread._WorkItem.__init__

def collecting(self, *arguments):
    gc.collect()  # inside of submit, which holds the lock that all executors share
    begin(self, *arguments)

thread._WorkItem.__init__ = collecting
assert any(one.name == "tensortap-disk" for one in threading.enumerate())
print(ThreadPoolExecutor(1).submit(int, "3").result())
while any(one.name == "tensortap-disk" for one in threading.enumerate()):
    time.sleep(0.01)
print("closed")
"""


def test_a_client_that_is_collected_waits_for_no_lock(server: Server, tmp_path: Path) -> None:
    child = subprocess.run(
        [
            sys.executable,
            "-W",
            "error",
            "-c",
            COLLECTED,
            server.url,
            str(tmp_path / "kept"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (child.stdout, child.stderr) == ("3\nclosed\n", "")


def test_what_nobody_refers_to_any_more_is_gone_at_once(server: Server) -> None:
    """So no collector is needed: a model with its metadata is no cycle."""
    tap = Client(server.url)
    model = tap["tests"]
    assert model.metadata["general.name"] == "of the tests"
    gone = weakref.ref(model)
    tap.close()
    gc.disable()
    try:
        del model
        assert gone() is None
    finally:
        gc.enable()


def test_a_long_pass_pushes_nothing_out(counted: Proxy, connect: Connect, tmp_path: Path) -> None:
    hot, long = "matrix.q4_0", VALUES["matrix.q4_k"]
    with connect(counted.url, decode="server", cache_bytes=long.nbytes) as tap:
        model = tap["tests"]
        first = model[hot][:2]
        memory = getattr(tap, "_client", tap)._cache.memory
        kept = memory.nbytes
        assert kept
        tensor = model["matrix.q4_k"]
        assert np.array_equal(np.concatenate(list(tensor.iter_rows(1))), long)
        tensor.save(tmp_path / "w.npy")
        if connect is Client:
            assert np.array_equal(np.stack(list(tensor)), long)
        assert memory.nbytes == kept
        before = data_requests(counted)
        assert np.array_equal(model[hot][:2], first)
        assert data_requests(counted) == before
