"""Random valid files of gguf-py's writer, through a real server: the same as its reader reads them.

``DIFFERENTIAL_EXAMPLES=2000 pytest tests/app/test_differential.py`` compares more of them.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import gguf
import pytest

from tests.differential import PEER_CANNOT, compare_example, write_example
from tests.server import Server

EXAMPLES = 60


@pytest.fixture(scope="module")
def volume(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("volume")


@pytest.fixture(scope="module")
def server(volume: Path) -> Iterator[Server]:
    with Server(volume, recheck_seconds=0) as running:
        yield running


@pytest.mark.parametrize("seed", range(max(EXAMPLES, int(os.environ.get("DIFFERENTIAL_EXAMPLES", "0")))))
def test_a_file_of_gguf_py_is_served_as_its_reader_reads_it(server: Server, volume: Path, seed: int) -> None:
    example = write_example(volume, seed)
    try:
        compare_example(server, example)
    finally:
        for path in example.paths:
            path.unlink()


def test_the_examples_have_all_there_is(tmp_path: Path) -> None:
    had: set[str] = set()
    for seed in range(EXAMPLES):
        folder = tmp_path / str(seed)
        folder.mkdir()
        had |= write_example(folder, seed).features
    types = {one.name for one in gguf.GGMLQuantizationType if one not in PEER_CANNOT}
    in_big_endian = {"Q4_0", "Q8_0", "Q4_K", "Q6_K", "MXFP4", "NVFP4"}
    in_big_endian |= {"F32", "F16", "BF16", "F64", "I8", "I16", "I32", "I64"}
    values = {one.name for one in gguf.GGUFValueType}
    assert had >= {
        *(f"little {name}" for name in types),
        *(f"big {name}" for name in in_big_endian),
        *(f"value {name}" for name in values - {"ARRAY"}),
        *(f"array of {name}" for name in values),
        *(f"nested {name}" for name in ("INT32", "FLOAT32", "BOOL", "STRING")),
        *(f"{n_dims} dims" for n_dims in range(5)),
        *(f"alignment {alignment}" for alignment in (1, 8, 16, 64, 4096)),
        *("split_max_tensors", "split_max_size", "small_first_shard", "split", "one file", "empty", "window"),
    }
