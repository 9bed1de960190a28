"""Reads over a slow, lossy path from a real server: whole and right, resumed where they broke off, ended in time."""

import asyncio
import hashlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from decoders import GGMLType, dequantize
from tensortap import AsyncClient, Client, ConnectionFailed, TensorTapError
from tests.server import Server
from tests.tensortap.models import blocks, model_of
from tests.tensortap.proxy import Fault, Proxy
from tests.tensortap.twin import Connect
from tests.waiting import eventually

BIG_ROWS, BIG_COLUMNS = 6400, 8192  # 200 MiB of float32
QUANTIZED = blocks(GGMLType.Q4_K, 1 << 20)
WEIGHTS = dequantize(QUANTIZED, GGMLType.Q4_K).reshape(1024, 1024)
HEAD_BYTES = 2048  # more than the head of any answer here


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, str]]:
    """A server on a tensor of 200 MiB and a small one, and the hash of the large one."""
    folder = tmp_path_factory.mktemp("volume")
    rng = np.random.default_rng(5)
    weights = rng.integers(0, 1 << 30, BIG_ROWS * BIG_COLUMNS, np.uint32).tobytes()  # positive and finite as floats
    path = folder / "big.gguf"
    path.write_bytes(model_of({"w": ((BIG_ROWS, BIG_COLUMNS), GGMLType.F32, weights)}))
    (folder / "small.gguf").write_bytes(model_of({"w": ((1024, 1024), GGMLType.Q4_K, QUANTIZED)}))
    sha = hashlib.sha256(weights).hexdigest()
    del weights
    with Server(folder, recheck_seconds=60) as server:
        yield server, sha
    path.unlink()


def threads() -> set[str]:
    return {one.name for one in threading.enumerate() if one.name.startswith("tensortap")}


def test_200_mb_survive_20_cuts(big: tuple[Server, str]) -> None:
    server, sha = big
    cuts = 20

    def plan(number: int) -> Fault | None:
        return Fault(3_000_001 + 100_003 * number, "cut" if number % 2 else "reset") if number < cuts else None

    with Proxy(server.port, plan) as proxy, Client(proxy.url) as tap:
        weights = tap["big"]["w"].read()
        assert hashlib.sha256(weights.data).hexdigest() == sha
        assert proxy.ended == cuts
        assert len(proxy.headers("If-Range")) <= cuts
        # Only what a reset took away from under way is moved again: what lies in the buffers of a socket.
        assert proxy.passed < weights.nbytes + cuts // 2 * (16 << 20)
    assert not threads()


def test_a_pull_of_200_mb_survives_20_cuts(big: tuple[Server, str], tmp_path: Path) -> None:
    server, sha = big
    cuts = 20

    def plan(number: int) -> Fault:
        how: Literal["cut", "reset"] = "cut" if number % 2 else "reset"
        return Fault(4_000_001 + 100_003 * number, how, delay=0.001) if number < cuts else Fault(delay=0.001)

    with Proxy(server.port, plan) as proxy, Client(proxy.url) as tap:
        pulled = tap.pull("big", tmp_path / "big.safetensors")
        assert proxy.ended == cuts
    with (tmp_path / "big.safetensors").open("rb") as file:
        file.seek(pulled.n_bytes - BIG_ROWS * BIG_COLUMNS * 4)
        assert hashlib.sha256(file.read()).hexdigest() == sha


@pytest.mark.parametrize("how", ["cut", "reset"])
def test_only_what_was_lost_is_moved_again(big: tuple[Server, str], connect: Connect, how: Any) -> None:
    def plan(number: int) -> Fault | None:
        return Fault(50_000 + 7 * number, how, delay=0.002, piece=10_000) if number < 6 else None

    with Proxy(big[0].port, plan) as proxy, connect(proxy.url, max_connections=1) as tap:
        assert np.array_equal(tap["small"]["w"].read(decode="client"), WEIGHTS)
        ranges = [tuple(map(int, one.removeprefix("bytes=").split("-"))) for one in proxy.headers("Range")]
        assert len(ranges) > 5
        for (first, last), (first_after, last_after) in pairwise(ranges):
            assert first < first_after <= last == last_after
        assert len(proxy.headers("If-Range")) == len(ranges) - 1
        assert set(proxy.headers("If-Range")) == {proxy.headers("If-Range")[0]}
        if how == "cut":  # which loses nothing
            assert proxy.passed <= len(QUANTIZED) + len(proxy.heads) * HEAD_BYTES


