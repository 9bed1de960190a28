"""The programs that people use, on a server with a model large enough to be cut off in the middle of."""

import hashlib
import shutil
from collections.abc import Iterator

import numpy as np
import pytest

import decoders
from decoders import GGMLType
from tests import builder
from tests.server import Server

ROW, N_ROWS = 4096, 4096  # 64 MiB decoded
DATA = "/v1/models/m/-/data/dense%2Fkernel:0"


@pytest.fixture(scope="session")
def blocks() -> bytes:
    made = np.random.default_rng(7).integers(0, 256, (ROW * N_ROWS // 32, 18), np.uint8)
    made[:, 1] &= 0x3F  # scales below 2
    return made.tobytes()


@pytest.fixture(scope="session")
def digest(blocks: bytes) -> str:
    """The SHA-256 of the tensor as raw float32."""
    return hashlib.sha256(decoders.dequantize(blocks, GGMLType.Q4_0).tobytes()).hexdigest()


@pytest.fixture(scope="session")
def server(blocks: bytes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("volume")
    tensors = [("dense/kernel:0", [ROW, N_ROWS], GGMLType.Q4_0, blocks)]
    (folder / "m.gguf").write_bytes(builder.build(tensors, [("general.architecture", builder.STRING, "llama")]))
    with Server(folder, cache_bytes=1 << 20, cors_origins="*") as running:
        yield running


def program(name: str) -> str:
    """The path of a program that must be there: these tests are run where it is."""
    path = shutil.which(name)
    assert path is not None, f"{name} is not installed: make programs installs it"
    return path
