"""What the client's tests share: a server on one model, and both clients."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import builder
from tests.server import Server
from tests.tensortap.models import WEIRD_NAMES, model_of, tensors
from tests.tensortap.twin import CLIENTS, Connect

METADATA: list[tuple[builder.Text, int, object]] = [
    ("general.architecture", builder.STRING, "llama"),
    ("general.name", builder.STRING, "of the tests"),
    ("a.float", builder.F32, 0.1),
    ("a.nan", builder.F64, float("nan")),
    ("a.bool", builder.BOOL, True),
    ("a.long", builder.U64, (1 << 64) - 1),
    ("a.text", builder.STRING, b"no UTF-8: \xff"),
    ("a.longer text", builder.STRING, "word " * 30_000),
    ("a.list", builder.ARRAY, (builder.I32, list(range(-500, 500)))),
    ("a.list of floats", builder.ARRAY, (builder.F32, [1.5, float("inf"), float("-inf")])),
    ("a.list of texts", builder.ARRAY, (builder.STRING, [f"token {n}" for n in range(300)] + [b"\xff"])),
    ("a.list of lists", builder.ARRAY, (builder.ARRAY, [(builder.U8, [1, 2]), (builder.U8, [])])),
]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server on ``tests``, of the tensors of `tests.tensortap.models`, and ``broken``, whose ``x`` cannot be read."""
    folder = tmp_path_factory.mktemp("volume")
    infos = [builder.tensor_info("w", [4, 2], 0, 0), builder.tensor_info("x", [4], 999, 32)]
    (folder / "broken.gguf").write_bytes(builder.base(infos=infos, data=builder.floats(*range(16))))
    (folder / "tests.gguf").write_bytes(model_of(tensors(), METADATA, WEIRD_NAMES))
    with Server(folder) as running:
        yield running


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """An empty folder for the models of one test."""
    folder = tmp_path / "volume"
    folder.mkdir()
    return folder


@pytest.fixture(params=CLIENTS, ids=["sync", "async"])
def connect(request: pytest.FixtureRequest) -> Connect:
    """Client, and AsyncClient with the same face."""
    made: Connect = request.param
    return made
