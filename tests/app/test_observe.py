"""Observation: a record of every request that is true, an id that is safe, and answers that are left as they are."""

import asyncio
import json
import logging
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.observe import Observe, RequestRecord, note_names, record_of
from app.wire import WIRE
from tests.app.conftest import Face, Serve
from tests.builder import base

Steps = Callable[[Scope, Send], Awaitable[None]]


def started(*headers: tuple[bytes, bytes], status: int = 200) -> Message:
    return {"type": "http.response.start", "status": status, "headers": list(headers)}


def body(data: bytes | memoryview, more: bool = False) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more}


def app_of(steps: Steps) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await steps(scope, send)

    return app


class Observed:
    """What came of one request to an application that is observed."""

    def __init__(
        self,
        steps: Steps,
        method: str = "GET",
        raw_path: bytes = b"/x",
        gone_after: int | None = None,
        **headers: bytes,
    ) -> None:
        self.records: list[RequestRecord] = []
        self.streams: list[int] = []
        self.sent: list[Message] = []
        self.error: BaseException | None = None
        self.scope: Scope = {
            "type": "http",
            "method": method,
            "path": "/x",
            "raw_path": raw_path,
            "headers": [(name.replace("_", "-").encode(), value) for name, value in headers.items()],
        }
        if gone_after is not None:  # so many messages
            self.scope["extensions"] = {WIRE: {"has_left": lambda: len(self.sent) >= gone_after}}
        self.app = Observe(app_of(steps), sinks=[self.records.append], on_stream=self.streams.append)
        try:
            asyncio.run(self._ask())
        except (Exception, asyncio.CancelledError) as error:
            self.error = error
        (self.record,) = self.records

    async def _ask(self) -> None:
        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Message) -> None:
            self.sent.append(message)

        await self.app(self.scope, receive, send)

    @property
    def answered_id(self) -> bytes:
        (found,) = [value for name, value in self.sent[0]["headers"] if name == b"x-request-id"]
        assert isinstance(found, bytes)
        return found


async def ok(scope: Scope, send: Send) -> None:
    await send(started((b"etag", b'"1"')))
    await send(body(b"four"))


def test_a_record_has_what_was_asked_and_answered() -> None:
    async def steps(scope: Scope, send: Send) -> None:
        scope["route"] = type("Route", (), {"path": "/{name}"})
        query = {"rows": "0:2", "format": "npy", "cols": ":", "api_key": "s3cret"}
        note_names(scope, {"model": b"a/b", "tensor": b"w\xff"}, query)
        await send(started(status=206))
        await send(body(b"four"))

    seen = Observed(steps, raw_path=b"/a%2Fb/w?rows=0:2", x_request_id=b"abc-1")
    record = seen.record
    assert (record.request_id, record.method, record.path, record.route) == ("abc-1", "GET", "/a%2Fb/w", "/{name}")
    assert (record.status, record.bytes_sent, record.outcome) == (206, 4, "complete")
    assert (record.model, record.tensor, record.selection) == ("a/b", "w\ufffd", "rows=0:2&cols=:")
    assert 0 < record.seconds < 60
    assert "s3cret" not in repr(record)


def test_names_of_the_query_are_noted_unless_the_path_has_them() -> None:
    async def steps(scope: Scope, send: Send) -> None:
        note_names(scope, {}, {"model": "m", "tensor": "w\udcff"})
        await ok(scope, send)

    record = Observed(steps).record
    assert (record.model, record.tensor, record.selection, record.route) == ("m", "w\ufffd", None, "unmatched")


def test_bodies_pass_as_they_are_and_headers_get_two_more() -> None:
    pieces = [memoryview(bytearray(b"one")), memoryview(b"three")]
    start = started((b"etag", b'"1"'))

    async def steps(scope: Scope, send: Send) -> None:
        await send(start)
        for piece in pieces:
            await send(body(piece, more=True))
        await send(body(b""))

    seen = Observed(steps)
    assert start == started((b"etag", b'"1"')), "the application's own message has changed"
    more = [(b"x-request-id", seen.answered_id), (b"x-content-type-options", b"nosniff")]
    assert seen.sent[0]["headers"] == [(b"etag", b'"1"'), *more]
    assert all(message["body"] is piece for message, piece in zip(seen.sent[1:], pieces, strict=False))
    assert seen.record.bytes_sent == 8
    assert seen.streams == [1, -1]


