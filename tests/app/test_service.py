"""The service: one look at the volume for all who ask at the same time, and what it finds for each of them."""

import asyncio
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from app.auth import Grant
from app.errors import NotFound, Unreadable
from app.service import Service
from app.settings import Settings
from app.snapshot import Snapshot
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
    slowed(service, monkeypatch)

    async def herd() -> list[object]:
        tasks = [asyncio.create_task(service.snapshot(b"m", EVERYTHING)) for _ in range(5)]
        await asyncio.sleep(0.01)
        tasks[2].cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    outcomes = asyncio.run(herd())
    assert [type(outcome) for outcome in outcomes].count(Snapshot) == 4
    for outcome in outcomes:
        if isinstance(outcome, Snapshot):
            outcome.release()
    service.close()
