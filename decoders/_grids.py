"""The constant tables of the IQ formats, read once from the package's own data file.

`grids.npz` holds ggml-common.h's codebooks as int8: `iq1_s` (2048, 8), `iq2_xxs` (256, 8), `iq2_xs`
(512, 8), `iq2_s` (1024, 8), `iq3_xxs` (256, 4), `iq3_s` (512, 4), and `sign_masks`, uint8 (128,):
the 8 signs that a 7-bit index stands for (`ksigns_iq2xs`).
"""

from __future__ import annotations

from functools import cache
from importlib import resources

import numpy as np

from ._blocks import Floats


@cache
def grid(name: str) -> Floats:
    """A codebook of `grids.npz` as float32; the same read-only array at every call."""
    return _frozen(_load(name).astype(np.float32))


@cache
def iq1_grid() -> Floats:
    """IQ1's codebook with its offset added: rows 0-2047 are grid + 1/8, rows 2048-4095 grid - 1/8."""
    base = grid("iq1_s")
    return _frozen(np.concatenate([base + np.float32(0.125), base - np.float32(0.125)]))


@cache
def signs() -> Floats:
    """The eight factors of every sign byte, (256, 8): -1 where the bit is set (lowest first), else +1."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    return _frozen(np.float32(1) - np.float32(2) * bits.astype(np.float32))


@cache
def indexed_signs() -> Floats:
    """The eight factors of every 7-bit sign index, (128, 8)."""
    return _frozen(signs()[_load("sign_masks")])


def _load(name: str) -> np.ndarray[tuple[int, ...], np.dtype[np.int8 | np.uint8]]:
    with resources.files(__package__).joinpath("grids.npz").open("rb") as file, np.load(file) as data:
        table: np.ndarray[tuple[int, ...], np.dtype[np.int8 | np.uint8]] = data[name]
    return table


def _frozen(table: Floats) -> Floats:
    table.flags.writeable = False  # threads share it
    return table
