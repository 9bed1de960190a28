"""The GGUF container: header parser, typed values, tensor table, split sets.

Reads the headers of GGUF files of version 1, 2 and 3, little- and big-endian, and never their weights::

    model = open_model([fd])
    model.metadata.get(b"general.architecture")
    tensor = model.find(b"output.weight")
    tensor.fault or os.pread(fd, tensor.n_bytes, tensor.start)

Strict where a header lies (`BadHeader`), lenient where it is odd (``warnings``), and a fault of one tensor stays with
that tensor (`Tensor.fault`). Names, keys and strings are raw bytes: nothing promises that they are UTF-8.
"""

from app.gguf._cursor import HEADER_LIMIT, INNER_ARRAY_LIMIT, STRING_LIMIT, ByteOrder
from app.gguf._errors import (
    AmbiguousTensor,
    BadHeader,
    GGUFError,
    NoSuchTensor,
    NotGGUF,
    SplitError,
    UnsupportedVersion,
    quoted,
)
from app.gguf._header import KEY_LIMIT, TENSOR_LIMIT, Entry, Header, Metadata, read_header
from app.gguf._model import Model, open_model
from app.gguf._split import SplitName, part_name, split_name
from app.gguf._tensors import Fault, Tensor
from app.gguf._values import NESTING_LIMIT, Array, Value, ValueType

__all__ = [
    "HEADER_LIMIT",
    "INNER_ARRAY_LIMIT",
    "KEY_LIMIT",
    "NESTING_LIMIT",
    "STRING_LIMIT",
    "TENSOR_LIMIT",
    "AmbiguousTensor",
    "Array",
    "BadHeader",
    "ByteOrder",
    "Entry",
    "Fault",
    "GGUFError",
    "Header",
    "Metadata",
    "Model",
    "NoSuchTensor",
    "NotGGUF",
    "SplitError",
    "SplitName",
    "Tensor",
    "UnsupportedVersion",
    "Value",
    "ValueType",
    "open_model",
    "part_name",
    "quoted",
    "read_header",
    "split_name",
]
