"""The service: one look at the volume for all who ask at the same time, and what it finds for each of them."""

import asyncio
import os
import threading
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from app.auth import Grant
from app.errors import NotFound, Unavailable, Unreadable
from app.service import Service
from app.settings import Settings
from app.snapshot import Snapshot
from app.steps import Step
from tests.builder import base

EVERYTHING = Grant(None)


@pytest.fixture
def service(tmp_path: Path) -> Service:
    (tmp_path / "m.gguf").write_bytes(base())
    (tmp_path / "bad.gguf").write_bytes(b"")
    return Service(Settings(root=tmp_path, recheck_seconds=60))


def slowed(service: Service, monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Make the volume slow, and count how often it is looked at."""
    find = service.catalogue.volume.find

    def slow(model_id: bytes) -> object:
        time.sleep(0.05)
        return find(model_id)

    counted = Mock(side_effect=slow)
    monkeypatch.setattr(service.catalogue.volume, "find", counted)
    return counted


def test_a_herd_of_requests_looks_at_the_volume_once(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = slowed(service, monkeypatch)

    async def herd() -> list[Snapshot]:
        return await asyncio.gather(*(service.snapshot(b"m", EVERYTHING) for _ in range(200)))

    snapshots = asyncio.run(herd())
    assert len(set(map(id, snapshots))) == 1
    assert looked.call_count == 1
    for snapshot in snapshots:
        snapshot.release()
    service.close()


@pytest.mark.parametrize(("model", "kind"), [(b"none", NotFound), (b"bad", Unreadable)])
def test_a_herd_for_what_cannot_be_opened_fails_together(
    service: Service, monkeypatch: pytest.MonkeyPatch, model: bytes, kind: type[Exception]
) -> None:
    looked = slowed(service, monkeypatch)

    async def herd() -> list[object]:
        asked = (service.snapshot(model, EVERYTHING) for _ in range(200))
        return await asyncio.gather(*asked, return_exceptions=True)

    assert {type(outcome) for outcome in asyncio.run(herd())} == {kind}
    assert looked.call_count == 1
    service.close()


def test_one_who_gives_up_takes_nothing_from_the_others(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    go = hanging(service, monkeypatch)

    async def herd() -> list[object]:
        tasks = [asyncio.create_task(service.snapshot(b"m", EVERYTHING)) for _ in range(5)]
        for _ in range(5):  # turns of the loop, in which all come to wait for the look
            await asyncio.sleep(0)
        tasks[2].cancel()
        await asyncio.sleep(0)
        go.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    outcomes = asyncio.run(herd())
    assert [type(outcome) for outcome in outcomes].count(Snapshot) == 4
    for outcome in outcomes:
        if isinstance(outcome, Snapshot):
            outcome.release()
    service.close()


def hanging(service: Service, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Make every look at the volume last until the event is set."""
    go = threading.Event()
    find = service.catalogue.volume.find

    def hang(model_id: bytes) -> object:
        assert go.wait(30)
        return find(model_id)

    monkeypatch.setattr(service.catalogue.volume, "find", hang)
    return go


def test_a_model_that_is_open_is_served_while_the_volume_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m.gguf").write_bytes(base())
    service = Service(Settings(root=tmp_path, recheck_seconds=0.001))

    async def ask() -> None:
        first = await service.snapshot(b"m", EVERYTHING)
        go = hanging(service, monkeypatch)
        await asyncio.sleep(0.01)
        for _ in range(3):  # the first one looks, the others find that look under way
            again = await service.snapshot(b"m", EVERYTHING)
            assert again is first
            again.release()
        os.utime(tmp_path / "m.gguf", (1, 1))
        go.set()
        while (now := await service.snapshot(b"m", EVERYTHING)) is first:
            now.release()
            await asyncio.sleep(0.01)
        now.release()
        first.release()
        with pytest.raises(OSError, match="Bad file descriptor"):  # whoever gave up let go of what came in the end
            os.fstat(first._fds[0])

    asyncio.run(ask())
    service.close()


def test_where_every_look_must_be_new_nobody_is_told_by_an_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m.gguf").write_bytes(base())
    service = Service(Settings(root=tmp_path, recheck_seconds=0))

    async def ask() -> None:
        (await service.snapshot(b"m", EVERYTHING)).release()
        go = hanging(service, monkeypatch)
        asking = [asyncio.create_task(service.snapshot(b"m", EVERYTHING)) for _ in range(2)]
        await asyncio.wait(asking, timeout=0.2)
        assert not any(one.done() for one in asking)
        go.set()
        for snapshot in await asyncio.gather(*asking):
            snapshot.release()

    asyncio.run(ask())
    service.close()


def test_so_many_wait_for_the_volume_and_no_more(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    go = hanging(service, monkeypatch)

    async def herd() -> list[object]:
        asking = [asyncio.create_task(service.snapshot(b"none%d" % number, EVERYTHING)) for number in range(200)]
        await asyncio.sleep(0.05)
        go.set()
        return await asyncio.gather(*asking, return_exceptions=True)

    outcomes = [type(outcome) for outcome in asyncio.run(herd())]
    assert set(outcomes) == {NotFound, Unavailable}
    assert 128 <= outcomes.count(NotFound) <= 128 + 8
    service.close()


def test_those_who_ask_for_the_list_share_the_next_one(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Mock(side_effect=[["first"], ["second"]])
    go, begun = threading.Event(), threading.Event()

    def slow() -> object:
        begun.set()
        assert go.wait(30)
        return made()

    monkeypatch.setattr(service, "_listed", slow)

    async def herd() -> list[object]:
        first = asyncio.create_task(service.models(EVERYTHING))
        while not begun.is_set():
            await asyncio.sleep(0.01)
        others = [asyncio.create_task(service.models(EVERYTHING)) for _ in range(50)]
        await asyncio.sleep(0)
        others.pop().cancel()
        go.set()
        return await asyncio.gather(first, *others)

    assert asyncio.run(herd()) == [["first"], *[["second"]] * 49]
    service.close()


def test_models_are_counted_now_and_then_though_nobody_lists_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.service._TIDY_SECONDS", 0.01)
    service = Service(Settings(root=tmp_path, recheck_seconds=0))
    metrics = service.metrics
    assert metrics is not None

    def counted() -> list[str]:
        lines = metrics.exposition()[0].decode().splitlines()
        return [line for line in lines if line.startswith("tensortap_models{")]

    async def tidy() -> None:
        tidying = asyncio.create_task(service.tidy())
        for n_models in (1, 2):
            (tmp_path / f"m{n_models}.gguf").write_bytes(base())
            (tmp_path / f"bad{n_models}.gguf").write_bytes(b"")
            wanted = [f'tensortap_models{{state="{state}"}} {n_models}.0' for state in ("readable", "unreadable")]
            async with asyncio.timeout(30):
                while counted() != wanted:
                    await asyncio.sleep(0.01)
        tidying.cancel()

    asyncio.run(tidy())
    service.close()


def test_a_service_is_ready_while_it_has_much_to_do_and_not_while_reads_hang(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.service._STUCK_SECONDS", 0.2)
    ended = threading.Event()
    n_threads = service.settings.decode_threads

    async def check() -> None:
        busy = [service.reader.submit(lambda: time.sleep(0.01)) for _ in range(100 * n_threads)]
        while not busy[-1].done():
            await service.check_ready()
            await asyncio.sleep(0.01)
        hanging = [service.reader.submit(lambda: ended.wait(30)) for _ in range(n_threads - 1)]
        await asyncio.sleep(0.4)
        await service.check_ready()  # one thread is free
        hanging.append(service.reader.submit(lambda: ended.wait(30)))
        await asyncio.sleep(0.4)
        with pytest.raises(Unavailable, match="each decoding thread") as raised:
            await service.check_ready()
        assert raised.value.slug == "volume-error"
        ended.set()
        await asyncio.gather(*map(asyncio.wrap_future, hanging))
        await service.check_ready()

    asyncio.run(check())
    service.close()


def test_a_service_is_ready_while_its_threads_send_what_is_cached(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream keeps a thread for as long as nobody else wants it, however long that takes."""
    monkeypatch.setattr("app.service._STUCK_SECONDS", 0.2)
    ended = threading.Event()
    step = Step(b"a part that is there already")

    def stream() -> None:
        while not ended.wait(0.01):
            service.reader.make(step, lambda: True)

    async def check() -> None:
        streams = [service.reader.submit(stream) for _ in range(service.settings.decode_threads)]
        await asyncio.sleep(0.4)
        try:
            await service.check_ready()
        finally:
            ended.set()
            await asyncio.gather(*map(asyncio.wrap_future, streams))

    asyncio.run(check())
    service.close()


def test_tidying_goes_on_after_an_error(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    tidied = Mock(side_effect=[MemoryError, OSError(5, "Input/output error"), *[None] * 100_000])
    monkeypatch.setattr("app.service._TIDY_SECONDS", 0)
    monkeypatch.setattr(service.catalogue, "forget_gone", tidied)

    async def tidy() -> None:
        tidying = asyncio.create_task(service.tidy())
        while tidied.call_count < 4:
            await asyncio.sleep(0.01)
        tidying.cancel()

    asyncio.run(tidy())
    service.close()


@pytest.mark.parametrize("known_seconds", [0.0, 60.0])
def test_on_a_slow_volume_what_was_known_will_do_only_if_it_is_not_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known_seconds: float
) -> None:
    (tmp_path / "m.gguf").write_bytes(base())
    monkeypatch.setattr("app.service._KNOWN_SECONDS", known_seconds)
    service = Service(Settings(root=tmp_path, recheck_seconds=0.001))

    async def versions() -> tuple[bytes, bytes]:
        with await service.snapshot(b"m", EVERYTHING) as before:
            go = hanging(service, monkeypatch)
            (tmp_path / "new").write_bytes(base(data=bytes(32)))
            (tmp_path / "new").rename(tmp_path / "m.gguf")
            await asyncio.sleep(0.01)
            if known_seconds == 0:  # what is new must be waited for, for longer than what was known would be
                asyncio.get_running_loop().call_later(0.3, go.set)
            with await service.snapshot(b"m", EVERYTHING) as after:
                go.set()
                return before.key, after.key

    before, after = asyncio.run(versions())
    assert (before == after) == (known_seconds > 0)
    service.close()