def test_an_answer_of_one_piece_is_no_stream_and_head_sends_nothing() -> None:
    seen = Observed(ok, method="HEAD")
    assert seen.streams == []
    assert (seen.record.bytes_sent, seen.record.outcome) == (0, "complete")


def test_what_ends_without_its_end_is_aborted_or_what_the_answer_says() -> None:
    async def short(scope: Scope, send: Send) -> None:
        await send(started())
        await send(body(b"12", more=True))

    async def left(scope: Scope, send: Send) -> None:
        await short(scope, send)
        record_of(scope).outcome = "client left"

    async def nothing(scope: Scope, send: Send) -> None:
        pass

    async def fails(scope: Scope, send: Send) -> None:
        await short(scope, send)
        raise RuntimeError("inside")

    async def cancelled(scope: Scope, send: Send) -> None:
        await short(scope, send)
        raise asyncio.CancelledError

    for steps, outcome, status, sent in (
        (short, "aborted", 200, 2),
        (left, "client left", 200, 2),
        (nothing, "aborted", None, 0),
        (fails, "aborted", 200, 2),
        (cancelled, "aborted", 200, 2),
    ):
        seen = Observed(steps)
        record = seen.record
        assert (record.outcome, record.status, record.bytes_sent) == (outcome, status, sent), steps
        assert seen.streams == ([1, -1] if sent else [])
        assert (seen.error is not None) == (steps in (fails, cancelled))


@pytest.mark.parametrize(("gone_after", "status", "n_bytes"), [(0, None, 0), (1, 200, 0), (2, 200, 0), (3, 200, 3)])
def test_what_is_sent_to_a_client_that_has_left_is_not_sent(gone_after: int, status: int | None, n_bytes: int) -> None:
    """The server drops it without a word."""

    async def steps(_: Scope, send: Send) -> None:
        for message in (started(), body(b"abc", more=True), body(b"de")):
            await send(message)

    record = Observed(steps, gone_after=gone_after).record
    assert (record.outcome, record.status, record.bytes_sent) == ("client left", status, n_bytes)


def test_who_leaves_with_everything_has_had_it() -> None:
    """Threads have sent the body past all this, and what is left to say is that it is over."""

    async def steps(_: Scope, send: Send) -> None:
        for message in (started(), body(b"")):
            await send(message)

    assert Observed(steps, gone_after=2).record.outcome == "complete"


def test_a_refusal_that_waits_for_the_rest_of_a_body_is_no_stream() -> None:
    async def steps(_: Scope, send: Send) -> None:
        for message in (started(status=413), body(b"{}", more=True), body(b"")):
            await send(message)

    seen = Observed(steps)
    assert seen.streams == []
    assert seen.record.outcome == "complete"


@given(st.binary(max_size=140) | st.text("az09._~:/+=@- \r\n\"'\x7f", max_size=140).map(str.encode))
def test_an_id_is_taken_if_it_is_safe_and_otherwise_made(given_id: bytes) -> None:
    seen = Observed(ok, x_request_id=given_id)
    safe = re.compile(rb"[A-Za-z0-9._~:/+=@-]{1,128}")
    assert safe.fullmatch(seen.answered_id)
    assert seen.record.request_id.encode() == seen.answered_id
    assert (seen.answered_id == given_id) == bool(safe.fullmatch(given_id))


def test_ids_that_are_made_differ() -> None:
    assert len({Observed(ok).answered_id for _ in range(20)}) == 20


