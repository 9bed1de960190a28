"""Tensors of GGUF models that live elsewhere, as if they were numpy arrays.

    from tensortap import Client

    with Client("http://host:8000") as tap:
        w = tap["qwen/Qwen2-7B-Q4_K_M"]["blk.0.attn_q.weight"]
        w[10:20]

Weights travel as they are stored, where that is less, and are decoded here by `decoders`.
"""

from ._client import AsyncClient, Client
from ._errors import (
    BadRequest,
    ConnectionFailed,
    ModelChanged,
    NotFound,
    Overloaded,
    SelectionError,
    ServiceError,
    TensorTapError,
    TooLarge,
    Unauthorized,
    Unreadable,
)
from ._metadata import AsyncMetadata, Metadata
from ._model import AsyncModel, RemoteModel
from ._pull import Pulled
from ._safe_open import safe_open
from ._tensor import AsyncTensor, RemoteTensor

__all__ = [
    "AsyncClient",
    "AsyncMetadata",
    "AsyncModel",
    "AsyncTensor",
    "BadRequest",
    "Client",
    "ConnectionFailed",
    "Metadata",
    "ModelChanged",
    "NotFound",
    "Overloaded",
    "Pulled",
    "RemoteModel",
    "RemoteTensor",
    "SelectionError",
    "ServiceError",
    "TensorTapError",
    "TooLarge",
    "Unauthorized",
    "Unreadable",
    "safe_open",
]
