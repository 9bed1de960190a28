"""Decoding needs little memory beside its result, however much there is to decode."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest

from decoders import GGMLType, dequantize, info, unpack_ternary_2bit

from .helpers import DECODABLE

_LIMIT = 2 << 20
_WEIGHTS = 1 << 21  # 8 MiB of output: one full-size temporary would be seen


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("type_", DECODABLE, ids=lambda type_: type_.name)
def test_memory_beside_out_stays_small(type_: GGMLType) -> None:
    raw = np.zeros(_WEIGHTS // info(type_).block_weights * info(type_).block_bytes, np.uint8)
    out = np.empty(_WEIGHTS, np.float32)
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    dequantize(raw, type_, out=out)
    assert tracemalloc.get_traced_memory()[1] - before < _LIMIT


@pytest.mark.usefixtures("traced")
def test_unpacking_the_plain_order_needs_little_too() -> None:
    raw = np.zeros(_WEIGHTS // 256 * 66, np.uint8)
    out = np.empty(_WEIGHTS, np.float32)
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    unpack_ternary_2bit(raw, out=out)
    assert tracemalloc.get_traced_memory()[1] - before < _LIMIT
