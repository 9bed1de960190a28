"""Files that change under load: every answer is one version of the file, whole or cut short, as its ETag says."""

import hashlib
import os
import threading
import time
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path

import pytest

from tests.faults.server import FaultyServer, get, model, steady, values
from tests.waiting import eventually

PATH = "/v1/models/c/-/data/w"
N_VERSIONS = 4
FILES = [model(version) for version in range(N_VERSIONS)]
BODIES = [values(version) for version in range(N_VERSIONS)]


def renamed(path: Path, version: int) -> None:
    new = path.with_suffix(".part")
    new.write_bytes(FILES[version])
    os.replace(new, path)


def rewritten(path: Path, version: int) -> None:
    """In place, without becoming shorter in between, in steps between which a reader may come."""
    with open(path, "r+b" if path.exists() else "wb") as file:
        for start in range(0, len(FILES[version]), 1 << 20):
            file.write(FILES[version][start : start + (1 << 20)])
            file.flush()
        file.truncate()


def copied(path: Path, version: int) -> None:
    """As cp does: cut to nothing, and growing again."""
    path.write_bytes(FILES[version])


def shrunk(path: Path, version: int) -> None:
    copied(path, version)
    os.truncate(path, len(FILES[version]) // 2)
    copied(path, version)


def removed(path: Path, version: int) -> None:
    path.unlink(missing_ok=True)
    time.sleep(0.005)
    renamed(path, version)


@pytest.mark.parametrize("change", [renamed, rewritten, copied, shrunk, removed])
def test_eight_clients_of_a_file_that_changes(server: FaultyServer, change: Callable[[Path, int], None]) -> None:
    path = server.root / "c.gguf"
    renamed(path, 0)
    assert server.get(PATH).body == BODIES[0]
    hashes = {hashlib.sha256(body).digest(): version for version, body in enumerate(BODIES)}
    stop = threading.Event()
    whole: set[tuple[str, int]] = set()
    wrong: list[object] = []

    def ask() -> None:
        while not stop.is_set():
            try:
                reply = get(server.port, PATH)
            except (OSError, HTTPException) as error:
                wrong.append(error)
                return
            if reply.status == 200 and reply.whole:
                version = hashes.get(hashlib.sha256(reply.body).digest())
                if version is None:
                    # Between two steps of one who writes in place the file is neither: only its own ETag may say so.
                    version = -int.from_bytes(hashlib.sha256(reply.body).digest()[:6], "big")
                whole.add((reply.headers["etag"], version))
            elif reply.status == 200:
                if change in (renamed, removed) or not is_mixed_at_most(reply.body):
                    wrong.append((len(reply.body), "cut"))
            elif (reply.status, reply.slug[1]) not in EXPECTED_ERRORS:
                wrong.append(reply)

    def is_mixed_at_most(body: bytes) -> bool:
        """Whether each MiB that the writer writes at a time is of one of the versions."""
        return all(
            any(piece == other[start : start + len(piece)] for other in BODIES)
            for start in range(0, len(body), 1 << 18)
            if (piece := body[start : start + (1 << 10)])
        )

    clients = [threading.Thread(target=ask) for _ in range(8)]
    with steady(server, more_memory=128 << 20):
        for client in clients:
            client.start()
        for number in range(1, 16):
            change(path, number % N_VERSIONS)
            time.sleep(0.03)
        stop.set()
        for client in clients:
            client.join()
        last = eventually(lambda: reply if (reply := server.get(PATH)).status == 200 else None)
        assert last.body == BODIES[15 % N_VERSIONS]
    assert not wrong, wrong[:3]
    etags = [etag for etag, _ in whole]
    assert len(etags) == len(set(etags)), "one ETag for two contents"
    if change in (renamed, removed):
        assert {version for _, version in whole} <= set(range(N_VERSIONS))
    path.unlink()


EXPECTED_ERRORS = {
    (503, "volume-error"),
    (404, "no-such-model"),
    (422, "unreadable-model"),
    (422, "tensor-past-end-of-file"),
}


def test_a_file_that_vanishes_and_comes_back(server: FaultyServer) -> None:
    path = server.root / "c.gguf"
    with steady(server):
        for version in range(4):
            renamed(path, version)
            assert server.get(PATH).body == BODIES[version]
            path.unlink()
            assert server.get(PATH).slug == (404, "no-such-model")
