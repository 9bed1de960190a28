"""What the list of models says of each: a few facts from its header, small enough to keep for thousands of models."""

from dataclasses import dataclass

from app.gguf import Model
from app.names import text

__all__ = ["Summary", "TypeFigures", "summarize"]

_LONGEST_NAME = 1024


@dataclass(slots=True)
class TypeFigures:
    """What a model has of one type of tensor; ``bytes`` counts tensors whose size is known."""

    tensors: int = 0
    weights: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Summary:
    """Architecture and name as the file gives them (None if it does not), and sums over its tensors."""

    architecture: str | None
    name: str | None
    tensors: int
    unreadable_tensors: int
    parameters: int
    types: dict[str, TypeFigures]
    warnings: int


def summarize(model: Model) -> Summary:
    """The summary of a model."""
    types: dict[str, TypeFigures] = {}
    for tensor in model.tensors:
        figures = types.setdefault(tensor.type_name or str(tensor.type_id), TypeFigures())
        figures.tensors += 1
        figures.weights += tensor.n_weights
        figures.bytes += tensor.n_bytes or 0
    return Summary(
        architecture=_string(model, b"general.architecture"),
        name=_string(model, b"general.name"),
        tensors=len(model.tensors),
        unreadable_tensors=sum(tensor.fault is not None for tensor in model.tensors),
        parameters=sum(tensor.n_weights for tensor in model.tensors),
        types=types,
        warnings=len(model.warnings),
    )


def _string(model: Model, key: bytes) -> str | None:
    value = model.metadata.get(key)
    return text(value[:_LONGEST_NAME]) if isinstance(value, bytes) else None
