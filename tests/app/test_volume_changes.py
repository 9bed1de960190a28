"""A volume that changes under a running server: what comes, grows, goes and comes back is seen without a restart."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from decoders import GGMLType
from tests.builder import base, build, floats
from tests.server import Server

DATA = "/v1/models/{}/-/data/w"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "volume").mkdir()
    return tmp_path / "volume"


@pytest.fixture
def server(root: Path) -> Iterator[Server]:
    with Server(root, recheck_seconds=0) as running:
        yield running


def status(server: Server, model: str) -> int:
    return server.client.get(DATA.format(model)).status_code


def models(server: Server) -> dict[str, bool]:
    """The ids of all models, and whether they can be read."""
    return {one["id"]: one["readable"] for one in server.client.get("/v1/models").json()["models"]}


@pytest.mark.case(5)
def test_a_file_that_is_being_uploaded_becomes_readable_bit_by_bit(root: Path, server: Server) -> None:
    weights = np.arange(4096, dtype="<f4").tobytes()
    whole = build([("first", [4], GGMLType.F32, floats(1, 2, 3, 4)), ("w", [4096], GGMLType.F32, weights)])
    assert models(server) == {}
    with (root / "m.gguf").open("wb") as file:
        file.write(whole[:50])
        file.flush()
        assert models(server) == {"m": False}
        assert server.client.get("/v1/models/m").status_code == 422
        file.write(whole[50:-5000])
        file.flush()
        assert models(server) == {"m": True}
        assert server.client.get("/v1/models/m/-/data/first").content == floats(1, 2, 3, 4)
        cut = server.client.get(DATA.format("m"))
        assert (cut.status_code, cut.json()["type"]) == (422, "/problems/tensor-past-end-of-file")
        file.write(whole[-5000:])
    assert server.client.get(DATA.format("m")).content == weights


@pytest.mark.case(25)
def test_a_removed_model_is_gone_and_may_come_back(root: Path, server: Server) -> None:
    (root / "m.gguf").write_bytes(base())
    (root / "other.gguf").write_bytes(base())
    etag = server.client.head(DATA.format("m")).headers["etag"]
    (root / "m.gguf").rename(root.parent / "kept")
    assert status(server, "m") == 404
    assert models(server) == {"other": True}
    (root.parent / "kept").rename(root / "m.gguf")
    assert status(server, "m") == 200
    assert server.client.head(DATA.format("m")).headers["etag"] == etag


@pytest.mark.case(5)
def test_a_file_that_shrank_in_place_is_told_and_the_rest_is_served(root: Path, server: Server) -> None:
    content = build([("first", [4], GGMLType.F32, floats(1, 2, 3, 4)), ("w", [64], GGMLType.F32, bytes(256))])
    (root / "m.gguf").write_bytes(content)
    assert status(server, "m") == 200
    os.truncate(root / "m.gguf", len(content) - 100)
    assert status(server, "m") == 422
    assert server.client.get("/v1/models/m/-/data/first").status_code == 200
    os.truncate(root / "m.gguf", 10)
    assert server.client.get("/v1/models/m/-/data/first").status_code == 422


def test_a_volume_that_is_unmounted_and_comes_back(root: Path, server: Server) -> None:
    (root / "m.gguf").write_bytes(base())
    assert status(server, "m") == 200
    away = root.rename(root.parent / "away")
    lost = server.client.get(DATA.format("m"))
    assert (lost.status_code, lost.json()["type"]) == (503, "/problems/volume-error")
    assert lost.headers["retry-after"]
    assert server.client.get("/v1/models").status_code == 503
    assert server.client.get("/readyz").status_code == 503
    assert server.client.get("/healthz").status_code == 200
    root.mkdir()  # the mount point, empty
    assert status(server, "m") == 404
    assert server.client.get("/readyz").status_code == 200
    root.rmdir()
    away.rename(root)
    assert status(server, "m") == 200
    assert models(server) == {"m": True}


@pytest.mark.case(25)
def test_a_root_that_is_a_link_may_be_switched(tmp_path: Path) -> None:
    for name, value in (("old", 1.0), ("new", 2.0)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "m.gguf").write_bytes(base(data=floats(*[value] * 8)))
    (tmp_path / "now").symlink_to("old")
    with Server(tmp_path / "now", recheck_seconds=0) as server:
        assert set(np.frombuffer(server.client.get(DATA.format("m")).content, "<f4")) == {1.0}
        (tmp_path / "next").symlink_to("new")
        (tmp_path / "next").rename(tmp_path / "now")
        assert set(np.frombuffer(server.client.get(DATA.format("m")).content, "<f4")) == {2.0}
        assert models(server) == {"m": True}
