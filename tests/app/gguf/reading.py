"""Bytes to headers and models, by way of files that are gone afterwards."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from app.gguf import Array, Header, Model, Value, open_model, read_header


@contextmanager
def file_of(data: bytes, size: int | None = None) -> Iterator[int]:
    """A descriptor of a file of `data`, followed by a hole up to `size`."""
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.truncate(len(data) if size is None else size)
        yield file.fileno()


def read(data: bytes, size: int | None = None) -> Header:
    with file_of(data, size) as fd:
        return read_header(fd)


def model(*parts: bytes) -> Model:
    with ExitStack() as stack:
        return open_model([stack.enter_context(file_of(part)) for part in parts])


def weights(data: bytes, header: Header, name: bytes) -> bytes:
    """The bytes of a readable tensor."""
    (tensor,) = [t for t in header.tensors if t.name == name]
    assert tensor.fault is None
    assert tensor.n_bytes is not None
    return data[tensor.start : tensor.start + tensor.n_bytes]


def faults(header: Header) -> list[str | None]:
    return [t.fault.slug if t.fault else None for t in header.tensors]


def plain(value: Value | None) -> object:
    """A value with its arrays as lists."""
    return [plain(item) for item in value] if isinstance(value, Array) else value


def array_of(header: Header, key: bytes) -> Array:
    value = header.metadata.get(key)
    assert isinstance(value, Array)
    return value


def size_of(fd: int) -> int:
    return os.fstat(fd).st_size
