"""A server whose system fails when it is told to, on a folder of the test's own."""

from collections.abc import Iterator

import pytest

from tests.faults.server import FaultyServer, model


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyServer]:
    """One server for many tests, since a start takes longer than most of them; the models ``m`` and ``n`` are there."""
    folder = tmp_path_factory.mktemp("faults")
    (folder / "volume").mkdir()
    (folder / "volume" / "m.gguf").write_bytes(model())
    (folder / "volume" / "n.gguf").write_bytes(model(1))
    with FaultyServer(folder / "volume", folder / "rules", recheck_seconds=0, cache_bytes=32 << 20) as server:
        yield server


@pytest.fixture
def server(running: FaultyServer) -> Iterator[FaultyServer]:
    """The same, without faults at the start and at the end."""
    running.rules()
    running.log.clear()
    yield running
    running.rules()
    assert running.get().status == 200
    assert not [line for line in running.log if "Traceback" in line]
