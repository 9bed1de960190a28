"""Workers that are killed: the others answer, new ones come, and a stop is a stop at any moment."""

import os
import signal
import threading
from http.client import HTTPException
from pathlib import Path

from tests.faults.server import get, model, values
from tests.server import Server
from tests.waiting import eventually


def children(server: Server) -> set[int]:
    """The worker processes, which are the children that listen; another one keeps count of semaphores."""
    path = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")
    found = set()
    for pid in path.read_text().split():
        if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes():
            found.add(int(pid))
    return found


def test_workers_that_are_killed_under_load(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(model())
    expected = values(0)
    with Server(tmp_path, workers=2, cache_bytes=0) as server:
        eventually(lambda: sum("startup complete" in line for line in server.log) == 2)
        first = children(server)
        assert len(first) == 2
        stop = threading.Event()
        wrong: list[object] = []
        whole = [0]

        def ask() -> None:
            while not stop.is_set():
                try:
                    reply = get(server.port)
                except (OSError, HTTPException):
                    continue  # it was sent to the one that died
                if (
                    reply.status != 200
                    or not expected.startswith(reply.body)
                    or reply.whole != (reply.body == expected)
                ):
                    wrong.append(reply.status)
                whole[0] += reply.whole

        clients = [threading.Thread(target=ask) for _ in range(4)]
        for client in clients:
            client.start()
        try:
            eventually(lambda: whole[0] > 3)
            os.kill(min(first), signal.SIGKILL)
            before = whole[0]
            eventually(lambda: whole[0] > before + 3)
            second = eventually(lambda: now if len(now := children(server)) == 2 and now != first else None)
            for pid in second:
                os.kill(pid, signal.SIGKILL)
            eventually(lambda: len(now := children(server)) == 2 and not now & second)
            before = whole[0]
            eventually(lambda: whole[0] > before + 3)
        finally:
            stop.set()
            for client in clients:
                client.join()
        assert not wrong
        os.kill(min(children(server)), signal.SIGKILL)
        assert server.stop() == 0
        assert not any(Path(f"/proc/{pid}").exists() for pid in first | second)
