"""Representations: exact lengths, headers, ETags, conversions and refusals, against numpy."""

import functools
import io
import json
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import decoders
from app.buffers import Buffers
from app.content import Content, Section, narrowed
from app.errors import BadRequest, TooLarge, Unreadable
from app.parameters import WeightsQuery
from app.plan import assemble, plan
from app.representation import Representation, represent
from app.snapshot import Snapshot
from app.windows import STORED_DTYPES, WINDOW_WEIGHTS
from decoders import GGMLType
from tests.builder import Layout, base, build, tensor_info

F32, F16, Q4_0, BF16 = GGMLType.F32, GGMLType.F16, GGMLType.Q4_0, GGMLType.BF16
LIMIT = 1 << 20
BUFFERS = Buffers(WINDOW_WEIGHTS, keep=2)
SHAPE = (3, 4, 32)
WEIGHTS = np.random.default_rng(0).integers(0, 256, 3 * 4 * 18, np.uint8).tobytes()
VALUES = decoders.dequantize(WEIGHTS, Q4_0).reshape(SHAPE)


def opened(path: Path, content: bytes, model_id: bytes = b"folder/m") -> Snapshot:
    path.write_bytes(content)
    return Snapshot.open(model_id, [os.fsencode(path)])


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Snapshot]:
    """Tensors of the same quantized blocks in three ranks, plain ones, a scalar and empty ones."""
    plain = [(f"plain {type_.name}", [6], type_, plain_bytes(type_)) for type_ in STORED_DTYPES]
    content = build(
        [
            ("q", SHAPE[::-1], Q4_0, WEIGHTS),
            ("q2", [32, 12], Q4_0, WEIGHTS),
            ("f", [4, 3, 2], F32, np.arange(24, dtype="<f4").tobytes()),
            ("scalar", [], F32, np.float32(1.5).tobytes()),
            ("empty", [0, 4], F32, b""),
            ("none", [32, 0], Q4_0, b""),
            *plain,
        ]
    )
    with opened(tmp_path_factory.mktemp("models") / "m.gguf", content) as made:
        yield made


def plain_bytes(type_: GGMLType) -> bytes:
    return np.random.default_rng(type_).bytes(6 * decoders.info(type_).block_bytes)


def asked(snapshot: Snapshot, name: str, *, limit: int = LIMIT, **query: Any) -> Representation:
    made = WeightsQuery(**query)
    return represent(snapshot, snapshot.model.find(name.encode()), made, made.format or "raw", json_limit=limit)


def body(representation: Representation) -> bytes:
    """The body as the service sends it."""
    whole = made_of(representation.content)
    assert representation.length in (None, len(whole))
    return whole


def made_of(content: Content) -> bytes:
    """The bytes of a content, made from the windows that its sections need."""
    made: list[bytes] = []
    for element in content:
        if isinstance(element, bytes):
            made.append(element)
            continue
        start, encoded = 0, b""
        for piece in plan(element.selection, element.source.window_items):
            items = assemble(piece, functools.partial(element.source.read, buffers=BUFFERS))
            encoded += element.encode(items, start)
            start += piece.n_items
        made.append(encoded[element.skip :][: element.n_bytes])
    return b"".join(made)


def weights(snapshot: Snapshot, name: str, **query: Any) -> NDArray[Any]:
    found: NDArray[Any] = np.load(io.BytesIO(body(asked(snapshot, name, format="npy", **query))), allow_pickle=False)
    return found


bounds = st.sampled_from(["", "0", "1", "2", "-1", "99", "-99"])
slices = st.tuples(bounds, bounds, st.sampled_from(["", "1", "2", "-1", "-3"])).map(":".join)


def picked(text: str) -> slice:
    return slice(*(int(field) if field else None for field in text.split(":")))


@given(st.lists(slices, min_size=3, max_size=3))
def test_every_format_has_the_weights_of_the_selection(snapshot: Snapshot, parts: list[str]) -> None:
    expected = VALUES[tuple(map(picked, parts))]
    query: dict[str, Any] = {"slice": ",".join(parts)}
    raw = asked(snapshot, "q", **query)
    assert raw.length == expected.size * 4
    assert body(raw) == expected.tobytes()
    npy = weights(snapshot, "q", **query)
    assert npy.dtype == np.dtype("<f4")
    np.testing.assert_array_equal(npy, expected, strict=True)
    text = json.loads(body(asked(snapshot, "q", format="json", **query)))
    assert list(text) == ["shape", "dtype", "data"]
    assert (tuple(text["shape"]), text["dtype"]) == (expected.shape, "float32")
    named = [0 if isinstance(item, str) else item for item in np.array(text["data"], dtype=object).ravel()]
    np.testing.assert_array_equal(
        np.array(named, np.float32), np.where(np.isfinite(expected), expected, 0).ravel(), strict=True
    )


