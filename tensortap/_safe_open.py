"""A remote model in the manner of ``safetensors.safe_open``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ._client import Client
from ._model import RemoteModel

__all__ = ["safe_open"]


@contextmanager
def safe_open(url: str, model: str, framework: str = "np", **settings: Any) -> Iterator[RemoteModel]:
    """A model at a service, with ``keys()``, ``get_tensor(name)`` and ``get_slice(name)``, as a context manager.

    ``settings`` are those of `Client`, whose connections are closed at the end. Weights are numpy arrays of float32.

    Parameters
    ----------
    framework
        ``"np"`` or ``"numpy"``.

    Raises
    ------
    ValueError
        Another framework: `RemoteTensor.to_torch` gives tensors of torch.
    NotFound
        There is no such model.
    TensorTapError
        Another of its kinds: the service cannot be asked.
    """
    if framework not in ("np", "numpy"):
        raise ValueError(f"framework is 'np' or 'numpy', not {framework!r}; for torch, take file[name].to_torch()")
    with Client(url, **settings) as tap:
        yield tap[model]
