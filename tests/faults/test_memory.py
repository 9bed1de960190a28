"""Memory exhausted: the answer is a refusal or is cut short, never wrong; all comes back with the memory."""

import http.client
import resource
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import pytest

from tests.builder import build
from tests.faults.server import FaultyServer, Reply, get, model, steady, values
from tests.waiting import eventually


def fresh(server: FaultyServer, content: bytes) -> str:
    """A path to all weights of a model that was never read before."""
    number = len(list(server.root.iterdir()))
    (server.root / f"x{number}.gguf").write_bytes(content)
    return f"/v1/models/x{number}/-/data/w"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyServer]:
    """A server whose cache keeps every window, so that each one needs memory of its own."""
    folder = tmp_path_factory.mktemp("memory")
    (folder / "volume").mkdir()
    (folder / "volume" / "m.gguf").write_bytes(model())
    with FaultyServer(folder / "volume", folder / "rules", cache_bytes=256 << 20) as server:
        yield server


@pytest.mark.parametrize("call", ["mmap", "dequantize", "empty"])
def test_memory_that_cannot_be_had_is_a_refusal_or_a_cut(server: FaultyServer, call: str) -> None:
    error = "ENOMEM" if call == "mmap" else "MemoryError"
    blocks = build([("w", [1 << 18, 8], 8, bytes(34 << 16))])  # Q8_0, which is decoded
    content = model(7, windows=24) if call == "mmap" else blocks
    expected = values(7, windows=24) if call == "mmap" else bytes(8 << 20)
    path, other = fresh(server, content), fresh(server, content)
    assert server.get(path + "?rows=0").status == 200
    assert server.get(other + "?rows=0").status == 200
    with steady(server):
        if call != "mmap":  # for a single window there may be memory that another gave back
            server.rules({"call": call, "error": error})
            assert server.get(path + "?rows=-1").slug == (503, "overloaded")
        server.log.clear()
        server.rules({"call": call, "error": error, "after": 3})
        cut = server.get(other)
        assert cut.status == 200
        assert not cut.whole
        assert 0 < len(cut.body) < len(expected)
        assert expected.startswith(cut.body)
        assert eventually(lambda: [line for line in server.log if "aborted an answer" in line])
        server.rules()
        for _ in range(2):
            assert server.get(path).body == server.get(other).body == expected


def test_a_limit_of_memory_that_is_reached_and_lifted(server: FaultyServer) -> None:
    """For real: RLIMIT_AS of the running process. What the event loop needs for a connection may be missing, too."""
    paths = [fresh(server, model(number, windows=8)) for number in range(8)]
    expected = {path: values(number, windows=8) for number, path in enumerate(paths)}

    def ask(path: str) -> Reply | None:
        with suppress(OSError, http.client.HTTPException):
            return get(server.port, path, timeout=10)
        return None

    for path in paths:
        assert server.get(path + "?rows=0").status == 200
    with steady(server, more_memory=192 << 20):
        for spare in (4 << 20, 0):
            with server.limited(resource.RLIMIT_AS, server.memory("VmSize") + spare), ThreadPoolExecutor(8) as pool:
                asked = [(path, pool.submit(ask, path)) for _ in range(3) for path in paths]
                answered = [(path, reply.result()) for path, reply in asked]
                if spare:  # what is cached needs next to none
                    assert get(server.port, paths[0] + "?rows=0").body == expected[paths[0]][:4096]
            assert not all(reply is not None and reply.status == 200 and reply.whole for _, reply in answered)
            for path, reply in answered:
                if reply is None:
                    continue
                if reply.status == 200:
                    assert expected[path].startswith(reply.body)
                    assert reply.whole == (reply.body == expected[path])
                else:
                    assert reply.status == 503
                    assert not reply.whole or reply.slug == (503, "overloaded")
            # Half of them, so that there is something left to be had for the harder limit.
            for path in paths[: 4 if spare else 8]:
                assert eventually(partial(get, server.port, path)).body == expected[path]
