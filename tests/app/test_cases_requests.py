"""Cases of docs/cases.md about requests: selections, kind parsers, methods."""

import io
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.app.conftest import Face, Serve, path_of, slug
from tests.builder import F8, base, build, floats

W = path_of("m", "data", "w")
T = path_of("m", "data", "t")
LARGE = path_of("m", "data", "large")
# Ten rows that end with the file; and ten of a row length at which they lie across windows of 2^18 weights.
SMALL_ROW, LARGE_ROW = 3, 70_001
SMALL = np.arange(10 * SMALL_ROW, dtype=np.float32).reshape(10, SMALL_ROW)
WIDE = np.arange(10 * LARGE_ROW, dtype=np.float32).reshape(10, LARGE_ROW)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Face]:
    root = tmp_path_factory.mktemp("rows")
    tensors = [("large", [LARGE_ROW, 10], 0, WIDE.tobytes()), ("t", [SMALL_ROW, 10], 0, SMALL.tobytes())]
    (root / "m.gguf").write_bytes(build(tensors))
    face = Face(root)
    yield face
    face.close()


@pytest.mark.case(11, 33)
@pytest.mark.parametrize(
    ("text", "picked"),
    [
        ("9:10", [9]),
        ("9:11", [9]),
        ("10:11", []),
        ("-1", [9]),
        ("5:2", []),
        ("0:10:3", [0, 3, 6, 9]),
        ("9::-1", [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]),
        ("-99:2", [0, 1]),
        ("-2:", [8, 9]),
        ("::-4", [9, 5, 1]),
        (":", list(range(10))),
        ("5,2,2,9", [5, 2, 2, 9]),
        ("3,7,8:20", [3, 7, 8, 9]),
        ("9:10,10:11,0", [9, 0]),
        ("9999999999999999999:", []),
        ("::9999999999999999999", [0]),
    ],
)
def test_rows_are_numpys(rows: Face, text: str, picked: list[int]) -> None:
    for target, whole in ((T, SMALL), (LARGE, WIDE)):
        raw = rows.get(f"{target}?rows={text}")
        assert raw.body == whole[picked].tobytes()
        assert raw.headers["x-tensor-shape"] == f"[{len(picked)},{whole.shape[1]}]"
        loaded = np.load(io.BytesIO(rows.get(f"{target}?rows={text}&format=npy").body), allow_pickle=False)
        assert np.array_equal(loaded, whole[picked])
        assert loaded.shape == (len(picked), whole.shape[1])
        assert rows.get(f"{target}?rows={text}&format=native").body == raw.body


@pytest.mark.case(11)
@pytest.mark.parametrize("text", ["10", "-11", "0,10", "9999999999999999999", "-9999999999999999999"])
def test_an_integer_outside_is_an_error(rows: Face, text: str) -> None:
    for target in (T, LARGE):
        for query in ("", "&format=npy", "&format=native", "&format=json"):
            answer = rows.get(f"{target}?rows={text}{query}")
            assert slug(answer) == (400, "selection-out-of-range")
            assert "-10 to 9" in answer.json["detail"]
            assert answer.json["length"] == 10


@pytest.mark.case(34)
@pytest.mark.parametrize("parameter", ["rows", "cols", "slice"])
@pytest.mark.parametrize(
    "text",
    [
        "",
        "::0",
        "1:2:3:4",
        "%2B1",
        "+1",
        "1+",
        "%201",
        "1%20",
        "1_0",
        "1.0",
        "1e1",
        "0x1",
        "%D9%A1",
        "%EF%BC%91",
        "--1",
        "-",
        "1-2",
        "a",
        "None",
        "99999999999999999999",
        "0" * 20,
        "1,,2",
        ",",
        "1;2",
        "%00",
        "1%00",
        "%0A1",
        "1%0A",
        "%FF",
        "\u00b2",
        "[0]",
        "...,...",
        "..",
        "true",
        "9" * 30_000,
    ],
)
def test_anything_but_plain_integers_and_slices_is_refused(rows: Face, parameter: str, text: str) -> None:
    answer = rows.get(f"{T}?{parameter}={text}")
    assert slug(answer) in ((400, "bad-selection"), (400, "bad-parameter"))
    assert len(answer.json["detail"]) < 300
    assert rows.get("/v1/data?model=m&tensor=t&" + f"{parameter}={text}") == answer


@pytest.mark.case(11)
@pytest.mark.parametrize("query", ["", "&format=npy", "&format=native", "&format=json"])
def test_a_step_of_zero_is_refused_in_every_form(rows: Face, query: str) -> None:
    for target in (T, LARGE):
        assert rows.problem(f"{target}?rows=::0{query}") == (400, "bad-selection")


