"""The table of formats: for every type id, its block and its decoder."""

from __future__ import annotations

from . import _codebook, _iq, _k, _legacy, _plain, _ternary
from ._blocks import Decoder
from ._errors import UnsupportedType
from ._types import BlockFormat, GGMLType

_DECODED: dict[GGMLType, tuple[int, int, Decoder]] = {
    # type: (weights, bytes, decoder), in the order of the ids
    GGMLType.F32: (1, 4, _plain.f32),
    GGMLType.F16: (1, 2, _plain.f16),
    GGMLType.Q4_0: (32, 18, _legacy.q4_0),
    GGMLType.Q4_1: (32, 20, _legacy.q4_1),
    GGMLType.Q5_0: (32, 22, _legacy.q5_0),
    GGMLType.Q5_1: (32, 24, _legacy.q5_1),
    GGMLType.Q8_0: (32, 34, _legacy.q8_0),
    GGMLType.Q8_1: (32, 36, _legacy.q8_1),
    GGMLType.Q2_K: (256, 84, _k.q2_k),
    GGMLType.Q3_K: (256, 110, _k.q3_k),
    GGMLType.Q4_K: (256, 144, _k.q4_k),
    GGMLType.Q5_K: (256, 176, _k.q5_k),
    GGMLType.Q6_K: (256, 210, _k.q6_k),
    GGMLType.Q8_K: (256, 292, _k.q8_k),
    GGMLType.IQ2_XXS: (256, 66, _iq.iq2_xxs),
    GGMLType.IQ2_XS: (256, 74, _iq.iq2_xs),
    GGMLType.IQ3_XXS: (256, 98, _iq.iq3_xxs),
    GGMLType.IQ1_S: (256, 50, _iq.iq1_s),
    GGMLType.IQ4_NL: (32, 18, _codebook.iq4_nl),
    GGMLType.IQ3_S: (256, 110, _iq.iq3_s),
    GGMLType.IQ2_S: (256, 82, _iq.iq2_s),
    GGMLType.IQ4_XS: (256, 136, _codebook.iq4_xs),
    GGMLType.I8: (1, 1, _plain.i8),
    GGMLType.I16: (1, 2, _plain.i16),
    GGMLType.I32: (1, 4, _plain.i32),
    GGMLType.I64: (1, 8, _plain.i64),
    GGMLType.F64: (1, 8, _plain.f64),
    GGMLType.IQ1_M: (256, 56, _iq.iq1_m),
    GGMLType.BF16: (1, 2, _plain.bf16),
    GGMLType.TQ1_0: (256, 54, _ternary.tq1_0),
    GGMLType.TQ2_0: (256, 66, _ternary.tq2_0),
    GGMLType.MXFP4: (32, 17, _codebook.mxfp4),
    GGMLType.NVFP4: (64, 36, _codebook.nvfp4),
    GGMLType.Q1_0: (128, 18, _legacy.q1_0),
    GGMLType.Q2_0: (64, 18, _legacy.q2_0),
}

_FORMATS = {
    type_: BlockFormat(type_.name, *_DECODED[type_][:2], decodable=True)
    if type_ in _DECODED
    else BlockFormat(type_.name, 0, 0, decodable=False)
    for type_ in GGMLType
}


def info(type: int) -> BlockFormat:  # noqa: A002 (the public word)
    """What a block of a type is.

    Parameters
    ----------
    type: a GGMLType or its id.

    Returns
    -------
    The type's BlockFormat. A removed type is known by name, with sizes 0 and `decodable` False.

    Raises
    ------
    UnsupportedType if ggml has no such id.

    Examples
    --------
    >>> from decoders import GGMLType, info
    >>> info(GGMLType.Q4_K)
    BlockFormat(name='Q4_K', block_weights=256, block_bytes=144, decodable=True)
    """
    return _FORMATS[_known(type)]


def decoder(type: int) -> tuple[BlockFormat, Decoder]:  # noqa: A002
    """A type's block and decoder. Raises UnsupportedType for an unknown or a removed type."""
    known = _known(type)
    if known not in _DECODED:
        raise UnsupportedType(type, known.name, "was removed from ggml; quantize the model anew")
    return _FORMATS[known], _DECODED[known][2]


def _known(type: int) -> GGMLType:  # noqa: A002
    try:
        return GGMLType(type)
    except ValueError:
        hint = f"a type is a GGMLType, as GGMLType['Q4_K'], or an id from 0 to {max(GGMLType)}"
        raise UnsupportedType(type, None, f"is unknown; {hint}") from None
