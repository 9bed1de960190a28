"""Remote tensors beside what else there is: numpy, pickle, processes, safetensors, torch, dask, fsspec."""

import json
import multiprocessing
import os
import pickle
import ssl
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensortap
from decoders import GGMLType, dequantize
from tensortap import AsyncClient, Client, NotFound, RemoteModel, RemoteTensor, Unreadable
from tensortap._flow import Ask
from tests import builder
from tests.server import Server
from tests.tensortap.models import WEIRD_NAMES, tensors, values
from tests.tensortap.twin import CLIENTS, Connect

VALUES = values()


@pytest.fixture(scope="module")
def model(server: Server) -> Iterator[RemoteModel]:
    with Client(server.url) as tap:
        yield tap["tests"]


def test_a_client_lists_its_models(server: Server, connect: Connect) -> None:
    with connect(server.url + "/") as tap:
        assert tap.models() == ["broken", "tests"]
        with pytest.raises(NotFound) as raised:
            tap["not there"]
        assert raised.value.slug == "no-such-model"
        for name in ("..", ".", "-", "a/../b", "\udcff", "%2E", "x" * 300):
            with pytest.raises(NotFound):
                tap[name]
    with Client(server.url) as sync:
        assert list(sync) == ["broken", "tests"]
        assert "tests" in sync
        assert "other" not in sync
        with pytest.raises(TypeError, match="a model id is text, not int"):
            sync[0]  # type: ignore[index]
        assert repr(sync) == f"<Client {server.url}>"


def test_a_model_is_a_mapping(model: RemoteModel, server: Server) -> None:
    names = [*VALUES, *(name.decode("utf-8", "surrogateescape") for name in WEIRD_NAMES)]
    assert list(model) == list(model.keys()) == names
    assert len(model) == len(names)
    assert all(name in model for name in names)
    assert "other" not in model
    assert model.get("other") is None
    with pytest.raises(KeyError, match="has no tensor 'other'"):
        model["other"]
    assert repr(model) == f"<RemoteModel 'tests': {len(names)} tensors, {model.parameters:,} parameters>"
    assert model.parameters == sum(array.size for array in VALUES.values()) + len(WEIRD_NAMES)
    assert model.summary["architecture"] == "llama"
    assert model.nbytes > 1000
    with Client(server.url) as tap:
        again = tap["tests"]
        assert again == model
        assert hash(again) == hash(model)
    assert model != {}


def test_names_are_exact_whatever_is_in_them(server: Server, connect: Connect) -> None:
    with connect(server.url) as tap:
        model = tap["tests"]
        for place, name in enumerate(WEIRD_NAMES):
            assert model[name.decode("utf-8", "surrogateescape")][...].tolist() == [place]


def test_metadata_is_pythons(server: Server, connect: Connect) -> None:
    with connect(server.url) as tap:
        metadata = tap["tests"].metadata
        assert list(metadata)[:2] == ["general.architecture", "general.name"]
        assert metadata["general.name"] == "of the tests"
        assert metadata["a.float"] == 0.1
        assert np.isnan(metadata["a.nan"])
        assert metadata["a.bool"] is True
        assert metadata["a.long"] == (1 << 64) - 1
        assert metadata["a.text"] == b"no UTF-8: \xff"
        assert metadata["a.longer text"] == "word " * 30_000
        assert metadata["a.list"] == list(range(-500, 500))
        assert metadata["a.list of floats"] == [1.5, float("inf"), float("-inf")]
        assert metadata["a.list of texts"] == [*(f"token {n}" for n in range(300)), b"\xff"]
        assert metadata["a.list of lists"] == [[1, 2], []]
        metadata["a.list"].clear()
        assert len(metadata["a.list"]) == 1000  # what was given out was the caller's own
        with pytest.raises(NotFound):
            metadata["other"]
    with Client(server.url) as sync:
        found = sync["tests"].metadata
        assert "not yet brought" in repr(found)
        assert len(found) == len(dict(found))
        assert "general.name" in found
        assert f"{len(found)} keys" in repr(found)


