"""Memory for windows: what the system refuses is a lack of memory, whatever it is called."""

import errno

import numpy as np
import pytest

import app.buffers
from app.buffers import Buffers
from app.errors import exhausted


@pytest.mark.parametrize("number", [errno.ENOMEM, errno.EAGAIN])
def test_a_window_that_there_is_no_memory_for_is_a_memory_error(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    buffers = Buffers(1024, keep=1)
    kept = buffers.take(1024)
    del kept

    def refuse(*_: object, **__: object) -> object:
        raise OSError(number, "no")

    monkeypatch.setattr(app.buffers, "_Memory", refuse)
    array = buffers.take(1024)  # one that was given back needs none
    with pytest.raises(MemoryError) as refused:
        buffers.take(1024)
    problem = exhausted(refused.value)
    assert problem is not None
    assert (problem.status, problem.slug, problem.headers) == (503, "overloaded", {"Retry-After": "1"})
    monkeypatch.undo()
    assert buffers.take(1024).dtype == array.dtype == np.float32