def test_a_sink_that_fails_spoils_neither_the_answer_nor_the_other_sinks(caplog: pytest.LogCaptureFixture) -> None:
    records: list[RequestRecord] = []

    def broken(_: RequestRecord) -> None:
        raise OSError("disk full")

    async def scenario() -> list[Message]:
        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)

        async def receive() -> Message:
            raise AssertionError

        scope: Scope = {"type": "http", "method": "GET", "path": "/", "raw_path": None, "headers": []}
        await Observe(app_of(ok), sinks=[broken, records.append])(scope, receive, send)
        return sent

    assert len(asyncio.run(scenario())) == 2
    assert len(records) == 1
    assert "could not be kept" in caplog.text


def test_what_is_no_request_passes_by() -> None:
    async def steps(scope: Scope, send: Send) -> None:
        await send({"type": "lifespan.startup.complete"})

    async def scenario() -> Any:
        sent = []

        async def send(message: Message) -> None:
            sent.append(message)

        async def receive() -> Message:
            raise AssertionError

        await Observe(app_of(steps), sinks=[])({"type": "lifespan"}, receive, send)
        return sent

    assert asyncio.run(scenario()) == [{"type": "lifespan.startup.complete"}]


def test_a_scope_that_is_not_observed_has_a_record_to_fill() -> None:
    record_of({}).outcome = "aborted"
    note_names({"state": {}}, {}, {"model": "m"})


def test_every_answer_of_the_service_has_an_id(demo: Face) -> None:
    for target in ("/healthz", "/v1/models", "/nothing", "/v1/models/none", "/v1/data?model=demo&model=demo"):
        assert demo.get(target, headers={"X-Request-ID": "me"}).headers["x-request-id"] == "me"
    assert demo.get("/healthz", "PUT", {"X-Request-ID": "me"}).headers["x-request-id"] == "me"


def test_a_fault_of_ours_is_answered_with_its_id_and_recorded_once(
    demo: Face, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails() -> bool:
        raise RuntimeError("a fault")

    monkeypatch.setattr(demo.app.state.service.catalogue.volume, "readable", fails)
    sent: list[Message] = []

    async def scenario() -> None:
        async def receive() -> Message:
            raise AssertionError

        async def send(message: Message) -> None:
            sent.append(message)

        scope: Scope = {
            "type": "http",
            "method": "GET",
            "path": "/readyz",
            "raw_path": b"/readyz",
            "query_string": b"",
            "root_path": "",
            "scheme": "http",
            "headers": [(b"x-request-id", b"me")],
        }
        with pytest.raises(RuntimeError, match="a fault"):  # the server logs it
            await demo.app(scope, receive, send)

    caplog.set_level("INFO", "tensortap.access")
    demo.run(scenario())
    assert sent[0]["status"] == 500
    assert (b"x-request-id", b"me") in sent[0]["headers"]
    assert json.loads(sent[1]["body"])["type"] == "/problems/internal-error"
    (line,) = [record.getMessage() for record in caplog.records if record.name == "tensortap.access"]
    assert "request_id=me" in line
    assert "status=500 " in line


def test_a_posted_selection_is_told_by_its_length(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    face = serve(base())
    with caplog.at_level(logging.INFO, "tensortap.access"):
        face.post("/v1/models/m/-/data/w", {"rows": [0, 1, "0:1"], "cols": "0:2"})
    assert 'selection="rows=3 rows&cols=0:2"' in caplog.text


def test_a_client_that_leaves_before_its_request_is_whole_is_no_error_and_gets_no_status() -> None:
    records: list[RequestRecord] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert (await receive())["type"] == "http.disconnect"
        await send(started(status=500))  # as an error is answered; no server sends it
        await send(body(b"an answer"))
        raise ClientDisconnect

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(_: Message) -> None: ...

    scope: Scope = {"type": "http", "method": "POST", "path": "/x", "raw_path": b"/x", "headers": []}
    asyncio.run(Observe(app, sinks=[records.append])(scope, receive, send))
    assert [(one.outcome, one.status, one.bytes_sent) for one in records] == [("client left", None, 0)]