def test_a_slow_path_in_small_pieces(big: tuple[Server, str], connect: Connect) -> None:
    with (
        Proxy(big[0].port, lambda _: Fault(delay=0.001, piece=5003)) as proxy,
        connect(proxy.url, part_bytes=50_000) as tap,
    ):
        tensor = tap["small"]["w"]
        assert np.array_equal(tensor[...], WEIGHTS)
        assert np.array_equal(tensor[::3], WEIGHTS[::3])
        assert np.array_equal(tensor[5:900:7, 3:1000:2], WEIGHTS[5:900:7, 3:1000:2])


def test_a_server_that_goes_away_for_good_ends_the_read(big: tuple[Server, str], connect: Connect) -> None:
    with (
        Proxy(big[0].port, lambda number: Fault(100_000 if number == 0 else 1)) as proxy,
        connect(proxy.url, retries=2, max_connections=1, timeout=5) as tap,
        pytest.raises(ConnectionFailed, match=r"broke off after \d+ of \d+ bytes|no answer"),
    ):
        tap["small"]["w"].read()
    assert not threads()


def test_the_first_failure_ends_a_read_although_others_are_stalled(big: tuple[Server, str]) -> None:
    """And what is stalled writes nothing any more when it goes on."""

    def plan(number: int) -> Fault | None:
        return Fault(100_000, "stall") if number == 1 else None

    with Proxy(big[0].port, plan) as proxy, Client(proxy.url, timeout=60, part_bytes=1 << 18, retries=0) as tap:
        tensor = tap["big"]["w"]
        out = np.zeros(tensor.shape, np.float32)
        seen: list[int] = []

        def told(done: int, _: int) -> None:
            seen.append(done)
            if proxy.stalled.is_set() and done > 4 << 20:
                raise RuntimeError("from the caller's own function")

        with pytest.raises(RuntimeError, match="caller's own"):
            tensor.read(out=out, progress=told)
        before = out.sum()
        left = threads()
        assert left  # they wait for the stalled answers
        proxy.close()
        assert out.sum() == before
        tap.close()
        assert not threads()


def test_close_wakes_what_waits(big: tuple[Server, str]) -> None:
    with Proxy(big[0].port, lambda number: Fault(1500, "stall") if number else None) as proxy:
        tap = Client(proxy.url, timeout=None, part_bytes=1 << 18)
        tensor = tap["small"]["w"]
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(tensor.read)
            assert proxy.stalled.wait(10)
            tap.close()
            with pytest.raises(ConnectionFailed):
                reading.result(20)
        assert not threads()
        assert tap.models() == ["big", "small"]  # used again, it opens new ones
        tap.close()


def test_connections_are_gone_after_close(big: tuple[Server, str], connect: Connect) -> None:
    before = big[0].open_files(), len(os.listdir("/proc/self/fd"))
    with connect(big[0].url, part_bytes=1 << 16) as tap:
        tap["small"]["w"].read()
        assert big[0].open_files() > before[0]
    assert len(os.listdir("/proc/self/fd")) <= before[1]
    assert not threads()
    eventually(lambda: big[0].open_files() <= before[0] + 4)  # the model's own file stays open


def test_eight_threads_at_once(big: tuple[Server, str]) -> None:
    with Client(big[0].url, part_bytes=1 << 16, cache_bytes=1 << 18) as tap, ThreadPoolExecutor(8) as pool:
        tensor = tap["small"]["w"]
        rng = np.random.default_rng(1)

        def reads(seed: int) -> bool:
            first = np.random.default_rng(seed).integers(0, 1000, 20).tolist()
            whole = np.array_equal(tensor[...], WEIGHTS)
            return whole and all(np.array_equal(tensor[one : one + 24], WEIGHTS[one : one + 24]) for one in first)

        assert all(pool.map(reads, rng.integers(0, 1 << 30, 16).tolist()))


