"""Every format against the installed ggml library, on blocks of any bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoders import GGMLType, dequantize, info

from .helpers import (
    DECODABLE,
    REMOVED,
    assert_same_bits,
    ggml_block,
    ggml_decodes,
    ggml_dequantize,
    make_blocks,
)

_WITH_ORACLE = [type_ for type_ in DECODABLE if ggml_decodes(type_)]
_KINDS = ("random", "edge", "repeated")


def test_the_oracle_covers_all_but_the_types_that_ggml_never_decodes() -> None:
    without = {type_.name for type_ in DECODABLE} - {type_.name for type_ in _WITH_ORACLE}
    assert without == {"F32", "F64", "I8", "I16", "I32", "I64", "Q8_1"}


@pytest.mark.parametrize("type_", GGMLType, ids=lambda type_: type_.name)
def test_block_sizes_equal_ggml(type_: GGMLType) -> None:
    assert (info(type_).block_weights, info(type_).block_bytes) == ggml_block(type_)
    assert (ggml_block(type_) == (0, 0)) == (type_ in REMOVED)


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("n", [0, 1, 2, 255, 4097])
@pytest.mark.parametrize("type_", _WITH_ORACLE, ids=lambda type_: type_.name)
def test_decoding_equals_ggml_at_odd_block_counts(type_: GGMLType, n: int, kind: str) -> None:
    raw = make_blocks(type_, n, kind, seed=n)
    assert_same_bits(dequantize(raw, type_), ggml_dequantize(raw, type_))


@pytest.mark.case(23)
@pytest.mark.parametrize("type_", _WITH_ORACLE, ids=lambda type_: type_.name)
@given(n=st.integers(1, 40), kind=st.sampled_from(_KINDS), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_decoding_equals_ggml_on_any_bytes(type_: GGMLType, n: int, kind: str, seed: int) -> None:
    raw = make_blocks(type_, n, kind, seed)
    # A caller who wants floating-point errors raised gets none from inside.
    with np.errstate(all="raise"):
        actual = dequantize(raw, type_)
    assert_same_bits(actual, ggml_dequantize(raw, type_))


@pytest.mark.parametrize("type_", [GGMLType.F16, GGMLType.BF16], ids=lambda type_: type_.name)
def test_every_16_bit_float_equals_ggml(type_: GGMLType) -> None:
    raw = np.arange(1 << 16, dtype="<u2").view(np.uint8)
    assert_same_bits(dequantize(raw, type_), ggml_dequantize(raw, type_))
