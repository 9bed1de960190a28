"""The query parameters of each route, as models: what they mean, and that anything else is refused."""

import re
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

__all__ = [
    "MOST_ROWS",
    "DTypeName",
    "FormatName",
    "KeyQuery",
    "MetadataQuery",
    "NamedWeightsQuery",
    "NoQuery",
    "SafetensorsQuery",
    "TensorsQuery",
    "WeightsBody",
    "WeightsQuery",
]

FormatName = Literal["raw", "npy", "json", "native"]
DTypeName = Literal["float32", "float16", "bfloat16", "stored"]

MOST_ROWS = 1_000_000
"""Most rows and slices that one selection may list."""


_DIGITS = re.compile(r"[0-9]{1,19}", re.ASCII)


def _only_digits(value: object) -> object:
    """Refuse what pydantic alone would take for an integer, too: ``1_0``, ``+5``, `` 5``, ``5.0``."""
    if isinstance(value, str) and not _DIGITS.fullmatch(value):
        raise PydanticCustomError("plain_digits", "expected plain decimal digits, at most 19")
    return value


def _bounded_rows(value: object) -> object:
    """Refuse what is too long or bad at once: pydantic alone would keep two errors for each member of a list."""
    count = value.count(",") + 1 if isinstance(value, str) else len(value) if isinstance(value, list) else 0
    if count > MOST_ROWS:
        raise PydanticCustomError("long_list", f"expected at most {MOST_ROWS} rows and slices, not {count}")
    if isinstance(value, list) and not {int, str}.issuperset(map(type, value)):
        raise PydanticCustomError("bad_list", "expected integers of at most 19 digits, and slices")
    return value


# It comes after the bounds of an annotation: pydantic would not put those into the schema else.
_PLAIN_DIGITS = BeforeValidator(_only_digits)

# The grammar for the API description alone: `app.selection` parses it, and says what is wrong with what.
_NUMBER = "-?[0-9]{1,19}"
_PART = f"({_NUMBER}|({_NUMBER})?:({_NUMBER})?(:({_NUMBER})?)?)"
_AXIS = rf"({_PART}|\.\.\.)"


def _pattern(pattern: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "pattern": f"^{pattern}$"})


_Part = Annotated[str, _pattern(_PART)]
_Parts = Annotated[str, _pattern(f"{_PART}(,{_PART})*")]
_Axes = Annotated[str, _pattern(f"{_AXIS}(,{_AXIS})*")]


class NoQuery(BaseModel):
    """No parameters: a route that takes none refuses them all."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class WeightsQuery(NoQuery):
    """Which weights of a tensor, and in which form."""

    rows: Annotated[
        _Parts | None,
        Field(
            description="Rows: integers and slices as in numpy, joined by commas. Default: all.",
            examples=["0:2", "-1", "3,7,10:20", "9::-1"],
        ),
    ] = None
    cols: Annotated[
        _Part | None,
        Field(description="Weights of each row: one integer or slice. Default: all.", examples=["0:64", "::2"]),
    ] = None
    slice: Annotated[
        _Axes | None,
        Field(
            description="N-D selection in numpy order; an integer drops its axis. Not together with rows or cols.",
            examples=["3,10:20", "...,0"],
        ),
    ] = None
    format: Annotated[
        FormatName | None,
        Field(
            description="Form of the body: little-endian weights, an .npy file, JSON, or the stored blocks. "
            "Default: what Accept prefers, else raw.",
            examples=["npy"],
        ),
    ] = None
    dtype: Annotated[
        DTypeName | None,
        Field(
            description="Type of an answered weight. Default: float32; stored: the file's own, if not quantized.",
            examples=["float16"],
        ),
    ] = None


class NamedWeightsQuery(WeightsQuery):
    """The same, with the names as parameters."""

    model: Annotated[str, Field(description="Model id.", examples=["demo"])]
    tensor: Annotated[str, Field(description="Tensor name.", examples=["blk.0.attn_q.weight"])]


class WeightsBody(NoQuery):
    """The same as a JSON document, for selections that are too long for a URL."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    rows: Annotated[
        Annotated[list[int | _Part], Field(max_length=MOST_ROWS)] | _Parts | int | None,
        Field(description="Rows: a list of integers and slices, or one of them.", examples=[[3, 7, "10:20"]]),
        BeforeValidator(_bounded_rows),
    ] = None
    cols: Annotated[
        _Part | int | None, Field(description="Weights of each row: one integer or slice.", examples=["0:64"])
    ] = None
    slice: Annotated[
        _Axes | None,
        Field(description="N-D selection in numpy order. Not together with rows or cols.", examples=["3,10:20"]),
    ] = None
    format: Annotated[FormatName | None, Field(description="As the parameter of that name.", examples=["npy"])] = None
    dtype: Annotated[DTypeName | None, Field(description="As the parameter of that name.", examples=["float16"])] = None


class SafetensorsQuery(NoQuery):
    """Which tensors of a model, and as what."""

    name: Annotated[str | None, Field(description="Glob of names: * ? [abc].", examples=["blk.0.*"])] = None
    exclude: Annotated[str | None, Field(description="Glob of names to leave out.", examples=["token_embd.*"])] = None
    dtype: Annotated[
        DTypeName, Field(description="Type of every weight; stored: the file's own.", examples=["float16"])
    ] = "float32"


class MetadataQuery(NoQuery):
    """Which keys, and how much of their arrays."""

    prefix: Annotated[str, Field(description="Only keys that begin so.", examples=["general."])] = ""
    items: Annotated[
        int, Field(ge=0, le=10_000, description="Elements to show of each array.", examples=[3]), _PLAIN_DIGITS
    ] = 8


class KeyQuery(NoQuery):
    """Which part of an array."""

    slice: Annotated[
        _Part | None, Field(description="A slice of an array: start:stop:step as in numpy.", examples=["0:100", "-5:"])
    ] = None


class TensorsQuery(NoQuery):
    """Which tensors of a model."""

    name: Annotated[str | None, Field(description="Glob of names: * ? [abc].", examples=["blk.0.*"])] = None
    type: Annotated[str | None, Field(description="Name or id of a type.", examples=["Q4_K", "12"])] = None
    limit: Annotated[
        int, Field(ge=1, le=10_000, description="Most tensors in one answer.", examples=[10]), _PLAIN_DIGITS
    ] = 1_000
    cursor: Annotated[
        int,
        Field(ge=0, lt=1 << 31, description="Where to go on: from the next link of an answer before.", examples=[10]),
        _PLAIN_DIGITS,
    ] = 0
