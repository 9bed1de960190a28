"""Models in several versions, and what each holds, decoded by others than the service: by ggml's C, or by numpy.

A version differs from another in every tensor and in its metadata, and in nothing that a stat tells but the inode: its
size and its modification time are the same.
"""

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench._blocks import random_blocks
from bench._peers import ggml_decoder, gguf_decoder
from decoders import GGMLType, info
from tests import builder

__all__ = ["MODELS", "PLAIN", "SERIES", "Held", "Version", "load_versions", "put", "series_of", "write_versions"]

_DECODABLE = [type_ for type_ in GGMLType if info(type_).decodable]
_LARGE = (GGMLType.Q8_0, GGMLType.Q4_K, GGMLType.F16, GGMLType.F32, GGMLType.IQ4_XS, GGMLType.Q6_K)
# Name and ne of each tensor: less than a window of every type, and 8 windows of some.
_TENSORS: dict[str, list[tuple[str, GGMLType, tuple[int, ...]]]] = {
    "types": [(f"t.{type_.name.lower()}", type_, (512, 24, 4)) for type_ in _DECODABLE],
    "several-windows": [(f"w.{type_.name.lower()}", type_, (2048, 1024)) for type_ in _LARGE],
}
MODELS = tuple(_TENSORS)
"""The ids of the models."""

PLAIN = {
    GGMLType.F32: "<f4",
    GGMLType.F16: "<f2",
    GGMLType.F64: "<f8",
    GGMLType.I8: "<i1",
    GGMLType.I16: "<i2",
    GGMLType.I32: "<i4",
    GGMLType.I64: "<i8",
}
"""The types that numpy has, by its names of them."""

SERIES = 5000
"""Elements of the metadata array ``load.series``."""

_MODIFIED_NS = 1_700_000_000_000_000_000


@dataclass(frozen=True, slots=True)
class Held:
    """A tensor of a version: its blocks as bytes, one row a row, and its weights in numpy's shape."""

    name: str
    type: GGMLType
    stored: NDArray[np.uint8]
    weights: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a model."""

    number: int
    tensors: Sequence[Held]


def series_of(number: int) -> list[int]:
    """The metadata array ``load.series`` of a version."""
    return [(number + 1) * at for at in range(SERIES)]


def write_versions(folder: Path, count: int) -> None:
    """Write ``count`` versions of each model into ``folder``, and their weights."""
    folder.mkdir()
    for model, layout in _TENSORS.items():
        for number in range(count):
            tensors: list[tuple[builder.Text, builder.Shape, int, bytes]] = []
            for at, (name, type_, ne) in enumerate(layout):
                blocks = random_blocks(type_, int(np.prod(ne)), seed=number * 1000 + at)
                tensors.append((name, ne, type_, blocks.tobytes()))
                np.save(_array(folder, model, number, at, "stored"), blocks.reshape(int(np.prod(ne[1:])), -1))
                np.save(_array(folder, model, number, at, "weights"), _decoded(blocks, type_).reshape(ne[::-1]))
            metadata: list[tuple[builder.Text, int, object]] = [
                ("general.architecture", builder.STRING, "llama"),
                ("load.version", builder.U32, number),
                ("load.series", builder.ARRAY, (builder.I32, series_of(number))),
            ]
            path = _file(folder, model, number)
            path.write_bytes(builder.build(tensors, metadata))
            os.utime(path, ns=(_MODIFIED_NS, _MODIFIED_NS))


def load_versions(folder: Path) -> dict[str, list[Version]]:
    """What `write_versions` has written: the arrays are pages of the files, which several processes share."""
    return {
        model: [
            Version(
                number,
                [
                    Held(
                        name,
                        type_,
                        np.asarray(np.load(_array(folder, model, number, at, "stored"), mmap_mode="r")),
                        np.asarray(np.load(_array(folder, model, number, at, "weights"), mmap_mode="r")),
                    )
                    for at, (name, type_, _) in enumerate(layout)
                ],
            )
            for number in range(len(list(folder.glob(f"{model}.*.gguf"))))
        ]
        for model, layout in _TENSORS.items()
    }


def put(folder: Path, volume: Path, model: str, number: int) -> None:
    """Put a version of a model into a volume, in place of the one that is there, by a rename."""
    new = volume / f"{model}.new"  # not a name of a model
    shutil.copy2(_file(folder, model, number), new)
    new.rename(volume / f"{model}.gguf")


def _decoded(blocks: NDArray[np.uint8], type_: GGMLType) -> NDArray[np.float32]:
    block = info(type_)
    weights = np.empty(len(blocks) // block.block_bytes * block.block_weights, np.float32)
    in_c, in_python = ggml_decoder(type_), gguf_decoder(type_)
    if type_ in PLAIN:
        weights[:] = blocks.view(PLAIN[type_])
    elif in_c is not None:
        in_c(blocks, weights)
    elif in_python is not None:
        weights[:] = in_python(blocks).reshape(-1)
    else:
        # Q8_1: a half scale, a half sum that is for dot products, and 32 quants. Source: ggml-common.h, block_q8_1.
        rows = blocks.reshape(-1, block.block_bytes)
        scales = rows[:, :2].copy().view("<f2").astype(np.float32)
        weights[:] = (scales * rows[:, 4:].view(np.int8)).reshape(-1)
    return weights


def _file(folder: Path, model: str, number: int) -> Path:
    return folder / f"{model}.{number}.gguf"


def _array(folder: Path, model: str, number: int, at: int, what: str) -> Path:
    return folder / f"{model}.{number}.{at}.{what}.npy"