@pytest.mark.parametrize("name", ["q", "f", "scalar", "empty", "none"])
def test_a_whole_tensor_has_its_own_shape(snapshot: Snapshot, name: str) -> None:
    shape = snapshot.model.find(name.encode()).shape
    npy = asked(snapshot, name, format="npy")
    header = npy.content[0]
    assert isinstance(header, bytes)
    assert header.startswith(b"\x93NUMPY\x01\x00")
    assert len(header) % 64 == 0
    assert header.endswith(b"\n")
    assert npy.length == len(header) + math.prod(shape) * 4
    assert weights(snapshot, name).shape == shape
    assert npy.headers["X-Tensor-Shape"] == f"[{','.join(map(str, shape))}]"
    assert asked(snapshot, name).length == math.prod(shape) * 4
    text = json.loads(body(asked(snapshot, name, format="json")))
    assert text["shape"] == list(shape)
    assert np.array(text["data"]).size == math.prod(shape)


@pytest.mark.case(2)
def test_rows_and_columns_make_two_axes(snapshot: Snapshot) -> None:
    """Rows run over all axes above the first."""
    assert weights(snapshot, "f", rows="3:5").tolist() == [[12, 13, 14, 15], [16, 17, 18, 19]]
    assert weights(snapshot, "f", rows="6:7").shape == (0, 4)
    assert weights(snapshot, "f", cols="-1").ravel().tolist() == [3, 7, 11, 15, 19, 23]


@pytest.mark.parametrize(
    ("format_", "media_type", "suffix"),
    [
        ("raw", "application/octet-stream", "bin"),
        ("npy", "application/x-npy", "npy"),
        ("json", "application/json", "json"),
        ("native", "application/octet-stream", "native.bin"),
    ],
)
def test_headers_say_what_the_body_is(snapshot: Snapshot, format_: str, media_type: str, suffix: str) -> None:
    made = asked(snapshot, "q", format=format_, rows="1:3")
    assert made.headers == {
        "Content-Type": media_type,
        "X-Tensor-Shape": "[2,32]",
        "X-Tensor-Dtype": "native" if format_ == "native" else "float32",
        "X-Tensor-Type": "Q4_0",
        "Content-Disposition": f'attachment; filename="m.q.{suffix}"',
    }
    assert re.fullmatch(r'"[\w=-]{16,}"', made.etag)
    assert (made.length is None) == (format_ == "json")


SAME = [
    ("q", [{}, {"format": "raw"}, {"dtype": "float32"}, {"slice": "..."}, {"slice": ":,:,:"}, {"slice": "0:3"}]),
    ("q", [{"rows": "2:5"}, {"rows": "2,3,4"}, {"rows": "-10:-7"}, {"rows": "2:5", "cols": ":"}, {"rows": "2:5:1"}]),
    ("q2", [{}, {"rows": ":"}, {"cols": ":"}, {"rows": "0:99"}, {"slice": ":"}]),
    ("q", [{"rows": "5:2"}, {"rows": "99:"}]),
    ("plain F32", [{}, {"dtype": "stored"}]),
]
OTHER = [
    ("q", [{}, {"format": "npy"}, {"format": "json"}, {"format": "native"}]),
    ("q", [{}, {"dtype": "float16"}, {"dtype": "bfloat16"}]),
    ("q", [{"rows": "2,3"}, {"rows": "3,2"}, {"rows": "2,2"}, {"rows": "2"}, {"rows": "3"}]),
    ("q", [{"rows": "2"}, {"rows": "2", "cols": "0:9"}, {"rows": "2", "cols": "::-1"}]),
    ("q", [{"format": "npy"}, {"format": "npy", "rows": ":"}, {"format": "npy", "slice": "0:2"}]),
    ("f", [{"slice": "0"}, {"slice": "0:1"}, {"slice": "1"}, {"slice": "::-1"}]),
]


@pytest.mark.parametrize(("name", "queries"), SAME)
def test_the_same_body_has_the_same_etag(snapshot: Snapshot, name: str, queries: list[dict[str, Any]]) -> None:
    made = [asked(snapshot, name, **query) for query in queries]
    assert len({one.etag for one in made}) == 1
    assert len({body(one) for one in made}) == 1


