"""Cases of docs/cases.md about metadata: odd keys and values, and headers that lie."""

import base64
import struct
from unittest.mock import Mock

import pytest

from app.gguf import open_model
from tests.app.conftest import Serve, path_of, slug
from tests.builder import (
    ARCHITECTURE,
    ARRAY,
    BOOL,
    F32,
    F64,
    I64,
    STRING,
    U8,
    U32,
    U64,
    array,
    base,
    header,
    kv,
    raw_kv,
    string,
)

METADATA = path_of("m", "metadata")
N_TOKENS = 262_144


@pytest.fixture(scope="module")
def vocabulary() -> bytes:
    """``BASE`` with a vocabulary as large as the largest published ones."""
    tokens = b"".join(string(f"t{number:06}") for number in range(N_TOKENS))
    scores = struct.pack(f"<{N_TOKENS}f", *range(N_TOKENS))
    return base(
        entries=[
            raw_kv("tokenizer.ggml.tokens", ARRAY, struct.pack("<IQ", STRING, N_TOKENS) + tokens),
            raw_kv("tokenizer.ggml.scores", ARRAY, struct.pack("<IQ", F32, N_TOKENS) + scores),
        ]
    )


@pytest.mark.case(7)
def test_long_arrays_are_shortened_and_given_whole_on_request(
    serve: Serve, vocabulary: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Mock(wraps=open_model)
    monkeypatch.setattr("app.snapshot.open_model", opened)
    face = serve(vocabulary)
    targets = [METADATA, "/healthz"] * 20
    answers = face.together(targets)
    assert [answer.status for answer in answers] == [200] * 40
    assert len({answer.body for answer in answers}) == 2
    assert len(answers[0].body) < 2000
    lines = {line["key"]: line for line in answers[0].json["metadata"]}
    tokens = lines["tokenizer.ggml.tokens"]
    assert (tokens["type"], tokens["element_type"], tokens["length"]) == ("array", "string", N_TOKENS)
    assert tokens["items"] == [f"t{number:06}" for number in range(8)]
    assert tokens["whole"] is False
    assert lines["tokenizer.ggml.scores"]["items"] == list(range(8))
    key = path_of("m", "metadata", "tokenizer.ggml.tokens")
    assert face.get(key).json["items"] == [f"t{number:06}" for number in range(N_TOKENS)]
    assert face.get(f"{key}?slice=262142:").json["items"] == ["t262142", "t262143"]
    assert face.get(f"{key}?slice=-1").json["items"] == ["t262143"]
    assert face.get(f"{key}?slice=2000:0:-900").json["items"] == ["t002000", "t001100", "t000200"]
    assert face.get(path_of("m", "metadata", "tokenizer.ggml.scores?slice=::131072")).json["items"] == [0, 131072]
    assert opened.call_count == 1  # what is asked again is at hand


def test_the_number_of_shown_elements_can_be_chosen(serve: Serve) -> None:
    face = serve(base(entries=[kv("a", ARRAY, (U8, list(range(20))))]))
    for items, shown in ((0, 0), (1, 1), (20, 20), (10000, 20)):
        line = face.get(f"{METADATA}?items={items}").json["metadata"][1]
        assert line["items"] == list(range(shown))
        assert line["whole"] is (shown == 20)
    assert face.problem(f"{METADATA}?items=10001") == (400, "bad-parameter")
    assert [line["key"] for line in face.get(f"{METADATA}?prefix=general.").json["metadata"]] == [ARCHITECTURE]
    assert face.get(f"{METADATA}?prefix=nothing").json["metadata"] == []


@pytest.mark.case(17)
def test_strings_that_are_not_utf_8_are_shown_with_their_bytes(serve: Serve) -> None:
    items = [b"\xff\xfe", b"\xe2\x96", b"a\0b"]
    face = serve(base(entries=[kv("tokenizer.ggml.tokens", ARRAY, (STRING, items)), kv("s", STRING, b"\xff")]))
    answer = face.get(METADATA)
    line = answer.json["metadata"][1]
    assert [base64.b64decode(item["base64"]) for item in line["items"][:2]] == items[:2]
    assert [item["text"] for item in line["items"][:2]] == ["\ufffd\ufffd", "\ufffd"]
    assert line["items"][2] == "a\0b"
    assert answer.json["metadata"][2]["value"] == "\ufffd"
    assert answer.json["metadata"][2]["value_base64"] == "/w=="


@pytest.mark.case(20)
def test_empty_arrays_keep_their_element_type(serve: Serve) -> None:
    face = serve(base(entries=[kv("general.tags", ARRAY, (STRING, [])), kv("a.b", ARRAY, (U32, []))]))
    for line, element in zip(face.get(METADATA).json["metadata"][1:], ("string", "u32"), strict=True):
        assert (line["length"], line["element_type"], line["items"], line["whole"]) == (0, element, [], True)
    assert face.get(path_of("m", "metadata", "a.b")).json["items"] == []


@pytest.mark.case(64)
def test_a_boolean_other_than_0_and_1_is_true_with_a_warning(serve: Serve) -> None:
    face = serve(base(entries=[raw_kv("x", BOOL, b"\x02")]))
    assert face.get(path_of("m", "metadata", "x")).json["value"] is True
    assert any('"x"' in line for line in face.get("/v1/models/m").json["warnings"])


@pytest.mark.case(69)
def test_a_key_given_twice_shows_both_values(serve: Serve) -> None:
    face = serve(base(entries=[kv(ARCHITECTURE, STRING, "gpt2")]))
    shown = [(line["key"], line["value"]) for line in face.get(METADATA).json["metadata"]]
    assert shown == [(ARCHITECTURE, "llama"), (ARCHITECTURE, "gpt2")]
    one = face.get(path_of("m", "metadata", ARCHITECTURE)).json
    assert [value["value"] for value in one["values"]] == ["llama", "gpt2"]
    assert any(ARCHITECTURE in line for line in face.get("/v1/models/m").json["warnings"])


@pytest.mark.case(70)
def test_an_empty_key_and_a_very_long_one_are_served(serve: Serve) -> None:
    face = serve(base(entries=[kv("", U32, 1), kv(b"k" * 70_000, U32, 2), kv(b"k" * 30_000, U32, 3)]))
    lines = face.get(METADATA).json["metadata"]
    assert [(line["key"], line["value"]) for line in lines[1:]] == [("", 1), ("k" * 70_000, 2), ("k" * 30_000, 3)]
    for line in (lines[1], lines[3]):  # no HTTP parser takes the URL of the second
        assert face.get(line["href"]).json["value"] == line["value"]
    assert "empty key" in " ".join(face.get("/v1/models/m").json["warnings"])


@pytest.mark.case(74)
@pytest.mark.parametrize(
    "data",
    [
        header(0, 2**62),
        header(2**64 - 1, 0),
        header(2**62, 1) + kv(ARCHITECTURE, STRING, "llama"),
        header(0, 1) + struct.pack("<Q", 2**63),
        header(0, 1) + struct.pack("<Q", 24 + 8 + 1),
        header(0, 1) + string("x") + struct.pack("<IQ", STRING, 24 + 9 + 4 + 8 + 1),
    ],
    ids=["keys", "tensors", "tensors after a key", "key length", "key of the file size + 1", "string + 1"],
)
def test_counts_and_lengths_that_lie_are_refused(serve: Serve, data: bytes) -> None:
    face = serve({"m.gguf": data, "good.gguf": base()})
    assert face.problem("/v1/models/m") == (422, "unreadable-model")
    assert face.get("/v1/models/good").status == 200


@pytest.mark.case(75)
@pytest.mark.parametrize(
    "value",
    [
        struct.pack("<IQ", U32, 2**63),
        struct.pack("<IQ", U32, 2**62),
        struct.pack("<IQ", STRING, 2**31) + bytes(8),
        struct.pack("<IQ", U8, 9) + bytes(8),
    ],
    ids=["2^63", "wraps to 0", "strings", "one more than is left"],
)
def test_array_lengths_that_lie_are_refused(serve: Serve, value: bytes) -> None:
    answer = serve(header(0, 1) + raw_kv("x", ARRAY, value)).get("/v1/models/m")
    assert slug(answer) == (422, "unreadable-model")
    assert '"x"' in answer.json["detail"]


@pytest.mark.case(76)
@pytest.mark.parametrize(
    ("entry", "place"),
    [
        (raw_kv("x", 13, bytes(4)), 9),
        (raw_kv("x", ARRAY, struct.pack("<IQB", 13, 1, 7)), 13),
        (raw_kv("x", 0x80000000, bytes(8)), 9),
    ],
    ids=["13", "13 in an array", "high bit"],
)
def test_an_unknown_value_type_is_refused_with_its_key_and_offset(serve: Serve, entry: bytes, place: int) -> None:
    answer = serve(base(entries=[entry])).get("/v1/models/m")
    assert slug(answer) == (422, "unreadable-model")
    assert '"x"' in answer.json["detail"]
    # The id itself: that of the value behind the key's name, or that of the elements behind it.
    offset = 24 + len(kv(ARCHITECTURE, STRING, "llama")) + place
    assert answer.json["offset"] == offset
    assert f"byte offset {offset}" in answer.json["detail"]


@pytest.mark.case(77)
def test_nested_arrays_are_nested_lists(serve: Serve) -> None:
    face = serve(base(entries=[kv("x", ARRAY, (ARRAY, [(U32, [7]), (U32, [8, 9])]))]))
    one = face.get(path_of("m", "metadata", "x")).json
    assert (one["items"], one["element_type"], one["length"]) == ([[7], [8, 9]], "array", 2)
    assert face.get(path_of("m", "metadata", "x?slice=1")).json["items"] == [[8, 9]]


@pytest.mark.case(77)
def test_arrays_nested_5000_deep_are_refused(serve: Serve) -> None:
    deep = struct.pack("<IQ", ARRAY, 1) * 5000 + array(U8, [1])
    answer = serve(base(entries=[raw_kv("x", ARRAY, deep)])).get("/v1/models/m")
    assert slug(answer) == (422, "unreadable-model")
    assert "8 levels" in answer.json["detail"]


def test_numbers_are_shown_exactly(serve: Serve) -> None:
    """Integers of 64 bits, the shortest digits of a float32, and names for what JSON has no number for."""
    cases: list[tuple[int, str, object, object]] = [
        (U64, "u64", 2**64 - 1, 2**64 - 1),
        (I64, "i64", -(2**63), -(2**63)),
        (F32, "f32", 0.1, 0.1),
        (F64, "f64", 1e300, 1e300),
        (F32, "f32", float("nan"), "NaN"),
        (F64, "f64", float("inf"), "Infinity"),
        (F32, "f32", float("-inf"), "-Infinity"),
    ]
    single = [kv(f"k{place}", value_type, value) for place, (value_type, _, value, _) in enumerate(cases)]
    arrays = [kv(f"a{place}", ARRAY, (value_type, [value])) for place, (value_type, _, value, _) in enumerate(cases)]
    face = serve(base(entries=[*single, *arrays]))
    for place, (_, label, _, shown) in enumerate(cases):
        one = face.get(path_of("m", "metadata", f"k{place}")).json
        assert (one["type"], one["value"]) == (label, shown)
        array_of_one = face.get(path_of("m", "metadata", f"a{place}")).json
        assert (array_of_one["element_type"], array_of_one["items"]) == (label, [shown])


def test_a_long_string_is_shortened_in_the_listing_without_cutting_a_character(serve: Serve) -> None:
    text = "é" * 40_000 + "x"
    face = serve(base(entries=[kv("odd", STRING, "x" + text), kv("even", STRING, text)]))
    for line, whole in zip(face.get(METADATA).json["metadata"][1:], ("x" + text, text), strict=True):
        assert line["whole"] is False
        assert line["length"] == len(whole.encode())
        assert "value_base64" not in line
        assert whole.startswith(line["value"])
        assert 65_533 <= len(line["value"].encode()) <= 65_536
        assert face.get(line["href"]).json["value"] == whole


def test_values_that_would_fill_the_memory_are_refused_with_a_way_around(serve: Serve) -> None:
    """A header of a sparse file may have 256 MiB of values: as JSON they would take many times that."""
    count = 40 << 20
    face = serve({"m.gguf": header(0, 1) + string("x") + struct.pack("<IIQ", ARRAY, U8, count)})
    path = face.root / "m.gguf"
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size + count)
    key = path_of("m", "metadata", "x")
    answer = face.get(key)
    assert slug(answer) == (413, "response-too-large")
    assert "slice=" in answer.json["detail"]
    assert str(answer.json["limit"]) in answer.json["detail"]
    assert face.get(f"{key}?slice=-3:").json["items"] == [0, 0, 0]
    assert face.get(METADATA).json["metadata"][0]["items"] == [0] * 8


def test_many_arrays_are_counted_together(serve: Serve) -> None:
    inner = struct.pack("<IQ", U8, 10_000) + bytes(10_000)
    face = serve(base(entries=[raw_kv("x", ARRAY, struct.pack("<IQ", ARRAY, 120) + inner * 120)]))
    assert face.problem(path_of("m", "metadata", "x")) == (413, "response-too-large")
    assert face.problem(f"{METADATA}?items=200") == (413, "response-too-large")
    assert len(face.get(path_of("m", "metadata", "x?slice=:3")).json["items"][2]) == 10_000
