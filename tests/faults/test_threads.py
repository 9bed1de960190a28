"""Threads exhausted: all that the service needs are started with it, so none can fail later."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.faults.server import FaultyServer, model, steady, values
from tests.waiting import eventually

VIEWS = ("/v1/models", "/v1/models/m", "/v1/models/m/-/tensors", "/metrics")
NO_THREAD = {"call": "thread", "error": "thread"}


@contextmanager
def injected(server: FaultyServer) -> Iterator[None]:
    server.rules(NO_THREAD)
    yield
    server.rules()


@contextmanager
def in_a_full_group(server: FaultyServer) -> Iterator[None]:
    """Put the process into a control group that has as many threads as it may."""
    root = next((path for path in (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup")) if path.is_dir()), Path("/"))
    group = root / f"test-{os.getpid()}"
    home = root / "cgroup.procs"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made: {error}")
    try:
        if not (group / "pids.max").exists():
            pytest.skip("control groups do not count processes here")
        try:
            (group / "cgroup.procs").write_text(str(server.process.pid))
            (group / "pids.max").write_text(str(server.threads()))
        except OSError as error:
            pytest.skip(f"a process cannot be put into a control group: {error}")
        yield
        (group / "pids.max").write_text("max")
        home.write_text(str(server.process.pid))
    finally:
        eventually(lambda: removed(group))


def removed(group: Path) -> bool:
    group.rmdir()  # refuses while a process is in it
    return True


@pytest.mark.parametrize("fault", [injected, in_a_full_group])
def test_nothing_needs_a_new_thread(
    tmp_path: Path, fault: Callable[[FaultyServer], AbstractContextManager[None]]
) -> None:
    root = tmp_path / "volume"
    root.mkdir()
    (tmp_path / "keys").write_text("key\n")
    (root / "m.gguf").write_bytes(model())
    settings: dict[str, Any] = {"recheck_seconds": 0, "api_keys_file": tmp_path / "keys", "cache_bytes": 1 << 20}
    with FaultyServer(root, tmp_path / "rules", **settings) as server:
        first = {"X-API-Key": "key"}
        assert server.get(**first).body == values(0)
        with fault(server):
            for number in range(1, 4):
                (root / f"m{number}.gguf").write_bytes(model(number))
                # Opened, read and sent as a stream; and a row that is not cached.
                assert server.get(f"/v1/models/m{number}/-/data/w", **first).body == values(number)
                assert server.get(f"/v1/models/m{number}/-/data/w?rows=-1", **first).body == values(number)[-4096:]
            assert server.get("/readyz").status == 200
            assert server.get("/v1/models/none", **first).slug == (404, "no-such-model")
            (tmp_path / "keys").write_text("other\n")
            eventually(lambda: server.get("/v1/models/none", X_API_Key="other").status == 404)
            for path in VIEWS:
                assert server.get(path, X_API_Key="other").status == 200
        assert not [line for line in server.log if "Traceback" in line]


def test_a_service_that_cannot_have_its_threads_says_so_and_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(model())
    with pytest.raises(RuntimeError, match=r"ended with 1:\n.*thread \d+ of \d+ .*cannot be started.*Raise the limit"):
        FaultyServer(tmp_path, tmp_path / "rules", {**NO_THREAD, "after": 5})


def test_threads_are_as_many_as_at_the_start_whatever_is_asked(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(model())
    with FaultyServer(tmp_path, tmp_path / "rules", recheck_seconds=0) as server, steady(server):
        before = server.threads()
        for _ in range(20):
            assert server.get("/v1/models/m/-/data/w?rows=::2").status == 200
        assert server.threads() == before
