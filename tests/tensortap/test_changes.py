"""Everything that is read of a model is of one version of it, also where its file is replaced meanwhile."""

import os
import pickle
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from decoders import GGMLType
from tensortap import Client, ModelChanged
from tests import builder
from tests.server import Server
from tests.tensortap.models import model_of
from tests.tensortap.proxy import Fault, Proxy
from tests.tensortap.twin import Connect

SHAPE = (512, 1024)


@dataclass(frozen=True)
class Changing:
    """A model ``id`` at ``url``, whose file a test replaces."""

    url: str
    port: int
    path: Path

    @property
    def id(self) -> str:
        return self.path.stem

    def put(self, value: float) -> None:
        """A model with all weights of one value takes the place of the one that is there."""
        data = np.full(SHAPE, value, "<f4").tobytes()
        metadata: list[tuple[builder.Text, int, object]] = [
            ("general.name", builder.STRING, f"of {value}"),
            ("words", builder.ARRAY, (builder.STRING, [f"{value} {n}" for n in range(400)])),
        ]
        fresh = self.path.with_suffix(".fresh")
        fresh.write_bytes(model_of({"w": (SHAPE, GGMLType.F32, data)}, metadata))
        os.replace(fresh, self.path)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    folder = tmp_path_factory.mktemp("volume")
    with Server(folder, recheck_seconds=0) as server:
        yield server, folder


@pytest.fixture
def changing(running: tuple[Server, Path], request: pytest.FixtureRequest) -> Changing:
    """A model of its own for each test, with ones."""
    server, folder = running
    found = Changing(server.url, server.port, folder / f"{re.sub(r'[^a-z0-9]', '_', request.node.name)}.gguf")
    found.put(1)
    return found


def test_a_model_that_was_replaced_is_told_and_can_be_opened_again(changing: Changing, connect: Connect) -> None:
    with connect(changing.url, cache_bytes=0) as tap, connect(changing.url) as caching:
        model, kept = tap[changing.id], caching[changing.id]
        tensor = model["w"]
        assert (tensor[:3] == 1).all()
        assert model.metadata["general.name"] == "of 1"
        kept_tensor = kept["w"]
        assert (kept_tensor[:3] == 1).all()
        changing.put(2)
        reads: list[Any] = [
            lambda: tensor[:3],
            lambda: tensor[::2],
            lambda: tensor[:, ::7],
            lambda: tensor.read(decode="server"),
            tensor.native,
            lambda: list(tensor.iter_rows(100)),
            lambda: tensor.save(changing.path.with_suffix(".npy")),
            lambda: model.metadata["words"],
            lambda: list(kept.metadata),
        ]
        for read in reads:
            with pytest.raises(ModelChanged) as raised:
                read()
            assert raised.value.slug == "model-changed"
            assert raised.value.status == 412
        assert (kept_tensor[:3] == 1).all()  # what was moved is what it was
        with pytest.raises(ModelChanged):
            kept_tensor[:4]
        again = tap[changing.id]
        assert (again["w"][...] == 2).all()
        assert again.version != model.version
        assert again.metadata["general.name"] == "of 2"
        assert again.metadata["words"][399] == "2 399"
    assert not (changing.path.with_suffix(".npy")).exists()


def test_a_model_that_is_replaced_in_the_middle_of_a_read_is_never_mixed(changing: Changing, connect: Connect) -> None:
    with Proxy(changing.port) as proxy, connect(proxy.url, part_bytes=1 << 16, cache_bytes=0) as tap:
        tensor = tap[changing.id]["w"]
        replaced = threading.Event()

        def replace(done: int, _: int) -> None:
            if done > 1 << 18 and not replaced.is_set():
                replaced.set()
                changing.put(2)

        with pytest.raises(ModelChanged):
            tensor.read(progress=replace)
        assert (tap[changing.id]["w"][...] == 2).all()


def test_a_body_that_broke_off_does_not_go_on_from_another_version(changing: Changing, connect: Connect) -> None:
    def plan(number: int) -> Fault | None:
        if number:  # it comes back for the rest
            changing.put(2)
        return Fault(500_000) if number == 0 else None

    with Proxy(changing.port, plan) as proxy, connect(proxy.url, part_bytes=1 << 30) as tap:
        tensor = tap[changing.id]["w"]
        out = np.zeros(SHAPE, np.float32)
        with pytest.raises(ModelChanged):
            tensor.read(out=out)
        assert proxy.ended == 1
        assert len(proxy.headers("If-Range")) == 1
        arrived = out.tobytes().rstrip(b"\0")  # up to a byte, perhaps within a value
        assert 0 < len(arrived) < 500_000
        assert np.ones(SHAPE, np.float32).tobytes().startswith(arrived)


def test_readers_of_a_model_that_changes_all_the_time_see_one_version_each(changing: Changing) -> None:
    stop = threading.Event()

    def change() -> None:
        value = 1
        while not stop.wait(0.05 if value % 20 else 2):  # now and then for longer than a read takes on a busy machine
            value += 1
            changing.put(value)

    thread = threading.Thread(target=change)
    thread.start()
    whole = changed = 0
    until = time.monotonic() + 60
    try:
        with Client(changing.url, part_bytes=1 << 17, cache_bytes=1 << 22) as tap:
            while (whole < 3 or changed < 3) and time.monotonic() < until:
                try:
                    weights = tap[changing.id]["w"].read()
                except ModelChanged:
                    changed += 1
                    continue
                whole += 1
                assert (weights == weights[0, 0]).all()
    finally:
        stop.set()
        thread.join()
    assert whole >= 3
    assert changed >= 3


def test_a_table_that_changes_between_its_pages_is_looked_at_again(changing: Changing, connect: Connect) -> None:
    changed: list[str] = []

    def asked(head: str) -> None:
        if "/-/tensors" in head and len(changed) < 2:
            changed.append(head)
            changing.put(10 + len(changed))

    with Proxy(changing.port, asked=asked) as proxy, connect(proxy.url) as tap:
        assert (tap[changing.id]["w"][0] == 12).all()
    assert len(changed) == 2


def test_a_pickled_tensor_is_of_its_version_or_of_none(changing: Changing) -> None:
    with Client(changing.url) as tap:
        pickled = pickle.dumps(tap[changing.id]["w"])
        again = pickle.loads(pickled)
        assert (again[0] == 1).all()
        changing.put(2)
        with pytest.raises(ModelChanged):
            pickle.loads(pickled)
        again._model._client.close()
