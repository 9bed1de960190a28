"""The constant tables of the IQ formats, read once from the package's own data file.

`grids.npz` holds ggml-common.h's codebooks as int8: `iq1_s` (2048, 8), `iq2_xxs` (256, 8), `iq2_xs`
(512, 8), `iq2_s` (1024, 8), `iq3_xxs` (256, 4), `iq3_s` (512, 4), and `sign_masks`, uint8 (128,):
the 8 signs that a 7-bit index stands for (`ksigns_iq2xs`).
"""

from __future__ import annotations

from functools import cache
from importlib import resources

import numpy as np
from numpy.typing import NDArray

from ._blocks import Floats, Rows


@cache
def rows(name: str) -> Rows:
    """The rows of a codebook of `grids.npz`; the same read-only array at every call."""
    return _frozen(_load(name))


@cache
def pairs(name: str) -> Rows:
    """Two rows of a codebook of 4 values side by side: row i + 256 * j is row i, then row j."""
    table = _load(name)
    first, second = np.tile(table, (len(table), 1)), np.repeat(table, len(table), axis=0)
    return _frozen(np.concatenate([first, second], axis=1))


@cache
def signed(name: str) -> Rows:
    """A codebook with its rows under every sign index: row i + rows * s is row i with the signs of index s."""
    table = _load(name)
    return _frozen((indexed_signs()[:, None] * table).reshape(-1, 8))


@cache
def iq1() -> Floats:
    """IQ1's codebook with its offset added: rows 0-2047 are grid + 1/8, rows 2048-4095 grid - 1/8."""
    base = _load("iq1_s").astype(np.float32)
    table = np.concatenate([base + np.float32(0.125), base - np.float32(0.125)])
    table.flags.writeable = False
    return table


@cache
def signs() -> Rows:
    """The eight factors of every sign byte, (256, 8): -1 where the bit is set (lowest first), else +1."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    return _frozen(np.int8(1) - np.int8(2) * bits.view(np.int8))


@cache
def indexed_signs() -> Rows:
    """The eight factors of every 7-bit sign index, (128, 8)."""
    return _frozen(signs()[_load("sign_masks")])


def _load(name: str) -> NDArray[np.int8]:
    with resources.files(__package__).joinpath("grids.npz").open("rb") as file, np.load(file) as data:
        table: NDArray[np.int8] = data[name]
    return table


def _frozen(table: Rows) -> Rows:
    table.flags.writeable = False  # threads share it
    return table