@pytest.mark.case(34)
def test_a_stop_past_63_bits_clamps_like_any_other(rows: Face) -> None:
    assert rows.get(f"{T}?rows=8:9223372036854775808").body == SMALL[8:].tobytes()


def test_leading_zeros_and_minus_zero_are_plain_digits(rows: Face) -> None:
    assert rows.get(f"{T}?rows=-0").body == rows.get(f"{T}?rows=0000000000000000000").body == SMALL[:1].tobytes()


@pytest.mark.case(34)
@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("rows=0&rows=0", "'rows'"),
        ("strat=3", "'strat'"),
        ("rows=0&Rows=0", "'Rows'"),
        ("start=0", "'start'"),
        ("start=0&start=5", "'start'"),
        ("stop=9223372036854775808", "'stop'"),
        ("rows=0&slice=0", "slice"),
        ("cols=0&slice=0", "slice"),
        ("cols=0,1", "cols"),
        ("format=numpy", "format"),
        ("format=NPY", "format"),
        ("format=", "format"),
        ("dtype=float64", "dtype"),
        ("dtype=", "dtype"),
        ("format=npy&dtype=bfloat16", "bfloat16"),
        ("format=json&dtype=bfloat16", "bfloat16"),
        ("format=native&cols=0", "native"),
        ("format=native&slice=0", "native"),
        ("format=native&dtype=float32", "native"),
        ("slice=0,0,0", "2 axes"),
        ("model=m", "'model'"),
        ("tensor=t", "'tensor'"),
    ],
)
def test_unknown_repeated_and_unfitting_parameters_are_refused_by_name(rows: Face, query: str, named: str) -> None:
    answer = rows.get(f"{T}?{query}")
    assert answer.status == 400
    assert named in answer.json["detail"]


@pytest.mark.parametrize("query", ["", "model=m", "tensor=t", "model=m&model=m&tensor=t", "model=m&tensor=t&x="])
def test_the_route_of_parameters_wants_each_name_once(rows: Face, query: str) -> None:
    assert rows.problem(f"/v1/data?{query}") == (400, "bad-parameter")


@pytest.mark.case(34)
def test_many_parameters_are_looked_through_once(rows: Face) -> None:
    """Thousands of them, and an error text that stays short."""
    query = "&".join(f"{number:x}" for number in range(6_000))
    answer = rows.get(f"{T}?{query}")
    assert slug(answer) == (400, "bad-parameter")
    assert rows.problem(f"{T}?{query}&0") == (400, "bad-parameter")
    assert "and 5995 more" in answer.json["detail"]


@pytest.mark.case(33)
def test_a_long_list_of_rows_is_answered_up_to_the_limit_of_a_url(rows: Face) -> None:
    picked = [number % 10 for number in range(10_000)]
    assert rows.get(f"{T}?rows={','.join(map(str, picked))}").body == SMALL[picked].tobytes()
    answer = rows.get(f"{T}?rows={','.join('5' for _ in range(100_000))}")
    assert slug(answer) == (414, "url-too-long")
    assert answer.json["limit"] == rows.app.state.service.settings.url_limit
    assert str(answer.json["limit"]) in answer.json["detail"]


@pytest.mark.case(32)
@pytest.mark.parametrize("encoding", ["gzip, br", "gzip;q=1.0, identity;q=0", "*"])
def test_weights_are_never_compressed(rows: Face, encoding: str) -> None:
    for method in ("GET", "HEAD"):
        plain = rows.get(T, method)
        answer = rows.get(T, method, {"Accept-Encoding": encoding})
        assert answer == plain
        assert "content-encoding" not in answer.headers
        assert answer.headers["content-length"] == str(SMALL.nbytes)