@pytest.mark.parametrize(("name", "queries"), OTHER)
def test_another_body_has_another_etag(snapshot: Snapshot, name: str, queries: list[dict[str, Any]]) -> None:
    assert len({asked(snapshot, name, **query).etag for query in queries}) == len(queries)


def test_tensors_of_the_same_content_have_etags_of_their_own(snapshot: Snapshot) -> None:
    assert asked(snapshot, "q", rows=":").etag != asked(snapshot, "q2", rows=":").etag


def test_an_etag_is_of_the_content_not_of_the_process_or_place(tmp_path: Path) -> None:
    paths = [tmp_path / "a.gguf", tmp_path / "b.gguf", tmp_path / "c.gguf"]
    etags = []
    for path in paths:
        opened(path, base(data=bytes(32) if path.name[0] == "c" else None)).release()
        os.utime(path, (1, 1))
        with Snapshot.open(b"m", [os.fsencode(path)]) as made:
            etags.append(asked(made, "w").etag)
    assert etags[0] == etags[1] != etags[2]


@pytest.mark.parametrize(
    ("model", "tensor", "shown"),
    [
        (b"m", b"blk.0.attn_q.weight", "m.blk.0.attn_q.weight.bin"),
        (b"a/b/m", b"w", "m.w.bin"),
        (b"m", b"dense/kernel:0", "m.dense_kernel_0.bin"),
        (b"m", b'q"uo\\te%41', "m.q_uo_te_41.bin"),
        (b"m", b"line\r\nSet-Cookie: a=b\0", "m.line__Set-Cookie_ a=b_.bin"),
        (b"m", b"semi;colon='", "m.semi;colon='.bin"),
        (b"m", b"", "m..bin"),
        ("größe".encode(), "重み?".encode(), "größe.重み?.bin"),
        (b"m", "w\N{RIGHT-TO-LEFT OVERRIDE}x".encode(), "m.w_x.bin"),
        (b"m\xff", b"w\xfe", "m\ufffd.w\ufffd.bin"),
    ],
)
def test_a_file_name_is_offered_for_any_names(tmp_path: Path, model: bytes, tensor: bytes, shown: str) -> None:
    content = base(infos=[tensor_info(tensor, [4, 2], 0, 0)])
    with opened(tmp_path / "m.gguf", content, model) as made:
        answer = represent(made, made.model.find(tensor), WeightsQuery(), "raw", json_limit=LIMIT)
    value = answer.headers["Content-Disposition"]
    match = re.fullmatch(r"""attachment; filename="([^"\\/]*)"(?:; filename\*=UTF-8''([\w.~%-]+))?""", value)
    assert match, value
    assert value.isascii()
    assert value.isprintable()
    assert (unquote(match[2]) if match[2] else match[1]) == shown


@pytest.mark.case(42)
@pytest.mark.parametrize("name", [b"n" * 300, b"n" * 60_000, "名".encode() * 20_000])
def test_a_long_name_gives_a_short_header(tmp_path: Path, name: bytes) -> None:
    """Proxies and clients take headers of a few KiB."""
    with opened(tmp_path / "m.gguf", base(infos=[tensor_info(name, [4, 2], 0, 0)])) as made:
        answer = represent(made, made.model.find(name), WeightsQuery(), "raw", json_limit=LIMIT)
    value = answer.headers["Content-Disposition"]
    assert len(value) < 3000
    assert value.endswith(('.bin"', ".bin"))


def converted(path: Path, values: NDArray[np.float32], dtype: str) -> bytes:
    with opened(path, build([("w", [len(values)], F32, values.tobytes())])) as made:
        return body(asked(made, "w", dtype=dtype))


def test_bfloat16_rounds_to_nearest_even(tmp_path: Path) -> None:
    """Every upper half of a float32, with the lower halves around a tie."""
    lower = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    bits = ((np.arange(1 << 16, dtype=np.uint32) << np.uint32(16))[:, None] | lower).ravel()
    found = np.frombuffer(converted(tmp_path / "m.gguf", bits.view(np.float32), "bfloat16"), "<u2").astype(np.int64)
    # The bits of floats of one sign are in order, so rounding them as integers rounds the numbers.
    quotient, remainder = np.divmod(bits.astype(np.int64), 1 << 16)
    expected = quotient + ((remainder > 1 << 15) | ((remainder == 1 << 15) & (quotient % 2 == 1)))
    nan = np.isnan(bits.view(np.float32))
    np.testing.assert_array_equal(found[~nan], expected[~nan])
    assert nan.any()
    assert np.isnan((found[nan].astype(np.uint32) << np.uint32(16)).view(np.float32)).all()


