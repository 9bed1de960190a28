"""Windows of a tensor: which bytes of the file they are, and how they become arrays.

A window is `WINDOW_WEIGHTS` consecutive weights, counted from the tensor's first. Every block size divides it, so a
window is whole blocks. A *source* gives a tensor's windows as 1-D arrays of one kind of item.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

import decoders
from app.buffers import Buffers
from app.gguf import Tensor
from app.snapshot import Snapshot
from decoders import GGMLType

__all__ = ["STORED_DTYPES", "WINDOW_WEIGHTS", "Source", "source"]

# 1 MiB of float32: large enough that a read and a decode outweigh their overhead, small enough for a core's cache.
WINDOW_WEIGHTS = 1 << 18

# The unquantized types, and what one stored weight is. numpy has no bfloat16: its bits travel as uint16.
STORED_DTYPES: dict[GGMLType, tuple[str, np.dtype[Any]]] = {
    GGMLType.F32: ("float32", np.dtype("<f4")),
    GGMLType.F16: ("float16", np.dtype("<f2")),
    GGMLType.BF16: ("bfloat16", np.dtype("<u2")),
    GGMLType.F64: ("float64", np.dtype("<f8")),
    GGMLType.I8: ("int8", np.dtype("<i1")),
    GGMLType.I16: ("int16", np.dtype("<i2")),
    GGMLType.I32: ("int32", np.dtype("<i4")),
    GGMLType.I64: ("int64", np.dtype("<i8")),
}

Kind = Literal["decoded", "stored", "native"]


@dataclass(frozen=True, slots=True)
class Source:
    """A tensor's windows as arrays of ``dtype``: of float32 weights, of stored weights, or of whole blocks.

    ``item_weights`` is how many weights one item is; a window has ``window_items`` items, the last one may have fewer.
    """

    snapshot: Snapshot
    tensor: Tensor
    type: GGMLType
    kind: Kind
    dtype: np.dtype[Any]
    item_weights: int

    @property
    def window_items(self) -> int:
        """Items in a whole window."""
        return WINDOW_WEIGHTS // self.item_weights

    @property
    def n_items(self) -> int:
        """Items of the whole tensor."""
        return self.tensor.n_weights // self.item_weights

    def key(self, window: int) -> tuple[bytes, int, int, Kind]:
        """The window's key in the cache; the snapshot's key comes first, as its group."""
        return self.snapshot.key, self.tensor.start + (self.tensor.file << 64), window, self.kind

    def read(self, window: int, buffers: Buffers) -> NDArray[Any]:
        """Read window number ``window`` and make its array; raises Unavailable where the file cannot be read."""
        block = decoders.info(self.type)
        first = window * WINDOW_WEIGHTS
        n_weights = min(WINDOW_WEIGHTS, self.tensor.n_weights - first)
        n_bytes = n_weights // block.block_weights * block.block_bytes
        start = self.tensor.start + first // block.block_weights * block.block_bytes
        if self.dtype == np.float32:
            weights = buffers.take(n_weights)
            data = weights.view(np.uint8) if self.type is GGMLType.F32 else np.empty(n_bytes, np.uint8)
        else:
            weights, data = None, np.empty(n_bytes, np.uint8)
        self.snapshot.read(self.tensor.file, start, data)
        if self.tensor.big_endian:
            data[:] = decoders.byteswap(data, self.type)
        if weights is None:
            return data.view(self.dtype)
        if self.type is not GGMLType.F32:
            decoders.dequantize(data, self.type, out=weights)
        return weights


def source(snapshot: Snapshot, tensor: Tensor, kind: Kind) -> Source:
    """The source of a readable tensor's windows of one kind; ``stored`` is for the types in `STORED_DTYPES` only."""
    if tensor.type is None:
        raise ValueError(f"type id {tensor.type_id} has no windows: the tensor's fault says why")
    if tensor.type is GGMLType.F32 and kind == "decoded":
        kind = "stored"  # the same bytes: no second copy in the cache, and none on the way
    if kind == "native":
        block = decoders.info(tensor.type)
        return Source(snapshot, tensor, tensor.type, kind, np.dtype((np.void, block.block_bytes)), block.block_weights)
    dtype = np.dtype(np.float32) if kind == "decoded" else STORED_DTYPES[tensor.type][1]
    return Source(snapshot, tensor, tensor.type, kind, dtype, 1)
