"""Byte ranges, validators, Accept and posted selections, over HTTP."""

import email
import email.policy
import io
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import decoders
from app.conditions import Validators, heeded, is_not_modified
from app.windows import WINDOW_WEIGHTS
from decoders import GGMLType
from tests import builder
from tests.app.conftest import Face

ROW = 1000
N_ROWS = 1100  # five windows, rows across their borders
PATH = "/v1/models/m/-/data/q"


def quantized() -> bytes:
    blocks = np.random.default_rng(1).integers(0, 256, (ROW * N_ROWS // 32, 34), np.uint8)
    blocks[:, 1] &= 0x3F
    return blocks.tobytes()


BLOCKS = quantized()
VALUES = decoders.dequantize(BLOCKS, GGMLType.Q8_0).reshape(-1, ROW)


@pytest.fixture(scope="module")
def volume(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("volume")
    # Rows of 32 weights are whole blocks; they are asked for as rows of 1000 by slices of a 2-D shape that is not.
    tensors = [
        ("q", [ROW * 32 // 32, N_ROWS], GGMLType.F32, VALUES.astype("<f4").tobytes()),
        ("blocks", [32, ROW * N_ROWS // 32], GGMLType.Q8_0, BLOCKS),
        ("empty", [0, 4], GGMLType.F32, b""),
    ]
    (folder / "m.gguf").write_bytes(builder.build(tensors, [("general.architecture", builder.STRING, "llama")]))
    return folder


@pytest.fixture(scope="module")
def client(volume: Path) -> Iterator[Face]:
    made = Face(volume, recheck_seconds=60)
    yield made
    made.close()


@pytest.fixture
def fresh(volume: Path) -> Iterator[Face]:
    """A service of its own, whose cache is empty."""
    made = Face(volume)
    yield made
    made.close()


def misses(face: Face) -> int:
    """How many windows were decoded."""
    count: int = face.app.state.service.cache.figures().misses
    return count


@pytest.mark.case(47)
@pytest.mark.parametrize(
    "query", ["", "?format=npy", "?rows=::-1", "?rows=5,3,900,3&format=npy", "?cols=::7&dtype=float16"]
)
def test_any_range_is_that_part_of_the_body(client: Face, query: str) -> None:
    whole = client.get(PATH + query)
    assert whole.headers["accept-ranges"] == "bytes"
    size = len(whole.body)
    chosen = random.Random(0)
    spots = [0, 1, 127, 128, 129, size - 1, WINDOW_WEIGHTS * 4, WINDOW_WEIGHTS * 4 + 1]
    spots = [spot for spot in spots if spot < size] + [chosen.randrange(size) for _ in range(20)]
    for first in spots:
        last = min(size - 1, first + chosen.choice([0, 1, 5, 4096, size]))
        part = client.get(PATH + query, headers={"Range": f"bytes={first}-{last}"})
        assert part.status == 206
        assert part.headers["content-range"] == f"bytes {first}-{last}/{size}"
        assert part.headers["content-length"] == str(last - first + 1)
        assert part.headers["etag"] == whole.headers["etag"]
        assert part.body == whole.body[first : last + 1]


def test_native_blocks_have_ranges(client: Face) -> None:
    part = client.get("/v1/models/m/-/data/blocks?format=native", headers={"Range": "bytes=33-35"})
    assert part.body == BLOCKS[33:36]


@pytest.mark.case(47)
@pytest.mark.parametrize(
    ("wanted", "status", "first", "stop"),
    [
        ("bytes=0-3", 206, 0, 4),
        ("bytes=-4", 206, -4, None),
        ("bytes=-99999999999", 206, 0, None),
        ("bytes=4-", 206, 4, None),
        ("bytes=0-99999999999", 206, 0, None),
        ("bytes=99999999999-", 416, None, None),
        ("bytes=3-2", 200, 0, None),
        ("bytes=a-b", 200, 0, None),
        *(
            (f"bytes={text}", 200, 0, None)
            for text in (" 0-3", "0 -3", "0- 3", "0-3 ,x", " -4", "+0-3", "0_0-3", "\xb2-3", "")
        ),
        *((f"{unit}=0-3", 200, 0, None) for unit in ("bytes ", " bytes", "byte", "x")),
        ("Bytes=0-3", 206, 0, 4),
        ("bytes=-0", 416, None, None),
        ("bytes=-0,-00", 416, None, None),
        ("bytes=-00 ,\t-4", 206, -4, None),
        ("bytes=000-0003", 206, 0, 4),
        ("bytes=0-" + "9" * 5000, 206, 0, None),
        ("bytes=-" + "9" * 5000, 206, 0, None),
        ("bytes=" + "9" * 5000 + "-", 416, None, None),
        ("bytes=" + "9" * 5000 + "-" + "8" * 5000, 200, 0, None),
        ("bytes=1" + "0" * 30 + "-" + "9" * 30, 200, 0, None),
        ("bytes", 200, 0, None),
        ("rows=0-3", 200, 0, None),
        ("bytes=0-9,5-15", 200, 0, None),
        ("bytes=10-19,0-9", 200, 0, None),
        ("bytes=" + ",".join(f"{2 * k}-{2 * k}" for k in range(17)), 200, 0, None),
        ("bytes=" + ",".join(f"{2 * k}-{2 * k}" for k in range(5000)), 200, 0, None),
    ],
    ids=lambda value: str(value)[:30],
)
def test_kinds_of_ranges(client: Face, wanted: str, status: int, first: int | None, stop: int | None) -> None:
    answer = client.get(f"{PATH}?rows=0:64", headers={"Range": wanted})
    assert answer.status == status
    size = 64 * ROW * 4
    if status == 416:
        assert answer.headers["content-range"] == f"bytes */{size}"
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json["type"] == "/problems/range-not-satisfiable"
    else:
        assert answer.body == VALUES[:64].tobytes()[slice(first, stop)]


@pytest.mark.case(47)
def test_several_ranges_are_multipart(client: Face) -> None:
    answer = client.get(f"{PATH}?format=npy", headers={"Range": "bytes=0-0,100-200,-1"})
    assert answer.status == 206
    assert int(answer.headers["content-length"]) == len(answer.body)
    head = f"Content-Type: {answer.headers['content-type']}\r\n\r\n".encode()
    message = email.message_from_bytes(head + answer.body, policy=email.policy.HTTP)
    whole = client.get(f"{PATH}?format=npy").body
    parts = list(message.iter_parts())
    assert [part["Content-Range"] for part in parts] == [
        f"bytes {first}-{last}/{len(whole)}" for first, last in [(0, 0), (100, 200), (len(whole) - 1, len(whole) - 1)]
    ]
    assert [part["Content-Type"] for part in parts] == ["application/x-npy"] * 3
    raw = [part.get_payload(decode=True) for part in parts]
    assert raw[0] == whole[:1]
    boundary = answer.headers["content-type"].partition("boundary=")[2].encode()
    assert answer.body.count(b"--" + boundary) == 4
    assert b"\r\n\r\n" + whole[100:201] + b"\r\n--" in answer.body


@pytest.mark.case(47)
def test_sixteen_ranges_are_answered(client: Face) -> None:
    wanted = ",".join(f"{10 * k}-{10 * k + 1}" for k in range(16))
    answer = client.get(PATH, headers={"Range": f"bytes={wanted}"})
    assert answer.status == 206
    assert answer.body.count(b"Content-Range") == 16


def test_a_range_decodes_only_the_windows_it_needs(fresh: Face) -> None:
    fresh.get(PATH, headers={"Range": f"bytes={WINDOW_WEIGHTS * 8}-{WINDOW_WEIGHTS * 8 + 3}"})
    assert misses(fresh) == 1
    fresh.get(PATH, headers={"Range": f"bytes={WINDOW_WEIGHTS * 4 - 1}-{WINDOW_WEIGHTS * 4}"})
    assert misses(fresh) == 3


@pytest.mark.case(3)
def test_head_304_412_and_416_decode_nothing(fresh: Face) -> None:
    etag = fresh.get(PATH, "HEAD").headers["etag"]
    assert fresh.get(PATH, headers={"If-None-Match": etag}).status == 304
    assert fresh.get(PATH, headers={"If-Match": '"other"'}).status == 412
    assert fresh.get(PATH, headers={"Range": "bytes=999999999-"}).status == 416
    assert misses(fresh) == 0
    assert fresh.get(PATH, "HEAD", {"Range": "bytes=0-3"}).status == 200


@pytest.mark.case(25)
@pytest.mark.parametrize(
    "path", [PATH, "/v1/models/m", "/v1/models/m/-/tensors", "/v1/models/m/-/metadata/general.architecture"]
)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_conditions(client: Face, path: str, method: str) -> None:
    now = client.get(path, method)
    etag, modified = now.headers["etag"], now.headers["last-modified"]

    def status(**conditions: str) -> int:
        headers = {name.replace("_", "-"): value for name, value in conditions.items()}
        answer = client.get(path, method, headers)
        if answer.status == 304:
            assert answer.headers["etag"] == etag
            assert "content-type" not in answer.headers
        return answer.status

    assert etag.startswith('"')
    assert status(If_None_Match=etag) == 304
    assert status(If_None_Match=f'"x", {etag}') == 304
    assert status(If_None_Match=f"W/{etag}") == 304
    assert status(If_None_Match="*") == 304
    assert status(If_None_Match='"x"') == 200
    assert status(If_None_Match='"x"', If_Modified_Since=modified) == 200
    assert status(If_Modified_Since=modified) == 304
    assert status(If_Modified_Since="Mon, 01 Jan 2001 00:00:00 GMT") == 200
    assert status(If_Modified_Since="nonsense") == 200
    assert status(If_Match=etag) == 200
    assert status(If_Match="*") == 200
    assert status(If_Match='"x"') == 412
    assert status(If_Match=f"W/{etag}") == 412
    assert status(If_Unmodified_Since=modified) == 200
    assert status(If_Unmodified_Since="Mon, 01 Jan 2001 00:00:00 GMT") == 412


@pytest.mark.case(47)
def test_conditions_on_several_lines_are_one_list() -> None:
    state = Validators('"x"', 0, '"m"')
    match = heeded([(b"if-match", b'"old"'), (b"range", b"bytes=0-1"), (b"if-match", b'"x"'), (b"range", b"bytes=2-3")])
    assert match == {"if-match": '"old", "x"', "range": "bytes=0-1"}
    assert not is_not_modified(match, state)
    assert is_not_modified(heeded([(b"if-none-match", b'"old"'), (b"if-none-match", b'W/"x"')]), state)


def test_if_range_continues_only_the_same_state(client: Face) -> None:
    now = client.get(PATH, "HEAD")
    for value, status in [
        (now.headers["etag"], 206),
        (now.headers["last-modified"], 206),
        ('"other"', 200),
        ("W/" + now.headers["etag"], 200),
        ("Mon, 01 Jan 2001 00:00:00 GMT", 200),
        ("nonsense", 200),
    ]:
        assert client.get(PATH, headers={"Range": "bytes=0-3", "If-Range": value}).status == status, value


@pytest.mark.parametrize(
    "date", ["Thu, 01 Jan 99999999999999 00:00:00 GMT", "Thu, 01 Jan 1970 00:00:00 +99999999999999"]
)
def test_a_date_that_no_calendar_has_is_no_condition(client: Face, date: str) -> None:
    for path in (PATH, "/v1/models/m"):
        for header in ("If-Modified-Since", "If-Unmodified-Since"):
            assert client.get(path, headers={header: date}).status == 200, (path, header)
    assert client.get(PATH, headers={"Range": "bytes=0-3", "If-Range": date}).status == 200


@pytest.mark.parametrize(
    ("seconds", "date"),
    [
        (1 << 60, "Fri, 31 Dec 9999 23:59:59 GMT"),
        (-1, "Wed, 31 Dec 1969 23:59:59 GMT"),
        (-(1 << 60), "Mon, 01 Jan 0001 00:00:00 GMT"),
    ],
)
def test_any_time_that_a_file_can_have_is_a_date(seconds: int, date: str) -> None:
    validators = Validators('"x"', seconds * 1_000_000_000, '"m"')
    assert validators.headers()["Last-Modified"] == date
    assert is_not_modified({"if-modified-since": date}, validators)


@pytest.mark.case(25)
def test_two_services_agree_on_etags(fresh: Face, client: Face) -> None:
    for path in (PATH, f"{PATH}?rows=3&format=npy", "/v1/models/m/-/safetensors", "/v1/models/m"):
        assert fresh.get(path, "HEAD").headers["etag"] == client.get(path, "HEAD").headers["etag"]


@pytest.mark.parametrize(
    ("accept", "media_type"),
    [
        (None, "application/octet-stream"),
        ("*/*", "application/octet-stream"),
        ("application/*", "application/octet-stream"),
        ("application/json", "application/json"),
        ("application/x-npy", "application/x-npy"),
        ("application/json;q=0.4, application/x-npy;q=0.5", "application/x-npy"),
        ("application/octet-stream;q=0, */*", "application/x-npy"),
        ("text/html,application/xhtml+xml,*/*;q=0.8", "application/octet-stream"),
        ("application/json, */*", "application/json"),
    ],
)
def test_accept_chooses_the_form(client: Face, accept: str | None, media_type: str) -> None:
    answer = client.get(f"{PATH}?rows=0&cols=0", headers={} if accept is None else {"Accept": accept})
    assert answer.headers["content-type"] == media_type
    assert answer.headers["vary"] == "Accept"


def test_format_wins_over_accept(client: Face) -> None:
    answer = client.get(f"{PATH}?rows=0&format=npy", headers={"Accept": "application/json"})
    assert answer.headers["content-type"] == "application/x-npy"
    assert "vary" not in answer.headers


def test_an_accept_that_nothing_satisfies_is_406(client: Face) -> None:
    answer = client.get(PATH, headers={"Accept": "image/png"})
    assert answer.status == 406
    assert answer.json["type"] == "/problems/not-acceptable"


@pytest.mark.case(33)
def test_a_posted_selection_answers_as_the_same_query(client: Face) -> None:
    body = {"rows": [3, 7, "10:20", -1], "cols": "0:64", "format": "npy", "dtype": "float16"}
    posted = client.post(PATH, body)
    assert posted.status == 200
    asked = client.get(f"{PATH}?rows=3,7,10:20,-1&cols=0:64&format=npy&dtype=float16")
    assert posted.body == asked.body
    assert posted.headers["etag"] == asked.headers["etag"]
    np.testing.assert_array_equal(np.load(io.BytesIO(posted.body)).shape, (13, 64))


@pytest.mark.case(33)
def test_a_million_rows_can_be_posted(client: Face) -> None:
    rows = np.random.default_rng(0).integers(-N_ROWS, N_ROWS, 1_000_000)
    posted = client.post(PATH, {"rows": rows.tolist(), "cols": 5})
    np.testing.assert_array_equal(np.frombuffer(posted.body, "<f4"), VALUES[rows, 5])
    refused = client.post(PATH, {"rows": [0] * 1_000_001})
    assert refused.status == 400
    assert "1000000" in refused.json["detail"]


def test_a_gather_decodes_each_window_once(fresh: Face) -> None:
    rows = np.random.default_rng(0).permutation(N_ROWS)
    posted = fresh.post(PATH, {"rows": rows.tolist()})
    np.testing.assert_array_equal(posted.floats.reshape(-1, ROW), VALUES[rows])
    assert misses(fresh) == -(-ROW * N_ROWS // WINDOW_WEIGHTS)


@pytest.mark.parametrize(
    ("body", "slug"),
    [
        (b"", "bad-parameter"),
        (b"[1]", "bad-parameter"),
        (b"{nope", "bad-parameter"),
        (b'{"rows":[true]}', "bad-parameter"),
        (b'{"rows":[1.5]}', "bad-parameter"),
        (b'{"rowz":[1]}', "bad-parameter"),
        (b'{"rows":["1:2:0"]}', "bad-selection"),
        (b'{"rows":["x"]}', "bad-selection"),
        (b'{"rows":[99999]}', "selection-out-of-range"),
        (b'{"rows":[9999999999999999999]}', "selection-out-of-range"),
        (b'{"rows":[99999999999999999999999999]}', "bad-parameter"),
        (b'{"rows":' + b"9" * 5000 + b"}", "bad-parameter"),
        (b"[" * 100_000, "bad-parameter"),
        (b'{"rows":NaN}', "bad-parameter"),
        (b'{"rows":0,"slice":"0"}', "bad-parameter"),
        (b'{"format":"png"}', "bad-parameter"),
    ],
)
def test_posted_nonsense_is_refused(client: Face, body: bytes, slug: str) -> None:
    answer = client.post(PATH, body)
    assert answer.status == 400
    assert answer.json["type"] == f"/problems/{slug}"
    assert len(answer.body) < 1000


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (b'{"rows":[' + b"null," * 999_999 + b"null]}", "rows: expected integers of at most 19 digits, and slices."),
        (
            b'{"rows":[' + b"{}," * 3_000_000 + b"{}]}",
            "the body lists more than 1000000 rows: ask in several requests.",
        ),
        (b'{"rows":"' + b"1," * 1_000_000 + b'1"}', "expected at most 1000000 rows and slices, not 1000001."),
        (
            b"{" + b",".join(b'"%d":0' % k for k in range(500_000)) + b"}",
            "'4' is no parameter of this route; and 1 more.",
        ),
    ],
    ids=["bad rows", "too many rows", "too long a text", "unknown members"],
)
def test_a_body_of_a_million_errors_is_refused_for_a_few(client: Face, body: bytes, detail: str) -> None:
    answer = client.post(PATH, body)
    assert answer.status == 400
    assert answer.json["detail"].endswith(detail)
    assert len(answer.body) < 1000


def test_an_empty_list_of_rows_is_an_empty_answer(client: Face) -> None:
    posted = client.post(PATH, {"rows": [], "format": "json"})
    assert posted.json == {"shape": [0, ROW], "dtype": "float32", "data": []}
    assert client.get("/v1/models/m/-/data/empty", headers={"Range": "bytes=0-"}).status == 416
