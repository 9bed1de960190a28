"""A model: one GGUF file, or the parts of a split set seen as one."""

from collections.abc import Sequence

from app.gguf._cursor import ByteOrder
from app.gguf._errors import AmbiguousTensor, GGUFError, NoSuchTensor
from app.gguf._header import Header, Metadata, read_part
from app.gguf._split import check_parts
from app.gguf._tensors import Tensor

__all__ = ["Model", "open_model"]


class Model:
    """The headers of a model, and its tensors over all parts.

    ``headers`` has one header for each part, ``metadata`` is the first part's, ``tensors`` are those of all parts in
    order (`Tensor.file` is the index of the part), ``warnings`` the sentences of all. Immutable once made.
    """

    __slots__ = ("_by_name", "byte_order", "headers", "memory_bytes", "metadata", "tensors", "warnings")

    def __init__(self, headers: Sequence[Header], warnings: Sequence[str] = ()) -> None:
        self.headers: tuple[Header, ...] = tuple(headers)
        self.metadata: Metadata = self.headers[0].metadata
        self.byte_order: ByteOrder = self.headers[0].byte_order
        self.tensors: tuple[Tensor, ...] = tuple(t for header in self.headers for t in header.tensors)
        self.warnings: tuple[str, ...] = (*warnings, *self._part_warnings())
        # Beside the headers: the index of names, made on first use and counted from the start.
        self.memory_bytes: int = sum(header.memory_bytes for header in self.headers) + 200 * len(self.tensors)
        self._by_name: dict[bytes, list[Tensor]] | None = None

    def find(self, name: bytes) -> Tensor:
        """Give the tensor of that name; the first call makes an index.

        Raises `NoSuchTensor` (a `KeyError` too), or `AmbiguousTensor` when several have the name.
        """
        if self._by_name is None:
            by_name: dict[bytes, list[Tensor]] = {}
            for tensor in self.tensors:
                by_name.setdefault(tensor.name, []).append(tensor)
            self._by_name = by_name
        same = self._by_name.get(name)
        if same is None:
            raise NoSuchTensor(name)
        if len(same) > 1:
            raise AmbiguousTensor(name, len(same))
        return same[0]

    def _part_warnings(self) -> list[str]:
        if len(self.headers) == 1:
            return list(self.headers[0].warnings)
        return [f"Part {number}: {line}" for number, header in enumerate(self.headers, 1) for line in header.warnings]


def open_model(fds: Sequence[int]) -> Model:
    """Read the headers of a model: of one file, or of all the parts of a split set in order.

    Raises `GGUFError` as `read_header` does, with the number of the part noted on the error (`BaseException.add_note`)
    when there are several; `SplitError` when they do not belong together; `ValueError` without any file; `OSError`.
    """
    if not fds:
        raise ValueError("a model has at least one file")
    headers: list[Header] = []
    for index, fd in enumerate(fds):
        try:
            headers.append(read_part(fd, index, headers[0].metadata if headers else None))
        except GGUFError as error:
            if len(fds) > 1:
                error.add_note(f"in part {index + 1} of {len(fds)}")
            raise
    return Model(headers, check_parts(headers))
