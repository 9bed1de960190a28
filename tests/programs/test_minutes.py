"""What takes a minute to show: idle connections, clients that read nothing, and all cores at work."""

import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.app.conftest import Wire
from tests.app.test_cases_streams import decode_at_once, has_cut, workers_of, write_iq_models
from tests.app.test_streaming import MIB, ask
from tests.programs.conftest import LARGE, Proxy
from tests.server import Server
from tests.waiting import eventually

pytestmark = pytest.mark.programs


@pytest.mark.case(12, 37)
def test_a_minute_of_pauses_resets_nobody_and_of_silence_ends_in_a_cut(
    server: Server, proxies: dict[str, Proxy]
) -> None:
    """The settings are those that nobody changed: a request each 5.0 s, while 50 clients read nothing."""
    with ExitStack() as stack:
        ports = (server.port, proxies["documented"].port, proxies["default"].port)
        wires = [stack.enter_context(Wire(port)) for port in ports]
        for wire in wires:
            assert wire.ask(f"{LARGE}?rows=0".encode()).status == 200
        memory, n_lines, files = server.memory(), len(server.log), server.open_files()
        for _ in range(50):
            stack.enter_context(ask(server, LARGE))
        for _ in range(12):
            time.sleep(5.0)
            for wire in wires:
                assert wire.ask(b"/healthz").json == {"status": "ok"}
            # A window for each, and what 50 connections and the allocator take.
            assert server.memory() < memory + (50 + 40) * MIB
        eventually(lambda: has_cut(server, 50, n_lines), 60)
        eventually(lambda: server.open_files() <= files)
    assert [proxy.errors() for proxy in proxies.values()] == [[]] * len(proxies)


@pytest.mark.case(48)
def test_two_workers_live_through_a_minute_of_slow_types(tmp_path: Path) -> None:
    """The parent kills a worker that has not answered it for five seconds."""
    digests = write_iq_models(tmp_path, windows=4)
    with Server(tmp_path, workers=2, cache_bytes=0) as server:
        eventually(lambda: "".join(server.log).count("startup complete") == 2)
        before = workers_of(server)
        decode_at_once(server, digests, clients=16, seconds=60)
        assert workers_of(server) == before
        assert server.stop() == 0
    assert "died" not in "".join(server.log)
