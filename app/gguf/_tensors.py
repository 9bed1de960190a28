"""The tensor table: where each tensor lies, what it takes, and what keeps one from being read.

A fault belongs to one tensor; the others of the file stay readable. Sources: the GGUF specification (ggml,
docs/gguf.md) for offsets and alignment, ggml.h for type ids and block sizes (by way of `decoders`).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Final, NamedTuple

from app.gguf._cursor import ByteOrder
from app.gguf._errors import quoted
from app.gguf._forks import FORKS, Fork
from app.gguf._warnings import Warnings
from decoders import BIG_ENDIAN_TYPES, BlockFormat, GGMLType, info

__all__ = ["Fault", "RawTensor", "Space", "Tensor", "round_up", "tensor_table"]

_FORMATS: Final[dict[int, tuple[GGMLType, BlockFormat]]] = {int(t): (t, info(t)) for t in GGMLType}
_GGML_NAME_LIMIT: Final = 63
_OTHER_FILE: Final = "Use that project's own tools, or a file in one of ggml's present types."


@dataclass(frozen=True, slots=True)
class Fault:
    """What makes one tensor unreadable.

    ``slug`` is one of ``unsupported-type``, ``tensor-past-end-of-file``, ``tensor-overlap``, ``partial-block-row``;
    ``detail`` is a sentence with the numbers and what to do.
    """

    slug: str
    detail: str


@dataclass(frozen=True, slots=True)
class Tensor:
    """One row of the tensor table.

    Attributes
    ----------
    name : the raw bytes of the name, which need not be UTF-8 and need not be unique
    ne : the dimensions in ggml's order, fastest first; `shape` is the same in numpy's order
    type_id : the id in the file
    type : ggml's type of that id; None for an unknown id, and where the id means another project's type
    type_name : the name of the type, another project's included; None when not known
    file : the index of the part in a split set, 0 otherwise
    offset : the byte offset as stored, from the start of the data section
    start : the byte offset from the start of the file
    n_weights : the number of weights (1 for a scalar)
    n_bytes : the bytes that the weights take; None when not known
    fault : what makes the tensor unreadable, or None
    big_endian : whether the file is big-endian, and so the numbers inside the blocks
    original_shape : the shape (numpy's order) before the tensor was flattened to at most 4 dimensions, from a key
        ``comfy.gguf.orig_shape.NAME`` that agrees with the number of weights; else None
    """

    name: bytes
    ne: tuple[int, ...]
    type_id: int
    type: GGMLType | None
    type_name: str | None
    file: int
    offset: int
    start: int
    n_weights: int
    n_bytes: int | None
    fault: Fault | None
    big_endian: bool
    original_shape: tuple[int, ...] | None

    @property
    def readable(self) -> bool:
        """Whether the weights can be read: there is no fault."""
        return self.fault is None

    @property
    def shape(self) -> tuple[int, ...]:
        """The dimensions in numpy's (C) order."""
        return self.ne[::-1]

    @property
    def row_weights(self) -> int:
        """The weights of a row: ``ne[0]``, or 1 for a scalar."""
        return self.ne[0] if self.ne else 1

    @property
    def n_rows(self) -> int:
        """The number of rows: the product of the dimensions above the first, 1 for a scalar."""
        return prod(self.ne[1:])


class RawTensor(NamedTuple):
    """A tensor as its entry in the header states it."""

    name: bytes
    ne: tuple[int, ...]
    type_id: int
    offset: int


class Space(NamedTuple):
    """What a file offers to its tensors, all in bytes."""

    data_start: int
    alignment: int
    file_size: int
    byte_order: ByteOrder
    file: int


class _Sized(NamedTuple):
    """A stated tensor with its place and its size in ggml's meaning of the type."""

    raw: RawTensor
    start: int
    n_weights: int
    n_bytes: int | None
    type: GGMLType | None
    format: BlockFormat | None
    partial_row: bool


def round_up(position: int, alignment: int) -> int:
    """Give the first multiple of `alignment` that is not below `position`."""
    return -(-position // alignment) * alignment


def tensor_table(
    raws: Sequence[RawTensor],
    space: Space,
    original_shapes: Mapping[bytes, tuple[int, ...]],
    warnings: Warnings,
) -> tuple[Tensor, ...]:
    """Give the tensors of a file in file order, each with its fault if it has one, and note oddities.

    Never raises: whatever a tensor states, the result says what is wrong with it.
    """
    sized = [_size(raw, space) for raw in raws]
    starts = sorted({item.start for item in sized})
    following: dict[int, int] = dict(pairwise(starts))
    overlaps = _overlaps(sized)
    big_endian = space.byte_order == "big"
    tensors = []
    for place, item in enumerate(sized):
        raw, block = item.raw, item.format
        after = following.get(item.start)
        fork = _fork_here(item, after, space) if raw.type_id in FORKS else None
        tensors.append(
            Tensor(
                name=raw.name,
                ne=raw.ne,
                type_id=raw.type_id,
                type=None if fork else item.type,
                type_name=fork.type_name if fork else block.name if block else None,
                file=space.file,
                offset=raw.offset,
                start=item.start,
                n_weights=item.n_weights,
                n_bytes=None if fork else item.n_bytes,
                fault=_fault(item, after, fork, space) or overlaps.get(place),
                big_endian=big_endian,
                original_shape=_original_shape(item, original_shapes, warnings) if original_shapes else None,
            )
        )
    _note_names(sized, warnings)
    _note_places(tensors, space, warnings)
    return tuple(tensors)


def _size(raw: RawTensor, space: Space) -> _Sized:
    ne = raw.ne
    n_weights = prod(ne)
    ggml_type, block = _FORMATS.get(raw.type_id, (None, None))
    n_bytes, partial_row = None, False
    if block is not None and block.decodable:
        row = ne[0] if ne else 1
        partial_row = row % block.block_weights != 0
        if not partial_row:
            n_bytes = n_weights // block.block_weights * block.block_bytes
    return _Sized(raw, space.data_start + raw.offset, n_weights, n_bytes, ggml_type, block, partial_row)


def _agrees(start: int, n_bytes: int | None, following: int | None, space: Space) -> bool:
    """Tell whether a tensor of `n_bytes` at `start` fits what follows: the next tensor, or the end of the file."""
    if n_bytes is None:
        return False
    if n_bytes == 0:
        return True
    if following is None:
        return start + n_bytes <= space.file_size
    return space.data_start + round_up(start + n_bytes - space.data_start, space.alignment) == following


def _fork_here(item: _Sized, following: int | None, space: Space) -> Fork | None:
    """Give the other project whose type this is, or None when ggml's meaning of the id stands."""
    fork = FORKS[item.raw.type_id]
    if item.format is None:
        return fork
    if item.format.decodable:
        # A last tensor that is cut short is a truncated file, whoever wrote it.
        ggml = item.partial_row or following is None or _agrees(item.start, item.n_bytes, following, space)
        return None if ggml else fork
    return fork if _agrees(item.start, fork.n_bytes(item.n_weights), following, space) else None


def _fault(item: _Sized, following: int | None, fork: Fork | None, space: Space) -> Fault | None:
    """Give what is wrong with a tensor taken alone, or None."""
    raw, block = item.raw, item.format
    if fork is not None:
        return Fault("unsupported-type", _fork_detail(item, fork, following))
    if block is None or item.type is None:
        return Fault(
            "unsupported-type",
            f"Type {raw.type_id} is not a type of ggml, which has 0 to {max(_FORMATS)}; the size of the tensor is "
            "unknown. Use a file in one of ggml's types, or a newer release of this program.",
        )
    if not block.decodable:
        other = FORKS.get(raw.type_id)
        also = f" {other.project} uses the id for {other.type_name}. {other.note}".rstrip() if other else ""
        return Fault(
            "unsupported-type",
            f"Type {raw.type_id} ({block.name}) was removed from ggml.{also} "
            "Use a file in one of ggml's present types.",
        )
    if space.byte_order == "big" and item.type not in BIG_ENDIAN_TYPES:
        names = ", ".join(t.name for t in sorted(BIG_ENDIAN_TYPES))
        return Fault(
            "unsupported-type",
            f"Type {raw.type_id} ({block.name}) is not supported in a big-endian file; supported there are {names}. "
            "Use the little-endian file.",
        )
    if item.partial_row:
        return Fault(
            "partial-block-row",
            f"A row of {raw.ne[0] if raw.ne else 1} weights is not a whole number of {block.name} blocks of "
            f"{block.block_weights} weights. The file is damaged or was written wrongly: convert the model again.",
        )
    end = item.start + (item.n_bytes or 0)
    if item.n_bytes and end > space.file_size:
        return Fault(
            "tensor-past-end-of-file",
            f"The tensor takes bytes {item.start} to {end} of its file, which ends at {space.file_size}: "
            f"{end - max(space.file_size, item.start)} of its {item.n_bytes} bytes are missing. "
            f"The file is truncated or damaged: download it again.{_or_fork(raw.type_id)}",
        )
    return None


def _or_fork(type_id: int) -> str:
    fork = FORKS.get(type_id)
    return f" (Or it comes from {fork.project}, which uses type {type_id} for another format.)" if fork else ""


def _fork_detail(item: _Sized, fork: Fork, following: int | None) -> str:
    type_id, block = item.raw.type_id, item.format
    name = f"for {fork.type_name}" if fork.type_name else "for formats of its own"
    use = f"{fork.project} uses the id {name}, which is not supported."
    note = f" {fork.note}" if fork.note else ""
    if block is None:
        return f"Type {type_id} is not a type of ggml. {use}{note} {_OTHER_FILE}"
    if not block.decodable:
        return f"Type {type_id} was removed from ggml (as {block.name}). {use}{note} {_OTHER_FILE}"
    return (
        f"Type {type_id} is {block.name} in ggml, where this tensor would take {item.n_bytes} bytes from byte "
        f"{item.start}; the next tensor begins at {following}, which does not fit. {use}{note} {_OTHER_FILE}"
    )


def _overlaps(sized: Sequence[_Sized]) -> dict[int, Fault]:
    """Give the faults of overlapping tensors by place in the table.

    In offset order, one that runs past the start of the next is unreadable; so are all that share a start. Empty
    tensors take no part. A tensor of unknown size has a start, and no end.
    """
    starts = [item.start for item in sized]
    order = sorted((place for place, item in enumerate(sized) if item.n_weights), key=starts.__getitem__)
    sharing = Counter(starts[place] for place in order)
    faults: dict[int, Fault] = {}
    for rank, place in enumerate(order):
        item = sized[place]
        after = sized[order[rank + 1]] if rank + 1 < len(order) else None
        if sharing[item.start] > 1:
            faults[place] = Fault(
                "tensor-overlap",
                f"{sharing[item.start]} tensors begin at byte {item.start} of the file; which of them the bytes there "
                "belong to cannot be known. The file was written wrongly: convert the model again.",
            )
        elif after is not None and item.n_bytes is not None and item.start + item.n_bytes > after.start:
            faults[place] = Fault(
                "tensor-overlap",
                f"The tensor takes bytes {item.start} to {item.start + item.n_bytes} of the file, and tensor "
                f"{quoted(after.raw.name)} begins at {after.start}. The file was written wrongly: "
                "convert the model again.",
            )
    return faults


def _original_shape(
    item: _Sized, original_shapes: Mapping[bytes, tuple[int, ...]], warnings: Warnings
) -> tuple[int, ...] | None:
    shape = original_shapes.get(item.raw.name)
    if shape is None:
        return None
    if all(n >= 0 for n in shape) and prod(shape) == item.n_weights:
        return shape
    kind = "original shapes that do not fit their tensors"
    if warnings.wants(kind):
        warnings.add(
            kind,
            f"The original shape {list(shape)} of tensor {quoted(item.raw.name)} does not have its "
            f"{item.n_weights} weights and is ignored.",
        )
    return None


def _note_names(sized: Sequence[_Sized], warnings: Warnings) -> None:
    twice = "tensor names that occur more than once"
    long = f"tensor names of more than {_GGML_NAME_LIMIT} bytes"
    for name, count in Counter(item.raw.name for item in sized).items():
        if count > 1 and warnings.wants(twice):
            warnings.add(twice, f"{count} tensors are named {quoted(name)}; the name alone does not choose one.")
        if len(name) > _GGML_NAME_LIMIT and warnings.wants(long):
            warnings.add(
                long,
                f"The tensor name {quoted(name)} has {len(name)} bytes; ggml cannot load names of more than "
                f"{_GGML_NAME_LIMIT}.",
            )


def _note_places(tensors: Sequence[Tensor], space: Space, warnings: Warnings) -> None:
    """Warn of unaligned offsets, of an order that is not the file's, and of gaps. All of these are served."""
    previous = -1
    for tensor in tensors:
        kind = "tensors at unaligned offsets"
        if tensor.offset % space.alignment and warnings.wants(kind):
            warnings.add(
                kind,
                f"Tensor {quoted(tensor.name)} has the offset {tensor.offset}, which is not a multiple of the "
                f"alignment {space.alignment}.",
            )
        kind = "tensors whose data comes before that of the one listed before"
        if tensor.offset < previous and warnings.wants(kind):
            warnings.add(
                kind,
                f"Tensor {quoted(tensor.name)} lies at offset {tensor.offset}, before the tensor listed before it: "
                "the data is not in the order of the table.",
            )
        previous = tensor.offset
    end: int | None = 0
    for tensor in sorted((tensor for tensor in tensors if tensor.n_weights), key=lambda tensor: tensor.start):
        kind = "gaps in the data"
        offset = tensor.offset
        if end is not None and offset > round_up(end, space.alignment) and warnings.wants(kind):
            warnings.add(
                kind,
                f"{offset - end} bytes before tensor {quoted(tensor.name)} at offset {offset} belong to no tensor.",
            )
        end = None if tensor.n_bytes is None else max(end or 0, offset + tensor.n_bytes)
