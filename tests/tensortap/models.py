"""A model for the client's tests: tensors of every rank, plain and in blocks, and what their weights are."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoders import GGMLType, dequantize, info
from tests import builder

__all__ = ["WEIRD_NAMES", "blocks", "model_of", "tensors", "values"]

# Where a block of a type has its half scale.
_SCALES = {GGMLType.Q4_0: (0,), GGMLType.Q8_0: (0,), GGMLType.Q4_1: (0, 2), GGMLType.Q4_K: (0, 2)}

WEIRD_NAMES = [b"/", b"..", b"a/../b", b"%2F", b"a?b#c", b"a b\x00c", b"\xff\xfe", "\u00fc".encode(), b"-", b"x=1&y"]

_SHAPES: dict[str, tuple[tuple[int, ...], GGMLType]] = {
    "scalar": ((), GGMLType.F32),
    "vector": ((37,), GGMLType.F32),
    "vector.q8_0": ((96,), GGMLType.Q8_0),
    "matrix": ((9, 5), GGMLType.F32),
    "matrix.f16": ((6, 10), GGMLType.F16),
    "matrix.q4_0": ((11, 64), GGMLType.Q4_0),
    "matrix.q4_k": ((5, 512), GGMLType.Q4_K),
    "matrix.i32": ((4, 3), GGMLType.I32),
    "cube": ((3, 4, 5), GGMLType.F32),
    "cube.q4_1": ((4, 3, 64), GGMLType.Q4_1),
    "four": ((2, 3, 2, 4), GGMLType.F16),
    "four.q8_0": ((3, 2, 3, 32), GGMLType.Q8_0),
}


def blocks(type_: GGMLType, n_weights: int, seed: int = 0) -> bytes:
    """Blocks of a type with so many weights, none of which is a NaN."""
    rng = np.random.default_rng([seed, int(type_)])
    if type_ in (GGMLType.F32, GGMLType.F16):
        return rng.standard_normal(n_weights).astype("<f4" if type_ is GGMLType.F32 else "<f2").tobytes()
    block = info(type_)
    shape = n_weights // block.block_weights, block.block_bytes
    made = rng.integers(0, 256, shape, np.uint8)
    for at in _SCALES.get(type_, ()):
        made[:, at : at + 2] = rng.uniform(0.01, 0.1, shape[0]).astype("<f2").view(np.uint8).reshape(-1, 2)
    return made.tobytes()


def tensors(seed: int = 0) -> dict[str, tuple[tuple[int, ...], GGMLType, bytes]]:
    """The tensors by name: shape, type and bytes."""
    return {
        name: (shape, type_, blocks(type_, int(np.prod(shape)), seed + number))
        for number, (name, (shape, type_)) in enumerate(_SHAPES.items())
    }


def values(seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """The weights of each tensor as they are to be read."""
    return {name: dequantize(data, type_).reshape(shape).copy() for name, (shape, type_, data) in tensors(seed).items()}


def model_of(
    found: Mapping[str, tuple[Sequence[int], GGMLType, bytes]],
    metadata: Sequence[tuple[builder.Text, int, object]] = (),
    weird: Sequence[bytes] = (),
) -> bytes:
    """A GGUF file of tensors; those of ``weird`` names have one weight, their place in it."""
    lines: list[Any] = [(name, list(shape[::-1]), type_, data) for name, (shape, type_, data) in found.items()]
    lines += [(name, [1], GGMLType.F32, builder.floats(place)) for place, name in enumerate(weird)]
    return builder.build(lines, metadata)