def test_cancelled_in_the_middle_nothing_is_written_any_more(big: tuple[Server, str]) -> None:
    async def scenario() -> None:
        async with AsyncClient(big[0].url, part_bytes=1 << 19) as tap:
            tensor = (await tap["big"])["w"]
            out = np.zeros(tensor.shape, np.float32)
            begun = asyncio.Event()

            def told(done: int, _: int) -> None:
                if done > 1 << 21:
                    begun.set()

            reading = asyncio.create_task(tensor.read(out=out, progress=told))
            await begun.wait()
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            before = out.copy()
            assert not out[-1].all()
            row = await tensor[0]
            assert np.array_equal(out, before)
            assert np.array_equal(out[0], row) or not out[0].all()

    asyncio.run(scenario())


def test_cancelled_while_it_decodes(big: tuple[Server, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that decodes is waited for, however often the task is cancelled."""
    entered, go_on, left = threading.Event(), threading.Event(), threading.Event()

    def slowly(data: Any, type_: Any, *, out: Any) -> None:
        entered.set()
        go_on.wait(10)
        dequantize(data, type_, out=out)
        left.set()

    monkeypatch.setattr("tensortap._read.dequantize", slowly)

    async def scenario() -> None:
        async with AsyncClient(big[0].url) as tap:
            reading = asyncio.create_task((await tap["small"])["w"].read())
            await asyncio.to_thread(entered.wait)
            for _ in range(3):
                reading.cancel()
                await asyncio.sleep(0)
            assert not reading.done()
            go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await reading
            assert left.is_set()

    asyncio.run(scenario())


def test_an_async_client_belongs_to_one_event_loop(big: tuple[Server, str]) -> None:
    tap = AsyncClient(big[0].url)

    async def closed() -> None:
        await tap.models()
        await tap.close()

    asyncio.run(closed())
    asyncio.run(closed())

    async def scenario() -> None:
        assert await tap.models() == ["big", "small"]
        with ThreadPoolExecutor(1) as pool, pytest.raises(RuntimeError, match="event loop"):
            pool.submit(lambda: asyncio.run(tap.models())).result()
        await tap.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("n_parts", [1, 8])
def test_an_interrupt_ends_a_read_from_a_stalled_server(big: tuple[Server, str], n_parts: int) -> None:
    part_bytes = BIG_ROWS * BIG_COLUMNS * 4 if n_parts == 1 else 1 << 20
    code = f"""
import sys
from tensortap import Client
tap = Client(sys.argv[1], timeout=None, part_bytes={part_bytes})
print("reading", flush=True)
try:
    tap["big"]["w"].read()
except KeyboardInterrupt:
    print("interrupted", flush=True)
    raise
"""
    with Proxy(big[0].port, lambda number: Fault(100_000, "stall") if number or n_parts == 1 else None) as proxy:
        child = subprocess.Popen(
            [sys.executable, "-c", code, proxy.url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert proxy.stalled.wait(20)
        child.send_signal(signal.SIGINT)
        output, errors = child.communicate(timeout=20)
    assert output == "reading\ninterrupted\n"
    assert child.returncode == -signal.SIGINT
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert "Exception ignored" not in errors


def test_a_save_that_fails_leaves_nothing(big: tuple[Server, str], connect: Connect, tmp_path: Path) -> None:
    target = tmp_path / "w.npy"
    with Proxy(big[0].port) as proxy, connect(proxy.url, retries=0) as tap:
        tensor = tap["small"]["w"]
        tensor.save(target)
        assert np.array_equal(np.load(target), WEIGHTS)
        changed = tap["big"]["w"]
        proxy.close()
        with pytest.raises(TensorTapError):
            changed.save(target)
        with pytest.raises(OSError, match="No such file"):
            tensor.save(tmp_path / "nowhere" / "w.npy")
    assert os.listdir(tmp_path) == ["w.npy"]
    assert np.array_equal(np.load(target), WEIGHTS)


def test_the_record_of_the_proxy_is_true(big: tuple[Server, str]) -> None:
    """What the tests above rest on: it passes every byte on, and ends where it was told to."""
    request = b"GET /healthz HTTP/1.1\r\nHost: h\r\nX-Mark: here\r\n\r\n"
    with Proxy(big[0].port, lambda number: Fault(17) if number else None) as proxy:
        answers = []
        for _ in range(2):
            with socket.create_connection(("127.0.0.1", proxy.port)) as one:
                one.sendall(request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
                answers.append(b"".join(iter(lambda: one.recv(65536), b"")))
        assert answers[0].startswith(b"HTTP/1.1 200")
        assert len(answers[1]) == 17
        assert proxy.passed == len(answers[0]) + 17
        assert proxy.headers("X-Mark") == ["here", "here"]
        assert proxy.ended == 1


@pytest.mark.parametrize("how", ["sync", "async"])
def test_many_small_reads_at_once_open_few_connections(big: tuple[Server, str], how: str) -> None:
    most, n = 3, 150
    with Proxy(big[0].port, lambda _: Fault(delay=0.001)) as proxy:
        if how == "async":

            async def scenario() -> list[Any]:
                async with AsyncClient(proxy.url, max_connections=most, cache_bytes=0) as tap:
                    tensor = (await tap["small"])["w"]
                    rows = await asyncio.gather(*(tensor[row] for row in range(n)))
                    assert not tap._reader._idle  # small reads take no large buffers
                    return list(rows)

            rows = asyncio.run(scenario())
        else:
            with Client(proxy.url, max_connections=most, cache_bytes=0) as tap, ThreadPoolExecutor(n) as pool:
                tensor = tap["small"]["w"]
                rows = list(pool.map(lambda row: tensor[row], range(n)))
        assert np.array_equal(np.stack(rows), WEIGHTS[:n])
        assert proxy.connections <= most


def test_many_large_reads_at_once_neither_wait_for_ever_nor_keep_many_buffers(big: tuple[Server, str]) -> None:
    async def scenario() -> None:
        async with AsyncClient(big[0].url, max_connections=2, cache_bytes=0, part_bytes=1 << 21) as tap:
            tensor = (await tap["small"])["w"]
            for whole in await asyncio.gather(*(tensor.read(decode="client") for _ in range(12))):
                assert np.array_equal(whole, WEIGHTS)
            reader = tap._reader
        assert not reader._idle

    asyncio.run(scenario())
    with Client(big[0].url, max_connections=2, cache_bytes=0, part_bytes=1 << 21) as tap, ThreadPoolExecutor(8) as pool:
        small = tap["small"]["w"]
        for whole in pool.map(lambda _: small.read(decode="server")[::2], range(16)):
            assert np.array_equal(whole, WEIGHTS[::2])
        for columns in pool.map(lambda _: small.read((..., [0, 1023]), decode="server"), range(16)):
            assert np.array_equal(columns, WEIGHTS[:, [0, 1023]])
        assert len(tap._reader._idle) in (1, 2)
        reader = tap._reader
    assert not reader._idle


def test_what_is_stalled_of_a_read_that_ended_is_not_in_the_way_of_the_next(big: tuple[Server, str]) -> None:
    with (
        Proxy(big[0].port, lambda number: Fault(100_000, "stall") if number in (1, 2) else None) as proxy,
        Client(proxy.url, timeout=None, part_bytes=1 << 18, max_connections=3, cache_bytes=0) as tap,
    ):
        tensor = tap["big"]["w"]

        def told(done: int, _: int) -> None:
            if proxy.stalled.is_set() and done > 4 << 20:
                raise RuntimeError("from the caller's own function")

        with pytest.raises(RuntimeError, match="caller's own"):
            tensor.read(progress=told)
        with ThreadPoolExecutor(3) as pool:
            assert all(pool.map(lambda n: tensor[n : n + 200].shape == (200, BIG_COLUMNS), range(6)))


def test_close_ends_what_waits_for_its_turn(big: tuple[Server, str]) -> None:
    with Proxy(big[0].port, lambda number: Fault(1500, "stall") if number else None) as proxy:
        tap = Client(proxy.url, timeout=None, max_connections=1, retries=0)
        tensor = tap["small"]["w"]
        tap.close()
        with ThreadPoolExecutor(4) as pool:
            reading = [pool.submit(tensor.read) for _ in range(4)]
            assert proxy.stalled.wait(10)
            tap.close()
            for one in reading:
                with pytest.raises(ConnectionFailed):
                    one.result(20)