def test_arrays_too_long_for_one_answer_come_in_several(
    server: Server, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = tensortap._metadata._Metadata._whole

    def refuses(self: Any, line: Any) -> Any:
        steps = flow(self, line)
        answer = None
        while True:
            try:
                asked = steps.send(answer)
                assert isinstance(asked, Ask)
                if "slice=" not in asked.path:
                    asked = steps.throw(tensortap.TooLarge("too much"))
                answer = yield asked
            except StopIteration as end:
                return end.value

    monkeypatch.setattr("tensortap._metadata._Metadata._whole", refuses)
    monkeypatch.setattr("tensortap._metadata._PAGE", 300)
    with connect(server.url) as tap:
        assert tap["tests"].metadata["a.list"] == list(range(-500, 500))
        with pytest.raises(tensortap.TooLarge):
            tap["tests"].metadata["a.longer text"]


def test_a_tensor_is_like_an_array(model: RemoteModel) -> None:
    w, expected = model["matrix.q4_0"], VALUES["matrix.q4_0"]
    assert (w.shape, w.ndim, w.size, w.nbytes) == ((11, 64), 2, 704, 2816)
    assert w.dtype == np.float32
    assert (w.ggml_type, w.native_nbytes, w.n_rows, w.readable, len(w)) == (GGMLType.Q4_0, 396, 11, True, 11)
    assert repr(w) == "<RemoteTensor 'matrix.q4_0' Q4_0 (11, 64) of 'tests'>"
    assert np.array_equal(np.asarray(w), expected)
    assert np.array_equal(np.array(w, copy=True), expected)
    assert np.asarray(w, np.float64).dtype == np.float64
    assert np.array_equal(np.asarray(w, np.float64), expected)
    assert np.array_equal(np.add(w, 1), expected + 1)
    with pytest.raises(ValueError, match="always a copy"):
        np.array(w, copy=False)
    assert np.array_equal(list(w), expected)
    assert [type(one) for one in model["vector"]] == [np.float32] * 37
    assert np.asarray(model["scalar"]).shape == ()
    assert float(model["scalar"][()]) == float(VALUES["scalar"])
    for refused in (len, iter):
        with pytest.raises(TypeError):
            refused(model["scalar"])


@pytest.mark.parametrize("name", sorted(VALUES))
def test_rows_and_stored_blocks(server: Server, connect: Connect, name: str, tmp_path: Path) -> None:
    shape, type_, data = tensors()[name]
    expected = VALUES[name]
    rows = expected.reshape(-1, shape[-1] if shape else 1)
    with connect(server.url, part_bytes=100) as tap:
        w = tap["tests"][name]
        pieces = list(w.iter_rows(2))
        assert [len(piece) for piece in pieces[:-1]] == [2] * (len(pieces) - 1)
        assert np.array_equal(np.concatenate(pieces), rows)
        assert w.native().tobytes() == data
        assert (
            w.native(1, -1).tobytes()
            == data[len(data) // len(rows) :][: max(0, len(rows) - 2) * len(data) // len(rows)]
        )
        assert w.native(5, 2).size == 0
        assert np.array_equal(dequantize(w.native(), type_), expected.reshape(-1))
        w.save(tmp_path / "w.npy")
        saved = np.load(tmp_path / "w.npy", allow_pickle=False)
        assert saved.shape == shape
        assert saved.dtype == np.dtype("<f4")
        assert np.array_equal(saved, expected)
        with pytest.raises(ValueError, match="at least 1"):
            list(w.iter_rows(0))
    assert os.listdir(tmp_path) == ["w.npy"]


def test_a_save_larger_than_its_batches(model: RemoteModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensortap._tensor._SAVED_BYTES", 1000)
    told: list[tuple[int, int]] = []
    model["matrix.q4_0"].save(tmp_path / "w.npy", progress=lambda done, of: told.append((done, of)))
    assert np.array_equal(np.load(tmp_path / "w.npy"), VALUES["matrix.q4_0"])
    assert told[-1] == (396, 396)


def test_out_is_filled(server: Server, connect: Connect) -> None:
    with connect(server.url, part_bytes=100) as tap:
        w, expected = tap["tests"]["cube.q4_1"], VALUES["cube.q4_1"]
        picks: list[Any] = [..., 2, slice(1, 3), (slice(None), 1, slice(3, 9, 2)), (0, 1, 2), (None, 3)]
        for index in picks:
            for decode in ("client", "server"):
                out = np.full(expected[index].shape, 7, np.float32)
                assert w.read(index, out=out, decode=decode) is out
                assert np.array_equal(out, expected[index])
        readonly = np.empty(w.shape, np.float32)
        readonly.flags.writeable = False
        for bad in (
            np.empty(w.shape, np.float64),
            np.empty((1, 2), np.float32),
            np.empty(w.shape[::-1], np.float32).T,
            readonly,
        ):
            with pytest.raises(ValueError, match="out must be writable, contiguous float32 of shape"):
                w.read(out=bad)
        for index in (slice(None, None, -1), [0, 1]):
            with pytest.raises(ValueError, match="positive steps and without lists"):
                w.read(index, out=np.empty(expected[index].shape, np.float32))
        with pytest.raises(TypeError, match="out is a numpy array, not bytearray"):
            w.read(out=bytearray(100))
        with pytest.raises(ValueError, match="decode is"):
            w.read(decode="here")


def test_progress_is_told_from_nothing_to_all(server: Server, connect: Connect) -> None:
    with connect(server.url, part_bytes=100, decode="client") as tap:
        for _ in range(2):  # the second time from the cache
            told: list[tuple[int, int]] = []
            tap["tests"]["matrix.q4_0"].read(progress=lambda done, of, told=told: told.append((done, of)))
            assert [done for done, _ in told] == sorted(done for done, _ in told)
            assert told[-1] == (396, 396)


def test_a_tensor_that_cannot_be_read_says_why(server: Server, connect: Connect, tmp_path: Path) -> None:
    with connect(server.url) as tap:
        model = tap["broken"]
        assert model["w"][1].tolist() == [4, 5, 6, 7]
        x = model["x"]
        assert not x.readable
        reads: list[Any] = [
            lambda: x[0],
            x.read,
            x.native,
            lambda: x.save(tmp_path / "x"),
            lambda: list(x.iter_rows()),
        ]
        for read in reads:
            with pytest.raises(Unreadable, match="x: ") as raised:
                read()
            assert raised.value.slug == "unsupported-type"
    with Client(server.url) as sync:
        sync_x = sync["broken"]["x"]
        assert repr(sync_x).endswith("of 'broken', unreadable>")
        assert sync_x.ggml_type is None
        with pytest.raises(Unreadable):
            iter(sync_x)


def test_api_keys(volume: Path) -> None:
    (volume / "m.gguf").write_bytes(builder.base())
    with Server(volume, api_keys="right m") as server:
        for connect in CLIENTS:
            for key in (None, "wrong"):
                with connect(server.url, api_key=key) as tap, pytest.raises(PermissionError) as raised:
                    tap["m"]
                assert isinstance(raised.value, tensortap.Unauthorized)
            with connect(server.url, api_key="right") as tap:
                assert tap["m"]["w"][0].tolist() == [0, 1, 2, 3]


def test_it_can_be_pickled(server: Server) -> None:
    with Client(server.url, decode="client", headers={"X-Own": "1"}, cache_bytes=123) as tap:
        model = tap["tests"]
        for one in (model["matrix"], model, tap):
            again = pickle.loads(pickle.dumps(one))
            assert type(again) is type(one)
            tensor = again if isinstance(again, RemoteTensor) else None
            if tensor is None:
                tensor = (again if isinstance(again, RemoteModel) else again["tests"])["matrix"]
            assert np.array_equal(tensor[...], VALUES["matrix"])
            client = tensor._model._client
            assert client._settings == tap._settings
            assert client._reader.decode == "client"
            client.close()
    asked = AsyncClient(server.url, api_key="k")
    assert pickle.loads(pickle.dumps(asked))._settings == asked._settings


def test_certificates_are_read_once_for_all_clients(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[None] = []
    create = ssl.create_default_context

    def counted(**settings: Any) -> ssl.SSLContext:
        read.append(None)
        return create(**settings)

    monkeypatch.setattr("ssl.create_default_context", counted)
    for _ in range(3):
        with Client(server.url) as tap:
            assert "tests" in tap
            tensor = pickle.loads(pickle.dumps(tap["tests"]["matrix"]))
        assert np.array_equal(tensor[...], VALUES["matrix"])
        tensor._model._client.close()
    assert len(read) <= 1


def rows_of(tensor: RemoteTensor, rows: slice) -> bytes:
    """What another process reads of a tensor that it was given."""
    found: bytes = tensor[rows].tobytes()
    tensor._model._client.close()
    return found


def test_a_spawned_process_is_given_a_tensor(server: Server) -> None:
    with Client(server.url) as tap, multiprocessing.get_context("spawn").Pool(1) as pool:
        found = pool.apply(rows_of, (tap["tests"]["matrix.q4_0"], slice(2, 5)))
    assert found == VALUES["matrix.q4_0"][2:5].tobytes()


def test_a_forked_child_does_not_use_its_parents_connections(server: Server, tmp_path: Path) -> None:
    """Nor waits for its locks, nor closes anything of it."""
    with Client(server.url, disk_cache=tmp_path / "kept") as tap:
        tensor = tap["tests"]["matrix"]
        assert np.array_equal(tensor[:2], VALUES["matrix"][:2])
        ports = sockets()
        tap._lock.acquire()  # as a thread of the parent might, that the child does not have
        assert tap._cache is not None
        assert tap._cache.memory is not None
        tap._cache.memory._lock.acquire()
        reading, writing = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # that there are threads is the point
            child = os.fork()
        if child == 0:
            status = 1
            try:
                same = np.array_equal(tensor[...], VALUES["matrix"])
                os.write(writing, json.dumps([same, sorted(sockets() - ports)]).encode())
                tap.close()
                status = 0
            finally:
                os._exit(status)
        tap._lock.release()
        tap._cache.memory._lock.release()
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            same, own = json.load(pipe)
        assert os.waitpid(child, 0)[1] == 0
        assert same
        assert len(own) == 1
        assert np.array_equal(tensor[...], VALUES["matrix"])  # over the connection that it has had
        assert sockets() == ports


def sockets() -> set[str]:
    """The sockets of this process."""
    links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    return {os.readlink(link) for link in links if os.path.lexists(link) and os.readlink(link).startswith("socket:")}


def test_safe_open_is_that_of_safetensors(server: Server) -> None:
    with tensortap.safe_open(server.url, "tests", decode="client") as file:
        assert list(file.keys())[:3] == list(VALUES)[:3]
        assert np.array_equal(file.get_tensor("matrix"), VALUES["matrix"])
        part = file.get_slice("matrix")
        assert part.get_shape() == [9, 5]
        assert part.get_dtype() == "F32"
        assert np.array_equal(part[:, 1:3], VALUES["matrix"][:, 1:3])
        client = file._client
        with pytest.raises(KeyError):
            file.get_tensor("other")
    assert client._runner is None
    for framework in ("np", "numpy"):
        with tensortap.safe_open(server.url, "tests", framework) as file:
            assert "matrix" in file.keys()  # noqa: SIM118
    with pytest.raises(ValueError, match="'np' or 'numpy', not 'pt'"), tensortap.safe_open(server.url, "tests", "pt"):
        pass
    with pytest.raises(NotFound), tensortap.safe_open(server.url, "other"):
        pass


def test_torch_and_dask_that_are_not_there_say_what_to_install(
    model: RemoteModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("torch", "dask", "dask.array"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=r"tensortap\[torch\]"):
        model["matrix"].to_torch()
    with pytest.raises(ImportError, match=r"tensortap\[dask\]"):
        model["matrix"].to_dask()


def test_to_torch(model: RemoteModel) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    for name, expected in VALUES.items():
        tensor = model[name].to_torch()
        assert tensor.dtype == torch.float32
        assert tuple(tensor.shape) == expected.shape
        assert np.array_equal(tensor.numpy(), expected)


def test_to_dask(model: RemoteModel) -> None:
    dask = pytest.importorskip("dask", reason="dask is not installed")
    with dask.config.set(scheduler="threads", num_workers=4):
        for name, expected in VALUES.items():
            for rows in (None, 2):
                lazy = model[name].to_dask(rows)
                assert lazy.shape == expected.shape
                assert lazy.dtype == np.float32
                assert np.array_equal(lazy.compute(), expected)
        lazy = model["cube"].to_dask(1)
        assert lazy.numblocks == (3, 1, 1)
        assert np.array_equal(lazy[::-1, 1:3, [0, 4]].compute(), VALUES["cube"][::-1, 1:3, [0, 4]])
        assert np.allclose(lazy.mean(axis=0).compute(), VALUES["cube"].mean(axis=0))
        assert lazy.name == model["cube"].to_dask(1).name
        assert lazy.name != model["four"].to_dask(1).name


def test_a_url_for_fsspec(server: Server, model: RemoteModel) -> None:
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
    pytest.importorskip("aiohttp", reason="aiohttp is not installed")
    with fsspec.open(f"{server.url}/v1/models/tests/-/data/matrix", "rb", block_size=64) as file:
        file.seek(40)
        assert file.read(20) == VALUES["matrix"].tobytes()[40:60]