@pytest.mark.case(3)
def test_head_is_known_without_reading_the_data(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    face = serve(base())
    lengths = {"": "32", "?format=npy": "160", "?format=native": "32", "?rows=0&cols=0": "4", "?rows=0:0": "0"}
    whole = {query: face.get(W + query) for query in [*lengths, "?format=json"]}

    def fail(*_: object) -> None:
        raise AssertionError("a window was made")

    monkeypatch.setattr("app.reader.Reader.begin", fail)
    monkeypatch.setattr("app.reader.Reader.make", fail)
    for query, length in lengths.items():
        answer = face.get(W + query, "HEAD")
        assert (answer.status, answer.body) == (200, b"")
        assert answer.headers == whole[query].headers
        assert answer.headers["content-length"] == length
    # JSON is as long as its digits: that length is not known without them.
    json = face.get(f"{W}?format=json", "HEAD")
    assert json.headers == {k: v for k, v in whole["?format=json"].headers.items() if k != "content-length"}


SLICE = st.builds(
    lambda start, stop, step: ":".join(
        ["" if start is None else str(start), "" if stop is None else str(stop), *([str(step)] if step else [])]
    ),
    st.none() | st.integers(-14, 14),
    st.none() | st.integers(-14, 14),
    st.integers(-4, 4),
)


def as_index(text: str) -> slice:
    return slice(*(int(part) if part else None for part in text.split(":")))


@pytest.mark.case(11)
@settings(max_examples=60, deadline=None)
@given(parts=st.lists(SLICE | st.integers(-10, 9).map(str), min_size=1, max_size=4), cols=st.none() | SLICE)
def test_rows_and_cols_equal_numpy(rows: Face, parts: list[str], cols: str | None) -> None:
    index = np.concatenate([np.atleast_1d(np.arange(10)[as_index(p) if ":" in p else int(p)]) for p in parts])
    expected = SMALL[index.astype(int)][:, slice(None) if cols is None else as_index(cols)]
    query = f"rows={','.join(parts)}" + ("" if cols is None else f"&cols={cols}")
    body = rows.get(f"{T}?{query}&format=npy").body
    loaded = np.load(io.BytesIO(body), allow_pickle=False)
    assert loaded.shape == expected.shape
    assert np.array_equal(loaded, expected)


CUBE = np.arange(2 * 3 * 4, dtype=np.float32).reshape(2, 3, 4)


@pytest.fixture(scope="module")
def cube(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Face]:
    root = tmp_path_factory.mktemp("cube")
    (root / "m.gguf").write_bytes(build([("e", [4, 3, 2], 0, floats(*range(24)))]))
    face = Face(root)
    yield face
    face.close()


@settings(max_examples=60, deadline=None)
@given(
    parts=st.tuples(
        SLICE | st.integers(-2, 1).map(str), SLICE | st.integers(-3, 2).map(str), SLICE | st.integers(-4, 3).map(str)
    ),
    n_parts=st.integers(0, 3),
    ellipsis=st.none() | st.integers(0, 3),
)
def test_slices_equal_numpy(cube: Face, parts: tuple[str, ...], n_parts: int, ellipsis: int | None) -> None:
    """N-D selections: integers drop their axis, an ellipsis stands for the axes not given."""
    given_parts = list(parts[:n_parts])
    at = n_parts if ellipsis is None else min(ellipsis, n_parts)
    # Behind the ellipsis, a part is for an axis counted from the last.
    if ellipsis is not None or not given_parts:
        given_parts[at:] = ["...", *parts[3 - (n_parts - at) :]] if n_parts > at else ["..."]
    index = tuple(... if p == "..." else as_index(p) if ":" in p else int(p) for p in given_parts)
    expected = CUBE[index]
    body = cube.get(f"{path_of('m', 'data', 'e')}?slice={','.join(given_parts)}&format=npy").body
    loaded = np.load(io.BytesIO(body), allow_pickle=False)
    assert loaded.shape == expected.shape
    assert np.array_equal(loaded, expected)


def test_empty_selections_are_answers_in_every_form(serve: Serve) -> None:
    face = serve(base())
    for query, shape in (
        ("rows=0:0", (0, 4)),
        ("cols=2:2", (2, 0)),
        ("rows=1:0&cols=1", (0, 1)),
        ("slice=0,3:3", (0,)),
    ):
        raw = face.get(f"{W}?{query}")
        assert (raw.status, raw.body, raw.headers["content-length"]) == (200, b"", "0")
        npy = face.get(f"{W}?{query}&format=npy").body
        assert np.load(io.BytesIO(npy), allow_pickle=False).shape == shape
        assert len(npy) == 128
        shown = face.get(f"{W}?{query}&format=json").json
        assert tuple(shown["shape"]) == shape
        assert shown["data"] == np.zeros(shape).tolist()
    assert face.get(f"{W}?rows=0:0&format=native").body == b""
    assert face.get(W).body == F8


@pytest.mark.case(34)
@pytest.mark.parametrize(
    "text", ["", "1_0", "%2B5", "+5", "%205", "5%20", "5.0", "-0", "-1", "%D9%A3", "0x5", "1e1", "9" * 20]
)
def test_numbers_of_the_listings_are_plain_digits(rows: Face, text: str) -> None:
    for target in ("metadata?items=", "tensors?limit=", "tensors?cursor="):
        assert rows.problem(path_of("m", target + text)) == (400, "bad-parameter")