def test_float16_rounds_and_overflows_in_silence(tmp_path: Path) -> None:
    rounded = {
        1e6: math.inf,
        -1e6: -math.inf,
        65519: 65504,
        65520: math.inf,
        math.nan: math.nan,
        -math.inf: -math.inf,
        2.0**-24: 2.0**-24,
        2.0**-25: 0,
        -(2.0**-25): -0.0,
        2.0**-25 * 1.0001: 2.0**-24,
        2049: 2048,
        2051: 2052,
        0.1: float.fromhex("0x1.998p-4"),
    }
    found = np.frombuffer(converted(tmp_path / "m.gguf", np.array(list(rounded), np.float32), "float16"), "<f2")
    expected = np.array(list(rounded.values()))
    np.testing.assert_array_equal(found.astype(np.float64), expected)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))


@pytest.mark.case(36)
@pytest.mark.parametrize("type_", STORED_DTYPES, ids=lambda type_: type_.name)
def test_stored_weights_are_exact(snapshot: Snapshot, type_: GGMLType) -> None:
    name = f"plain {type_.name}"
    made = asked(snapshot, name, dtype="stored")
    assert body(made) == plain_bytes(type_)
    assert made.headers["X-Tensor-Dtype"] == STORED_DTYPES[type_][0]
    assert made.length == 6 * decoders.info(type_).block_bytes
    assert body(asked(snapshot, name)) == decoders.dequantize(plain_bytes(type_), type_).tobytes()
    if type_ is not BF16:
        assert weights(snapshot, name, dtype="stored").tobytes() == plain_bytes(type_)
        text = json.loads(body(asked(snapshot, name, dtype="stored", format="json")))
        assert text["dtype"] == STORED_DTYPES[type_][0]
        assert len(text["data"]) == 6


def test_native_is_the_stored_blocks_of_whole_rows(snapshot: Snapshot) -> None:
    rows = [WEIGHTS[start : start + 18] for start in range(0, len(WEIGHTS), 18)]
    assert body(asked(snapshot, "q", format="native")) == WEIGHTS
    assert asked(snapshot, "q", format="native").headers["X-Tensor-Shape"] == "[3,4,32]"
    some = asked(snapshot, "q", format="native", rows="5,2,2,-1")
    assert body(some) == rows[5] + rows[2] + rows[2] + rows[11]
    assert some.headers["X-Tensor-Shape"] == "[4,32]"
    assert some.length == 72
    assert body(asked(snapshot, "q", format="native", rows="9::-4")) == rows[9] + rows[5] + rows[1]
    assert body(asked(snapshot, "none", format="native")) == b""
    assert body(asked(snapshot, "scalar", format="native")) == np.float32(1.5).tobytes()
    assert decoders.dequantize(body(some), Q4_0).tobytes() == body(asked(snapshot, "q", rows="5,2,2,-1"))


@pytest.mark.parametrize(
    ("name", "query", "slug"),
    [
        ("q", {"format": "native", "cols": "0:32"}, "bad-parameter"),
        ("q", {"format": "native", "slice": "0"}, "bad-parameter"),
        ("q", {"format": "native", "dtype": "float32"}, "bad-parameter"),
        ("q", {"format": "native", "rows": "12"}, "selection-out-of-range"),
        ("q", {"dtype": "stored"}, "bad-parameter"),
        ("q", {"format": "npy", "dtype": "bfloat16"}, "bad-parameter"),
        ("q", {"format": "json", "dtype": "bfloat16"}, "bad-parameter"),
        ("plain BF16", {"format": "npy", "dtype": "stored"}, "bad-parameter"),
        ("plain BF16", {"format": "json", "dtype": "stored"}, "bad-parameter"),
        ("q", {"slice": "0", "rows": "0"}, "bad-parameter"),
        ("q", {"slice": "0", "cols": "0"}, "bad-parameter"),
        ("q", {"rows": "12"}, "selection-out-of-range"),
        ("q", {"rows": ""}, "bad-selection"),
        ("scalar", {"slice": "0"}, "bad-selection"),
    ],
)
def test_what_cannot_be_meant_is_refused(snapshot: Snapshot, name: str, query: dict[str, Any], slug: str) -> None:
    with pytest.raises(BadRequest) as refused:
        asked(snapshot, name, **query)
    assert refused.value.slug == slug


