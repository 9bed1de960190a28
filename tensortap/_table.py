"""Lines of a model's tensor table, as the service lists them."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from decoders import GGMLType, info

__all__ = ["TensorLine", "name_of", "type_of"]


@dataclass(frozen=True, slots=True)
class TensorLine:
    """What is known of a tensor before a weight is moved.

    Attributes
    ----------
    name
        As text; bytes that are no UTF-8 are surrogate escapes.
    shape
        In numpy's order.
    type_name, type_id
        Its ggml type.
    n_bytes
        Stored bytes; None for an unknown type.
    data
        The path of its weights.
    fault
        Why it cannot be read, if so, as the service says it: ``type`` and ``detail``.
    is_native
        Whether its blocks can be moved as they are stored, and decoded here.
    """

    name: str
    shape: tuple[int, ...]
    type_name: str | None
    type_id: int
    n_bytes: int | None
    data: str
    fault: Mapping[str, Any] | None
    is_native: bool
    block_bytes: int
    block_weights: int

    @classmethod
    def of(cls, line: Mapping[str, Any], byte_orders: tuple[str, ...]) -> TensorLine:
        """From a line of the service's; ``byte_orders`` are those of the model's files."""
        type_id, shape = int(line["type_id"]), tuple(map(int, line["shape"]))
        kind = type_of(type_id)
        block = info(kind) if kind is not None and info(kind).decodable else None
        return cls(
            name_of(line, "name"),
            shape,
            line["type"],
            type_id,
            line["bytes"],
            str(line["data"]),
            line.get("fault"),
            block is not None and byte_orders[int(line["file"])] == "little",
            block.block_bytes if block else 1,
            block.block_weights if block else 1,
        )

    @property
    def row_weights(self) -> int:
        """Weights of a row: ``ne[0]``."""
        return self.shape[-1] if self.shape else 1

    @property
    def row_bytes(self) -> int:
        """Stored bytes of a row."""
        return self.row_weights // self.block_weights * self.block_bytes


def type_of(type_id: int) -> GGMLType | None:
    """The type of an id; None for one that is no type of ggml's."""
    try:
        return GGMLType(type_id)
    except ValueError:
        return None


def name_of(line: Mapping[str, Any], field: str) -> str:
    """The name in a field of an answer, exact also where it is no UTF-8."""
    encoded = line.get(f"{field}_base64")
    return str(line[field]) if encoded is None else base64.b64decode(encoded).decode("utf-8", "surrogateescape")
