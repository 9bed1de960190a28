"""A model as a safetensors file that nobody has written: a header for the selected tensors, and their weights in order.

Format: 8 bytes of little-endian length, a JSON object of that length, then the tensors' bytes without gaps. The object
gives each tensor's dtype, shape and place. Source: the safetensors README, "Format".
"""

import hashlib
import json
from collections.abc import Iterable

from app.content import Content, Section, content_length
from app.encoding import as_bytes, converted
from app.errors import AmbiguousTensor, BadRequest, Unreadable
from app.gguf import Tensor, quoted
from app.names import text
from app.parameters import DTypeName
from app.representation import Representation, disposition, etag_of, weights_as
from app.selection import select_all
from app.snapshot import Snapshot

__all__ = ["represent_safetensors"]

_NAMES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
}
_RESERVED = "__metadata__"


def represent_safetensors(snapshot: Snapshot, tensors: Iterable[Tensor], dtype: DTypeName) -> Representation:
    """The safetensors file of some tensors of a model.

    Raises
    ------
    Unreadable
        With the slug of a tensor's fault.
    AmbiguousTensor
        Two of the tensors have one name, or names that are one as UTF-8.
    BadRequest
        ``bad-parameter``: ``dtype=stored`` of a quantized tensor, or a name that the format reserves.
    """
    header: dict[str, object] = {_RESERVED: {"format": "pt", "source": "gguf"}}
    sections: list[Section] = []
    at = 0
    for tensor in tensors:
        name = text(tensor.name)
        if name in header:
            if name == _RESERVED:
                raise BadRequest("bad-parameter", f"a safetensors file can have no tensor called {_RESERVED}.")
            raise AmbiguousTensor(f"two of the tensors are called {quoted(tensor.name)}: leave them out with exclude=.")
        section, dtype_name = _section(snapshot, tensor, dtype)
        size = section.n_bytes or 0
        header[name] = {"dtype": _NAMES[dtype_name], "shape": tensor.shape, "data_offsets": [at, at + size]}
        sections.append(section)
        at += size
    text_of_header = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text_of_header += b" " * (-len(text_of_header) % 8)  # so that the weights are aligned
    content: Content = [len(text_of_header).to_bytes(8, "little") + text_of_header, *sections]
    digest = hashlib.blake2b(text_of_header, digest_size=16).hexdigest()
    file_name = text(snapshot.model_id.rpartition(b"/")[2])
    return Representation(
        snapshot,
        content,
        content_length(content),
        etag_of(snapshot, "safetensors", digest),
        {
            "Content-Type": "application/octet-stream",
            "Content-Disposition": disposition(file_name, "safetensors"),
        },
    )


def _section(snapshot: Snapshot, tensor: Tensor, dtype: DTypeName) -> tuple[Section, str]:
    """The weights of one tensor, and the name of their dtype."""
    if tensor.fault is not None:
        raise Unreadable(
            tensor.fault.slug,
            f"{tensor.fault.detail} To have the other tensors, leave this one out with exclude=.",
            tensor=text(tensor.name),
        )
    name, item_dtype, weights = weights_as(snapshot, tensor, dtype)
    section = Section.of_items(
        weights,
        select_all(tensor.shape),
        lambda items: as_bytes(converted(items, item_dtype, name)),
        item_dtype.itemsize,
        copies_nothing=weights.dtype == item_dtype,
    )
    return section, name
