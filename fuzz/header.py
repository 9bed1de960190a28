"""The header parser: what it makes of a file, or of the parts of a split set, is what the fields of the file say.

`fuzz._reading` reads the same bytes by the same rules: both take a file or both refuse it, and they agree on every
key, value and tensor, and on what is wrong with each tensor.
"""

import os
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from math import prod

from app.gguf import Array, GGUFError, Header, SplitError, Tensor, Value, open_model
from fuzz import _mutation
from fuzz._reading import File, Refused, plain, take_apart
from fuzz._tensors import FORKED, Expected, expected_tensors

__all__ = ["mutated", "run", "seeds", "spliced"]

_SLUGS = {"unsupported-type", "tensor-past-end-of-file", "tensor-overlap", "partial-block-row"}
_LONGEST_MESSAGE = 2000
_MOST_WARNINGS = 60

mutated, spliced, seeds = _mutation.mutated, _mutation.spliced, _mutation.seeds


def run(data: bytes) -> None:
    """Open the model that an input is, and hold it against the fields."""
    parts = _mutation.parts_of(data)
    with ExitStack() as stack:
        fds = [stack.enter_context(_Memory(part)).fd for part in parts]
        try:
            model = open_model(fds)
        except GGUFError as error:
            message = "".join((str(error), *getattr(error, "__notes__", ())))
            assert message.isprintable(), message
            assert len(message) < _LONGEST_MESSAGE
            if not isinstance(error, SplitError):
                assert any(map(_is_refused, parts)), f"refused without a reason: {message}"
            return
    _check_lines(model.warnings, len(parts))
    assert model.tensors == tuple(tensor for header in model.headers for tensor in header.tensors)
    for number, (part, header) in enumerate(zip(parts, model.headers, strict=True)):
        file = take_apart(part, whole=True)
        _check_header(header, file, part)
        for tensor, expected in zip(header.tensors, expected_tensors(file, part), strict=True):
            assert tensor.file == number
            _check_tensor(tensor, expected)
    for tensor in model.tensors[:100]:
        with suppress(GGUFError):  # of a name that several have
            assert model.find(tensor.name) is tensor


class _Memory:
    """A file in memory, as a context."""

    def __init__(self, data: bytes) -> None:
        self.fd = os.memfd_create("gguf")
        os.pwrite(self.fd, data, 0)

    def __enter__(self) -> "_Memory":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)


def _is_refused(data: bytes) -> bool:
    try:
        take_apart(data, whole=True)
    except Refused:
        return True
    return False


def _check_header(header: Header, file: File, data: bytes) -> None:
    assert (header.version, header.byte_order) == (file.version, file.layout.byte_order)
    assert (header.alignment, header.file_size) == (file.alignment, len(data))
    assert (header.header_bytes, header.data_start) == (file.header_bytes, file.data_start)
    assert len(header.metadata) == len(file.entries)
    for entry, field in zip(header.metadata, file.entries, strict=True):
        assert (entry.key, entry.type) == (field.key.content, field.type)
        assert _same(entry.value, plain(field.value, field.type, file.layout)), entry.key
    _check_lines(header.warnings, 1)


def _check_tensor(tensor: Tensor, expected: Expected) -> None:
    info = expected.info
    assert (tensor.name, tensor.ne, tensor.type_id) == (info.name.content, tuple(info.ne), info.type)
    assert (tensor.offset, tensor.start) == (info.offset, expected.start)
    assert tensor.n_weights == prod(info.ne) == tensor.n_rows * tensor.row_weights
    assert tensor.shape == tuple(reversed(info.ne))
    if tensor.original_shape is not None:
        assert prod(tensor.original_shape) == tensor.n_weights
    if tensor.fault is not None:
        assert tensor.fault.slug in _SLUGS
        _check_lines([tensor.fault.detail], 1)
    if tensor.readable or tensor.type_id not in FORKED:
        assert (tensor.fault.slug if tensor.fault else None) == expected.fault
        assert tensor.n_bytes == expected.n_bytes
    if tensor.readable and tensor.n_bytes:
        assert tensor.start + tensor.n_bytes <= len(expected.data)


def _check_lines(lines: Sequence[str], parts: int) -> None:
    assert len(lines) < _MOST_WARNINGS * parts
    for line in lines:
        assert line.isprintable(), line
        assert len(line) < _LONGEST_MESSAGE


def _same(value: Value, wanted: object) -> bool:
    """Whether a value is what is wanted, in type, too; a NaN is one, whatever its bits."""
    if isinstance(value, Array):
        assert isinstance(wanted, list)
        assert value.nesting <= 8
        whole = value[:]
        assert len(value) == len(whole) == len(wanted)
        # One at a time, and backwards, they are found another way.
        assert not value or (_same(value[-1], wanted[-1]) and _same(value[len(value) // 2], wanted[len(value) // 2]))
        assert len(value) > 200 or all(map(_same, value[::-3], wanted[::-3]))
        return all(map(_same, whole, wanted))
    if isinstance(value, float) and value != value:
        return isinstance(wanted, float) and wanted != wanted
    return type(value) is type(wanted) and value == wanted
