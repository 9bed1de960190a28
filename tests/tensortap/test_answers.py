"""What the clients make of every kind of answer: of a service in trouble, and of what lies between."""

import gzip
import threading
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import httpx
import numpy as np
import pytest

import tensortap
from tensortap import (
    BadRequest,
    ConnectionFailed,
    ModelChanged,
    NotFound,
    Overloaded,
    ServiceError,
    TensorTapError,
    TooLarge,
    Unauthorized,
    Unreadable,
)
from tensortap._http import check_place
from tensortap._progress import progress_of
from tensortap._retry import Patience
from tests.server import free_port
from tests.tensortap.stub import ETAG, VERSION, WEIGHTS, Answering, Stub, answer, problem
from tests.tensortap.twin import Connect
from tests.waiting import eventually

HTML = answer(502, b"<html><h1>Bad Gateway</h1></html>", Content_Type="text/html")
RANGE = f"bytes 0-3999/{WEIGHTS.nbytes}"
ABOUT = {"ETag": ETAG, "X_Model_ETag": VERSION}


def unstated(content: bytes) -> bytes:
    """An answer with the whole that does not say how long it is: the connection ends with it."""
    return answer(200, content, **ABOUT).replace(f"Content-Length: {len(content)}\r\n".encode(), b"")


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits that retries would have; none is waited for."""
    seen: list[float] = []
    wait, stop = Patience.wait, Patience.stop

    def waits(patience: Patience, state: Any) -> float:
        seen.append(wait(patience, state))
        return 0

    def stops(patience: Patience, state: Any) -> bool:
        if is_over := stop(patience, state):
            seen.pop()  # tenacity asks for the wait after the last failure, too, and does not wait
        return is_over

    monkeypatch.setattr(Patience, "wait", waits)
    monkeypatch.setattr(Patience, "stop", stops)
    return seen


def read(connect: Connect, stub: Stub, index: Any = ..., **settings: Any) -> Any:
    with connect(stub.url, **settings) as tap:
        return tap["m"]["w"][index]


@pytest.mark.parametrize(
    "first",
    [
        problem(503, "overloaded"),
        problem(503, "shutting-down"),
        problem(429, "too-many"),
        answer(408),
        answer(504),
        HTML,
        Stub.cut(1),
        Stub.cut(3999),
        lambda _: b"",
        b"HTTP/1.1 200",
        b"\x00\x01garbage\r\n\r\n",
    ],
    ids=["503", "shutting-down", "429", "408", "504", "html", "short", "shorter", "closed", "half", "garbage"],
)
def test_what_may_pass_is_asked_for_again(connect: Connect, waits: list[float], first: bytes | Answering) -> None:
    with Stub(first) as stub:
        assert np.array_equal(read(connect, stub), WEIGHTS)
        assert len(stub.asked) == 2
    assert len(waits) == 1


@pytest.mark.parametrize("slug", ["overloaded", "shutting-down"])
def test_retry_after_is_waited_for(connect: Connect, waits: list[float], slug: str) -> None:
    at = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    values = ["7", at, "0", "soon", "Mon, 01 Jan 0001 00:00:00 +2359", "9" * 5000]
    with Stub(*(problem(503, slug, Retry_After=value) for value in values)) as stub:
        assert np.array_equal(read(connect, stub, retries=10), WEIGHTS)
    seconds, date, *others, longest = waits
    assert 7 <= seconds <= 7.2
    assert 25 < date < 31
    assert all(0 < wait < 2 for wait in others)
    assert 60 <= longest <= 65


def test_waits_grow_and_differ(waits: list[float]) -> None:
    with Stub(*[problem(503, "overloaded")] * 20) as stub, pytest.raises(Overloaded):
        read(tensortap.Client, stub, retries=9)
    assert len(waits) == 9
    assert all(0.05 * 2**n <= wait <= 0.1 * 2**n for n, wait in enumerate(waits[:7]))
    assert all(wait <= 10 for wait in waits)


@pytest.mark.parametrize(
    ("failing", "error", "slug"),
    [
        (problem(503, "overloaded"), Overloaded, "overloaded"),
        (problem(503, "volume-error"), ServiceError, "volume-error"),
        (answer(429), Overloaded, None),
        (HTML, ServiceError, None),
        (answer(504), ServiceError, None),
        (lambda _: b"", ConnectionFailed, None),
        (b"nonsense\r\n\r\n", ConnectionFailed, None),
        (lambda head: Stub.weights(head).partition(b"\r\n\r\n")[0] + b"\r\n\r\n", ConnectionFailed, None),
    ],
    ids=["503", "volume", "429", "html", "504", "closed", "nonsense", "short"],
)
def test_retries_end_with_the_error_of_the_last(
    connect: Connect, waits: list[float], failing: bytes | Answering, error: type[TensorTapError], slug: str | None
) -> None:
    with Stub(*[failing] * 10) as stub:
        with pytest.raises(error) as raised:
            read(connect, stub, retries=3)
        assert len(stub.asked) == 4
    assert raised.value.slug == slug
    assert f"{stub.url}/v1/models/m/-/data/w" in (raised.value.url, raised.value.url.partition("?")[0])
    assert len(waits) == 3


@pytest.mark.parametrize(
    ("once", "error", "slug"),
    [
        (problem(400, "bad-parameter"), BadRequest, "bad-parameter"),
        (problem(400, "bad-selection"), tensortap.SelectionError, "bad-selection"),
        (problem(400, "selection-out-of-range"), IndexError, "selection-out-of-range"),
        (problem(401, "unauthorized"), Unauthorized, "unauthorized"),
        (problem(403, "forbidden"), PermissionError, "forbidden"),
        (problem(404, "no-such-tensor"), NotFound, "no-such-tensor"),
        (problem(409, "ambiguous-tensor"), Unreadable, "ambiguous-tensor"),
        (problem(412, "model-changed"), ModelChanged, "model-changed"),
        (problem(413, "response-too-large"), TooLarge, "response-too-large"),
        (problem(416, "range-not-satisfiable"), ServiceError, "range-not-satisfiable"),
        (problem(422, "unsupported-type"), Unreadable, "unsupported-type"),
        (problem(500, "internal-error"), ServiceError, "internal-error"),
        (answer(500, b"<html>"), ServiceError, None),
        (answer(404, b"[" * 200_000), NotFound, None),
        (answer(404, b"[1, 2]"), NotFound, None),
        (answer(404, b'{"type": 7, "detail": []}'), NotFound, None),
        (answer(418, b"\xff\xfe"), ServiceError, None),
        (answer(204), ServiceError, None),
        (answer(304), ServiceError, None),
        (answer(300), ServiceError, None),
        (answer(302, Location="/v1/models/m/-/data/w"), ConnectionFailed, None),
        (answer(302, Location="ftp://example.org/"), ServiceError, None),
        (answer(200, WEIGHTS.tobytes() + b"more", **ABOUT), ServiceError, None),
        (unstated(WEIGHTS.tobytes() + b"more"), ServiceError, None),
        (answer(206, WEIGHTS.tobytes(), **ABOUT), ServiceError, None),
        (answer(206, WEIGHTS.tobytes(), Content_Range="bytes 4-4003/5000", **ABOUT), ServiceError, None),
        (answer(206, WEIGHTS.tobytes(), Content_Range="bytes 0-4000/4001", **ABOUT), ServiceError, None),
        (answer(206, WEIGHTS.tobytes(), Content_Range="rows 1-2", **ABOUT), ServiceError, None),
        (answer(206, WEIGHTS.tobytes() + b"more", Content_Range=RANGE, **ABOUT), ServiceError, None),
        (
            answer(206, gzip.compress(WEIGHTS.tobytes()), Content_Range=RANGE, Content_Encoding="gzip", **ABOUT),
            ServiceError,
            None,
        ),
        (answer(206, WEIGHTS.tobytes(), Content_Range=RANGE, ETag=ETAG, X_Model_ETag='"another"'), ModelChanged, None),
    ],
)
def test_what_another_attempt_would_not_mend_is_raised_at_once(
    connect: Connect, waits: list[float], once: bytes, error: type[Exception], slug: str | None
) -> None:
    endless = [once] * 30
    with Stub(*endless) as stub:
        with pytest.raises(error) as raised:
            read(connect, stub)
        assert len(stub.asked) == 1 or b"302" in once
    assert isinstance(raised.value, TensorTapError)
    assert raised.value.slug == (slug or raised.value.slug)
    assert not waits
    if slug is not None:
        assert raised.value.detail == "Because."
        assert raised.value.problem["more"] == 7
        assert raised.value.status == raised.value.problem["status"]


def test_a_length_that_is_not_the_bodys_is_refused(connect: Connect, waits: list[float]) -> None:
    rows = {"ETag": ETAG, "X_Model_ETag": VERSION}
    for wrong in (answer(200, bytes(796), **rows), answer(200, bytes(800), length="x", **rows)):
        with Stub(*[wrong] * 9) as stub, pytest.raises((ServiceError, ConnectionFailed)):
            read(connect, stub, slice(0, 4, 2), cache_bytes=0)


def test_a_redirect_is_followed_and_a_posted_question_is_not_lost_on_the_way(connect: Connect) -> None:
    with Stub() as stub:
        there = answer(307, Location=f"{stub.url}/v1/models/m/-/data/w?format=native")
        stub.script = [there]
        assert np.array_equal(read(connect, stub), WEIGHTS)
        assert len(stub.asked) == 2
        with connect(stub.url) as tap:
            tensor = tap["m"]["w"]
            stub.script = [answer(301, Location="/elsewhere")]
            stub.answers["/elsewhere"] = stub.weights("")
            names = np.arange(0, 10, 2)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("tensortap._read._LONGEST_QUERY", 1)
                with pytest.raises(ServiceError, match="to /elsewhere: open the client with the URL"):
                    tensor[names]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_key_follows_a_redirect_to_another_place(connect: Connect, status: int) -> None:
    with Stub() as stub, Stub() as other:
        elsewhere = [f"{other.url}/v1/models", f"//127.0.0.1:{other.port}/", f"http://localhost:{stub.port}/v1/models"]
        for there in elsewhere:
            stub.answers["/v1/models"] = answer(status, Location=there)
            for keys in ({"headers": {"X-API-Key": "secret"}}, {"api_key": "secret"}):
                with connect(stub.url, **keys) as tap, pytest.raises(ServiceError, match="redirects to elsewhere"):
                    tap.models()
        assert not other.heads


@pytest.mark.parametrize(
    ("base", "url", "is_allowed"),
    [
        ("http://h:8000/path/", "http://h:8000/else", True),
        ("http://h", "http://h:80/", True),
        ("http://h", "https://h/", True),
        ("http://h:8000", "https://h:8443/", True),
        ("https://h", "https://h:443/", True),
        ("https://h", "http://h/", False),
        ("https://h:8000", "http://h:8000/", False),
        ("http://h", "https://h.example/", False),
        ("http://h", "http://h:8000/", False),
        ("https://h", "https://h:8443/", False),
        ("http://h", "ftp://h/", False),
    ],
)
def test_where_redirects_may_lead(base: str, url: str, is_allowed: bool) -> None:
    with nullcontext() if is_allowed else pytest.raises(ServiceError, match="redirects to elsewhere"):
        check_place(httpx.URL(base), httpx.URL(url))


@pytest.mark.parametrize("index", [..., slice(0, 10)])
def test_a_proxy_that_takes_no_ranges_or_states_no_length_is_lived_with(connect: Connect, index: Any) -> None:
    for whole in (answer(200, WEIGHTS.tobytes(), **ABOUT), unstated(WEIGHTS.tobytes())):
        with Stub(whole) as stub:
            assert np.array_equal(read(connect, stub, index), WEIGHTS)
            assert len(stub.asked) == 1
        with Stub(whole[:-1000], whole) as stub:  # what broke off begins anew
            assert np.array_equal(read(connect, stub, index), WEIGHTS)
    short = unstated(WEIGHTS.tobytes()[:-1])
    with Stub(*[short] * 9) as stub, pytest.raises(ConnectionFailed, match="broke off after 3999 of 4000 bytes"):
        read(connect, stub, index, retries=0)


def test_a_body_goes_on_where_it_broke_off(connect: Connect) -> None:
    with Stub(Stub.cut(1000), Stub.cut(300)) as stub:
        assert np.array_equal(read(connect, stub), WEIGHTS)
        first, second, third = stub.asked
    assert "range: bytes=0-3999" in first.lower()
    assert "range: bytes=3000-3999" in second.lower()
    assert "range: bytes=3700-3999" in third.lower()
    assert "if-range" not in first.lower()
    for head in (second, third):
        assert f"if-range: {ETAG}" in head.lower()
    for head in (first, second, third):
        assert f"if-match: {VERSION}" in head.lower()
        assert "accept-encoding: identity" in head.lower()


@pytest.mark.parametrize("etag", [None, 'W/"weak"'])
def test_a_body_without_a_strong_etag_begins_anew(connect: Connect, etag: str | None) -> None:
    def nameless(head: str) -> bytes:
        return Stub.weights(head).replace(f"\r\nETag: {ETAG}".encode(), f"\r\nETag: {etag}".encode() if etag else b"")

    with Stub(lambda head: nameless(head)[:-1000], nameless) as stub:
        assert np.array_equal(read(connect, stub), WEIGHTS)
        assert "range: bytes=0-3999" in stub.asked[1].lower()
        assert "if-range" not in stub.asked[1].lower()


def test_a_body_that_begins_anew_has_to_come_further_each_time(connect: Connect, waits: list[float]) -> None:
    def nameless(keep: int) -> Answering:
        return lambda head: Stub.weights(head).replace(f"\r\nETag: {ETAG}".encode(), b"")[:keep]

    with Stub(*[nameless(1000), nameless(2000)] * 100) as stub, pytest.raises(ConnectionFailed):
        read(connect, stub, retries=4)
    assert 4 <= len(stub.asked) <= 7


def test_another_body_is_never_put_behind_the_first(connect: Connect) -> None:
    other = (WEIGHTS + 1).tobytes()
    about = {"ETag": '"another"', "X_Model_ETag": VERSION}
    rest = answer(206, other[3000:], Content_Range="bytes 3000-3999/4000", **about)
    with Stub(Stub.cut(1000), rest) as stub, pytest.raises(ModelChanged):
        read(connect, stub)
    with Stub(Stub.cut(1000), answer(200, other, **about)) as stub, pytest.raises(ServiceError):
        read(connect, stub)
    # Where rows were asked for and not a range, the whole again takes the place of what came.
    with Stub(Stub.cut(1000), lambda _: answer(200, other[:800], **about)) as stub:
        stub.script[0] = lambda _: answer(200, WEIGHTS.tobytes()[:800], **ABOUT)[:-100]
        assert np.array_equal(read(connect, stub, slice(0, 4, 2)).reshape(-1), np.frombuffer(other[:800], "<f4"))


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"{}", b"7", b"null", b"[" * 200_000, b"\xff", b'{"models": 7}', b'{"models": [7]}', b"<html>"],
    ids=lambda content: repr(content[:14]),
)
def test_json_that_is_not_the_services_is_a_service_error(connect: Connect, content: bytes) -> None:
    paths = ("/v1/models", "/v1/models/m", "/v1/models/m/-/tensors", "/v1/models/m/-/metadata")
    answers = {path: answer(200, content, X_Model_ETag=VERSION) for path in paths}
    with Stub(answers=answers) as stub, connect(stub.url) as tap:
        with pytest.raises(ServiceError, match="is not understood"):
            tap.models()
        with pytest.raises(ServiceError, match="is not understood"):
            tap["m"]
        del stub.answers["/v1/models/m"]
        with pytest.raises(ServiceError, match="is not understood"):
            tap["m"]
        del stub.answers["/v1/models/m/-/tensors"]
        model = tap["m"]
        with pytest.raises(ServiceError, match="is not understood"):
            list(model.metadata)


def test_a_service_that_says_no_version_is_not_used(connect: Connect) -> None:
    answers = {"/v1/models/m": answer(200, b"{}")}
    with Stub(answers=answers) as stub, connect(stub.url) as tap, pytest.raises(ServiceError, match="X-Model-ETag"):
        tap["m"]


def test_a_link_that_leads_elsewhere_is_not_followed(connect: Connect) -> None:
    with Stub() as elsewhere, Stub() as stub:
        table = b'{"tensors": [], "next": null}'
        summary = b'{"id": "m", "files": [], "links": {"tensors": "%s/v1/models/m/-/tensors"}}' % elsewhere.url.encode()
        stub.answers = {"/v1/models/m": answer(200, summary, X_Model_ETag=VERSION), "/v1/models/m/-/tensors": table}
        with connect(stub.url, api_key="secret") as tap, pytest.raises(ServiceError, match="leads elsewhere"):
            tap["m"]


def test_nothing_listens(connect: Connect, waits: list[float]) -> None:
    with (
        connect(f"http://127.0.0.1:{free_port()}", retries=1) as tap,
        pytest.raises(ConnectionFailed, match="no answer from") as raised,
    ):
        tap.models()
    assert isinstance(raised.value, ConnectionError)
    assert len(waits) == 1


def test_a_service_that_says_nothing_times_out(connect: Connect, waits: list[float]) -> None:
    over = threading.Event()

    def silent(_: str) -> bytes:
        over.wait(30)
        return b""

    with Stub(silent, silent) as stub:
        with pytest.raises(ConnectionFailed, match=r"(?i)time"):
            read(connect, stub, timeout=0.3, retries=1)
        # Two requests for weights, whatever it took to open the model in that time.
        eventually(lambda: len(stub.asked) == 2)
        assert waits
        over.set()


def test_an_answer_that_fails_gives_no_partial_array(connect: Connect, waits: list[float]) -> None:
    out = np.full(WEIGHTS.shape, -1, np.float32)
    with Stub(*[lambda head: Stub.weights(head)[:1000]] + [answer(500)] * 9) as stub, connect(stub.url) as tap:
        tensor = tap["m"]["w"]
        with pytest.raises(ServiceError):
            tensor.read(out=out)
        stub.script = []
        assert np.array_equal(tensor[...], WEIGHTS)  # and nothing of it was kept
        assert np.array_equal(tensor.read(out=out), WEIGHTS)


@pytest.mark.parametrize(
    "url", ["", "host:8000", "ftp://host", "http://", "http://h:99999", "http://[::1", "http://h/?a=b", "http://h/#a"]
)
def test_a_url_of_no_service_is_refused_at_once(connect: Connect, url: str) -> None:
    with pytest.raises(ValueError, match="URL"):
        connect(url)


@pytest.mark.parametrize(
    "settings",
    [
        {"decode": "here"},
        {"max_connections": 0},
        {"part_bytes": 0},
        {"retries": -1},
        {"cache_bytes": -1},
        {"disk_bytes": 0},
        {"api_key": "a\nb"},
        {"api_key": ""},
        {"api_key": "\u00fc"},
    ],
    ids=str,
)
def test_settings_that_cannot_be_are_refused_at_once(connect: Connect, settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"decode is|at least|printable ASCII"):
        connect("http://localhost:1", **settings)


def test_a_password_in_the_url_is_sent_and_not_shown(connect: Connect) -> None:
    with Stub(answers={"/v1/models": answer(500)}) as stub:
        url = stub.url.replace("http://", "http://me:secret@")
        tap = tensortap.Client(url)
        assert "secret" not in repr(tap)
        with tap, pytest.raises(ServiceError) as raised:
            tap.models()
        assert "secret" not in f"{raised.value} {raised.value.url}"
        assert tap._base.password == "secret"


def test_a_bar_goes_to_standard_error_and_shows_names_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("rich", reason="the extra cli is not installed")
    with progress_of(True, "[bold]w\x1b]0;title\x07\udcff", 1000) as on_bytes:
        on_bytes(1000)
    output, errors = capsys.readouterr()
    assert output == ""
    assert r"[bold]w\x1b]0;title\x07\udcff" in errors
