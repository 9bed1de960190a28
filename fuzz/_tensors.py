"""What is expected of the tensors of a file that was taken apart: their places, their faults, their weights.

Worked out from the rules alone, without `app.gguf`; what a block measures and holds is `decoders`'.
"""

import math
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

import decoders
from decoders import GGMLType
from fuzz._reading import File, Info

__all__ = ["FORKED", "PLAIN", "Expected", "blocks_of", "expected_tensors", "weights_of"]

FORKED = frozenset({4, 36, 38, 39, 42, *range(133, 400)})
"""Type ids that other projects use in another meaning: what such a tensor is depends on where the next one begins."""

PLAIN: dict[GGMLType, np.dtype[Any]] = {
    GGMLType.F32: np.dtype("<f4"),
    GGMLType.F16: np.dtype("<f2"),
    GGMLType.BF16: np.dtype("<u2"),
    GGMLType.F64: np.dtype("<f8"),
    GGMLType.I8: np.dtype("<i1"),
    GGMLType.I16: np.dtype("<i2"),
    GGMLType.I32: np.dtype("<i4"),
    GGMLType.I64: np.dtype("<i8"),
}
"""The types of which ``dtype=stored`` gives the weights, and what one weight is."""

_KNOWN = {int(one) for one in GGMLType}


@dataclass(frozen=True, slots=True)
class Expected:
    """A tensor: the file it is in, its entry there, its place in bytes, and the slug of its fault, if it has one.

    ``n_bytes`` is None for a type without a size. ``fault`` is of the type's meaning in ggml.
    """

    data: bytes
    info: Info
    start: int
    n_bytes: int | None
    fault: str | None
    big_endian: bool


def expected_tensors(file: File, data: bytes) -> list[Expected]:
    """What is expected of each tensor of a file, whose bytes are ``data``."""
    big_endian = file.layout.byte_order == "big"
    starts = [file.data_start + info.offset for info in file.infos]
    sizes = [_size(info) for info in file.infos]
    filled = [start for start, info in zip(starts, file.infos, strict=True) if _n_weights(info)]
    next_start = dict(pairwise(sorted(set(filled))))
    sharing = Counter(filled)
    found = []
    for info, start, n_bytes in zip(file.infos, starts, sizes, strict=True):
        fault = _own_fault(info, start, n_bytes, len(data), big_endian=big_endian)
        overlaps = n_bytes is not None and start in next_start and start + n_bytes > next_start[start]
        if fault is None and _n_weights(info) and (sharing[start] > 1 or overlaps):
            fault = "tensor-overlap"
        found.append(Expected(data, info, start, n_bytes, fault, big_endian))
    return found


def _n_weights(info: Info) -> int:
    return math.prod(info.ne)


def _size(info: Info) -> int | None:
    if info.type not in _KNOWN or not decoders.info(info.type).decodable:
        return None
    block = decoders.info(info.type)
    row = info.ne[0] if info.ne else 1
    return _n_weights(info) // block.block_weights * block.block_bytes if row % block.block_weights == 0 else None


def _own_fault(info: Info, start: int, n_bytes: int | None, file_size: int, *, big_endian: bool) -> str | None:
    if info.type not in _KNOWN or not decoders.info(info.type).decodable:
        return "unsupported-type"
    if big_endian and info.type not in decoders.BIG_ENDIAN_TYPES:
        return "unsupported-type"
    if n_bytes is None:
        return "partial-block-row"
    return "tensor-past-end-of-file" if n_bytes and start + n_bytes > file_size else None


def blocks_of(tensor: Expected) -> bytes:
    """The blocks of a readable tensor in little-endian order."""
    n_bytes = tensor.n_bytes or 0
    blocks = tensor.data[tensor.start : tensor.start + n_bytes] if n_bytes else b""
    if len(blocks) != n_bytes:
        raise AssertionError("the tensor does not lie in its file")
    return decoders.byteswap(blocks, tensor.info.type).tobytes() if tensor.big_endian else blocks


def weights_of(tensor: Expected) -> NDArray[np.float32]:
    """The weights of a readable tensor, in its shape."""
    return decoders.dequantize(blocks_of(tensor), tensor.info.type).reshape(tensor.info.ne[::-1])
