"""The model files that are served."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bench._blocks import random_blocks
from decoders import GGMLType, dequantize, info
from tests import builder

__all__ = ["DATA", "ROW_WEIGHTS", "decode_file", "write_holes", "write_model"]

DATA = "/v1/models/{model}/-/data/{tensor}"
ROW_WEIGHTS = 4096
_PIECE = 1 << 22


def write_model(path: Path, type_: GGMLType, n_weights: int, row: int = ROW_WEIGHTS) -> None:
    """A model of one tensor ``w`` of random blocks, in rows of ``row`` weights."""
    blocks = random_blocks(type_, n_weights)
    path.write_bytes(builder.build([("w", [row, n_weights // row], type_, blocks.tobytes())]))


def decode_file(source: Path, type_: GGMLType, n_weights: int, target: Path) -> None:
    """The weights of `write_model`'s tensor as a file of float32, as a server of plain files would have them."""
    block = info(type_)
    n_bytes = n_weights // block.block_weights * block.block_bytes
    data = np.fromfile(source, np.uint8, offset=source.stat().st_size - n_bytes)
    step = _PIECE // block.block_weights * block.block_bytes
    with target.open("wb") as file:
        for start in range(0, n_bytes, step):
            dequantize(data[start : start + step], type_).tofile(file)


def write_holes(path: Path, n_weights: int, names: Sequence[str] = ("w",)) -> None:
    """A model of Q8_0 tensors of ``n_weights`` weights each that is a hole after its header: it takes no room."""
    block = info(GGMLType.Q8_0)
    n_bytes = n_weights // block.block_weights * block.block_bytes
    ne = [ROW_WEIGHTS, n_weights // ROW_WEIGHTS]
    infos = [builder.tensor_info(name, ne, GGMLType.Q8_0, at * n_bytes) for at, name in enumerate(names)]
    with path.open("wb") as file:
        file.write(builder.base(infos=infos, data=b""))
        file.truncate(file.tell() + n_bytes * len(names))