def test_big_endian_blocks_are_not_given_as_they_are(tmp_path: Path) -> None:
    content = base(layout=Layout("big"))
    with opened(tmp_path / "m.gguf", content) as made:
        with pytest.raises(Unreadable) as refused:
            asked(made, "w", format="native")
        assert refused.value.slug == "unsupported-type"
        assert body(asked(made, "w")) == np.arange(8, dtype="<f4").tobytes()
        assert body(asked(made, "w", dtype="stored")) == np.arange(8, dtype="<f4").tobytes()


@pytest.mark.parametrize("format_", ["raw", "npy", "json", "native"])
def test_a_faulty_tensor_is_refused_with_its_fault(tmp_path: Path, format_: str) -> None:
    with opened(tmp_path / "m.gguf", base()[:-1]) as made:
        with pytest.raises(Unreadable) as refused:
            asked(made, "w", format=format_)
        assert (refused.value.slug, refused.value.status) == ("tensor-past-end-of-file", 422)
        assert refused.value.fields == {"tensor": "w", "type_id": 0}


@pytest.mark.parametrize(("dtype", "size"), [("float32", 96), ("float16", 48)])
def test_json_is_refused_above_its_limit(snapshot: Snapshot, dtype: str, size: int) -> None:
    assert body(asked(snapshot, "f", format="json", dtype=dtype, limit=size))
    with pytest.raises(TooLarge) as refused:
        asked(snapshot, "f", format="json", dtype=dtype, limit=size - 1)
    assert (refused.value.slug, refused.value.status) == ("response-too-large", 413)
    assert refused.value.fields == {"limit": size - 1, "size": size}
    assert asked(snapshot, "f", dtype=dtype, limit=0).length == size


def test_empty_lists_count_for_the_limit(tmp_path: Path) -> None:
    """A tensor without weights may still be a long text."""
    with opened(tmp_path / "m.gguf", build([("w", [0, 1 << 40], F32, b"")])) as made:
        assert body(asked(made, "w")) == b""
        assert asked(made, "w", rows=":").length == 0
        with pytest.raises(TooLarge):
            asked(made, "w", format="json")
        assert json.loads(body(asked(made, "w", format="json", rows="0:3")))["data"] == [[], [], []]


@pytest.mark.parametrize(
    ("name", "query", "copies_nothing"),
    [
        ("f", {}, True),
        ("q", {"format": "npy"}, True),
        ("q", {"format": "native"}, True),
        ("f", {"dtype": "float16"}, False),
        ("f", {"format": "json"}, False),
    ],
)
def test_only_float32_needs_no_conversion(
    snapshot: Snapshot, name: str, query: dict[str, Any], copies_nothing: bool
) -> None:
    (section,) = [element for element in asked(snapshot, name, **query).content if isinstance(element, Section)]
    assert section.copies_nothing == copies_nothing


@given(st.sampled_from(["raw", "npy", "native"]), st.data())
def test_any_byte_range_is_that_part_of_the_body(snapshot: Snapshot, format_: str, data: st.DataObject) -> None:
    query: dict[str, Any] = {"rows": data.draw(st.sampled_from(["::2", "9,3,3,1", "2:7", "11"])), "format": format_}
    whole = asked(snapshot, "q", **query)
    first = data.draw(st.integers(0, whole.length or 0))
    stop = data.draw(st.integers(first, whole.length or 0))
    assert made_of([*narrowed(whole.content, first, stop)]) == body(whole)[first:stop]


def test_a_byte_range_reads_only_the_windows_it_lies_in(tmp_path: Path) -> None:
    n_windows = 5
    content = build([("w", [WINDOW_WEIGHTS, n_windows], F32, bytes(WINDOW_WEIGHTS * 4 * n_windows))])
    with opened(tmp_path / "m.gguf", content) as made:
        whole = asked(made, "w", format="npy")
        first = 128 + 2 * WINDOW_WEIGHTS * 4
        for low, high, expected in [
            (first, first + 1, [2]),
            (first - 1, first + 1, [1, 2]),
            (0, 128, []),
            (0, 129, [0]),
        ]:
            windows = [
                visit.window
                for element in narrowed(whole.content, low, high)
                if not isinstance(element, bytes)
                for piece in plan(element.selection, element.source.window_items)
                for visit in piece.visits
            ]
            assert windows == expected
