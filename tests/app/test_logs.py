"""Logs: one line a request, in text and in JSON, true, whole whatever is asked, and without secrets."""

import json
import logging
import logging.config
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.logs import LogFormat, _Access, log_config, log_request
from app.observe import RequestRecord
from decoders import GGMLType
from tests import builder
from tests.app.conftest import Wire
from tests.app.test_streaming import MIB, ask, read_answer, write_f32
from tests.server import Server

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
LINE = re.compile(rf"{TIME} (INFO|WARNING|ERROR) [\w.]+: [ -~]+\n")
EVIL = "w\r\nERROR forged: line\x1b[31m\u202e\x85"


def formatted(log_format: LogFormat, record: logging.LogRecord) -> str:
    config = log_config(log_format)["formatters"]["lines"]
    formatter: logging.Formatter = config["()"]()
    return formatter.format(record)


def log_record(message: object, *arguments: object, **extra: Any) -> logging.LogRecord:
    return logging.LogRecord("tensortap", logging.ERROR, "f.py", 1, message, arguments, extra.get("exc_info"))


def access_record(record: RequestRecord, caplog: pytest.LogCaptureFixture) -> logging.LogRecord:
    caplog.clear()
    with caplog.at_level(logging.INFO, "tensortap.access"):
        log_request(record)
    (found,) = caplog.records
    return found


def raised(message: str) -> Any:
    try:
        raise ValueError(message)
    except ValueError:
        return sys.exc_info()


def lines_about(server: Server, text: str, count: int = 1) -> list[str]:
    """The access lines that have a text, once there are so many; a line may come a little after its answer."""
    deadline = time.monotonic() + 10
    while True:
        found = [line for line in server.log if "tensortap.access" in line and text in line]
        if len(found) >= count or time.monotonic() > deadline:
            assert len(found) == count, (text, "".join(server.log[-20:]))
            return found
        time.sleep(0.02)


def entry(server: Server, request_id: str) -> dict[str, Any]:
    (line,) = lines_about(server, f'"{request_id}"')
    found: dict[str, Any] = json.loads(line)
    return found


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("volume")
    data = builder.floats(*range(8))
    names = ("w", EVIL, "n" * 5000)
    tensors = [(name, [4, 2], GGMLType.F32, data) for name in names]
    (folder / "m.gguf").write_bytes(builder.build(tensors))
    return folder


@pytest.fixture(scope="module")
def server(root: Path) -> Iterator[Server]:
    with Server(root, log_format="json", cache_bytes=0) as running:
        yield running


@pytest.fixture(scope="module")
def text_server(root: Path) -> Iterator[Server]:
    with Server(root) as running:
        yield running


def test_a_request_is_one_json_line_of_known_members(server: Server) -> None:
    answer = server.client.get("/v1/models/m/-/data/w?rows=0:1&cols=:3", headers={"X-Request-ID": "one"})
    line = entry(server, answer.headers["x-request-id"])
    assert re.fullmatch(TIME, line.pop("time"))
    assert 0 < line.pop("seconds") < 30
    assert line == {
        "level": "INFO",
        "logger": "tensortap.access",
        "message": "request",
        "request_id": "one",
        "method": "GET",
        "path": "/v1/models/m/-/data/w",
        "route": "/v1/models/{model}/-/data/{tensor}",
        "status": 200,
        "bytes_sent": 12,
        "outcome": "complete",
        "model": "m",
        "tensor": "w",
        "selection": "rows=0:1&cols=:3",
    }


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("/v1/data?model=m&tensor=w&slice=1", ("/v1/data", 200, 16, "m", "w", "slice=1")),
        ("/v1/models/m", ("/v1/models/{model}", 200, None, "m", None, None)),
        ("/v1/models/m/-/data/none", ("/v1/models/{model}/-/data/{tensor}", 404, None, "m", "none", None)),
        ("/v1/models/m/-/data/w?rows=9", ("/v1/models/{model}/-/data/{tensor}", 400, None, "m", "w", "rows=9")),
        ("/v1/models/m/-/data/w?bad=9", ("/v1/models/{model}/-/data/{tensor}", 400, None, "m", "w", None)),
        ("/v1/data?model=m&model=m", ("unmatched", 400, None, None, None, None)),
        ("/openapi.json", ("/openapi.json", 200, None, None, None, None)),
        ("/nothing", ("unmatched", 404, None, None, None, None)),
    ],
)
def test_lines_name_route_status_and_what_was_asked(
    server: Server, target: str, expected: tuple[str, int, int | None, str | None, str | None, str | None]
) -> None:
    answer = server.client.get(target)
    line = entry(server, answer.headers["x-request-id"])
    route, status, size, model, tensor, selection = expected
    assert (line["route"], line["status"]) == (route, status)
    assert line["bytes_sent"] == len(answer.content) == (len(answer.content) if size is None else size)
    assert [line.get(name) for name in ("model", "tensor", "selection")] == [model, tensor, selection]
    assert line["outcome"] == "complete"


def test_head_is_logged_without_bytes(server: Server) -> None:
    answer = server.client.head("/v1/models/m/-/data/w")
    line = entry(server, answer.headers["x-request-id"])
    assert (line["method"], line["status"], line["bytes_sent"], line["outcome"]) == ("HEAD", 200, 0, "complete")


def test_a_client_that_leaves_and_an_answer_that_fails_are_told_apart(tmp_path: Path) -> None:
    write_f32(tmp_path / "m.gguf", 64, 1.0)
    path = "/v1/models/m/-/data/w"
    with Server(tmp_path, log_format="json", cache_bytes=0) as server:
        with ask(server, path) as connection:
            connection.recv(1000)
        left = json.loads(lines_about(server, path)[0])
        assert (left["status"], left["outcome"]) == (200, "client left")
        with ask(server, path) as connection:
            start = connection.recv(1000)
            os.truncate(tmp_path / "m.gguf", 8 * MIB)
            _, body = read_answer(connection, start)
        aborted = json.loads(lines_about(server, path, 2)[1])
        assert (aborted["status"], aborted["outcome"]) == (200, "aborted")
        assert aborted["bytes_sent"] >= len(body)
        assert aborted["bytes_sent"] < 64 * MIB
        why = [json.loads(line) for line in server.log if '"ERROR"' in line]
        assert [line["message"].startswith("aborted an answer of model") for line in why] == [True]


def test_every_line_of_a_json_log_is_an_object(root: Path) -> None:
    with Server(root, log_format="json") as server:
        server.client.get("/v1/models")
    lines = [json.loads(line) for line in server.log]
    assert all({"time", "level", "logger", "message"} <= set(line) for line in lines)
    assert any("startup complete" in line["message"] for line in lines)


HOSTILE = (
    b"/v1/models/m/-/data/" + b"".join(b"%%%02X" % byte for byte in EVIL.encode()),
    b"/v1/data?model=m%0d%0aERROR&tensor=%00%1b%5b31m%ff&rows=%0aERROR",
    b'/v1/models/"%22=x"/-/data/%E2%80%AEw',
    b"/v1/models/m/-/data/" + b"n" * 5000,
    b"/" + b"%0a" * 3000,
)


@pytest.mark.case(71)
@pytest.mark.parametrize("target", HOSTILE, ids=lambda target: target[:24].decode())
def test_hostile_names_and_ids_leave_one_whole_line(server: Server, text_server: Server, target: bytes) -> None:
    for one in (server, text_server):
        with Wire(one.port) as wire:
            answer = wire.ask(target, headers=b'X-Request-ID: a"b\xff outcome=forged\r\n')
        request_id = answer.headers["x-request-id"]
        assert re.fullmatch("[0-9a-f]{32}", request_id)
        (line,) = lines_about(one, request_id)
        assert len(line) < 4096
        assert re.fullmatch(r"[ -~]+\n", line)
        if one is server:
            assert json.loads(line)["outcome"] == "complete"
        else:
            assert LINE.fullmatch(line)
            assert line.count(" outcome=") == 1
    assert all(LINE.fullmatch(line) for line in text_server.log)


def test_the_name_in_a_json_line_is_the_name(server: Server) -> None:
    answer = server.client.get("/v1/data", params={"model": "m", "tensor": EVIL})
    assert answer.status_code == 200
    assert entry(server, answer.headers["x-request-id"])["tensor"] == EVIL


@pytest.mark.parametrize("which", ["server", "text_server"])
def test_secrets_are_not_logged(which: str, request: pytest.FixtureRequest) -> None:
    running: Server = request.getfixturevalue(which)
    headers = {"Authorization": "Bearer s3cret", "X-API-Key": "s3cret", "Cookie": "s3cret", "X-Request-ID": which}
    for target in ("/v1/models?api_key=s3cret", "/v1/data?model=m&tensor=w&key=s3cret", "/nothing?token=s3cret"):
        running.client.get(target, headers=headers)
    lines_about(running, which, 3)
    assert "s3cret" not in "".join(running.log)


def test_a_text_line_is_readable_and_can_be_taken_apart(text_server: Server) -> None:
    answer = text_server.client.get("/v1/data", params={"model": "m", "tensor": EVIL, "rows": "0:1"})
    (line,) = lines_about(text_server, answer.headers["x-request-id"])
    head, _, rest = line.partition(": request ")
    assert re.fullmatch(rf"{TIME} INFO tensortap\.access", head)
    pairs = dict(re.findall(r'(\w+)=("(?:[^"\\]|\\.)*"|\S+)', rest))
    assert json.loads(pairs["tensor"]) == EVIL
    assert pairs["status"] == "200"
    assert json.loads(pairs["selection"]) == "rows=0:1"
    assert list(pairs)[:4] == ["request_id", "method", "path", "route"]


def test_the_lines_of_a_traceback_cannot_pass_for_others() -> None:
    forged = "2026-01-01T00:00:00.000Z INFO tensortap: forged"
    lines = formatted("text", log_record("failed\n%s", EVIL, exc_info=raised(f"\n{forged}\x1b"))).split("\n")
    assert re.match(rf"{TIME} ERROR tensortap: failed\\nw\\r\\nERROR forged", lines[0])
    assert all(line.startswith("    ") and line.isprintable() for line in lines[1:])
    assert any(forged in line for line in lines)


def test_a_json_line_of_an_error_has_its_traceback() -> None:
    line = json.loads(formatted("json", log_record("failed: %s", "\udcff", exc_info=raised("why"))))
    assert line["message"] == "failed: \udcff"
    assert line["exception"].startswith("Traceback (most recent call last):")
    assert line["exception"].endswith("ValueError: why")


@given(st.text(st.characters(codec=None)))
def test_any_message_is_one_line_in_both_forms(message: str) -> None:
    record = log_record("%s", message)
    as_json, as_text = formatted("json", record), formatted("text", record)
    # Compared in UTF-16, in which two surrogates that meet are one character.
    read = json.loads(as_json)["message"].encode("utf-16", "surrogatepass")
    assert read == message.encode("utf-16", "surrogatepass")
    assert as_json.isascii()
    assert as_json.isprintable()
    assert as_text.isprintable()


def test_long_values_are_cut_so_that_a_line_is_one_write(caplog: pytest.LogCaptureFixture) -> None:
    long = RequestRecord("r" * 128, "GET", '"' * 9999, "/v1", 200, 1, "complete", 1.0, *("\U0001f600" * 999,) * 3)
    found = access_record(long, caplog)
    for log_format in ("text", "json"):
        line = formatted("json" if log_format == "json" else "text", found)
        assert len(line) < 4096
    assert json.loads(formatted("json", found))["model"] == "\U0001f600" * 79 + "…"


words = st.text(st.sampled_from('ab/{}%=" \\é\n'), max_size=90) | st.sampled_from(["m", "w", "rows=1:2", "x" * 81])


@given(
    st.builds(
        RequestRecord,
        request_id=words,
        method=words,
        path=words | st.just("/" + "p" * 500),
        route=words,
        status=st.none() | st.just(200),
        outcome=st.sampled_from([None, "complete", "client left"]),
        seconds=st.sampled_from([0.0, 1e-7, 12.3456789]),
        model=st.none() | words,
        tensor=st.none() | words,
        selection=st.none() | words,
    )
)
def test_the_text_of_a_request_is_its_fields_in_order(record: RequestRecord) -> None:
    message = _Access(record)
    shown = {name: f"{value:.6f}" if name == "seconds" else str(value) for name, value in message.fields.items()}
    pairs = re.findall(r'(\w+)=("(?:[^"\\]|\\.)*"|\S+)', str(message).removeprefix("request "))
    assert {name: json.loads(text) if text[0] == '"' else text for name, text in pairs} == shown
    assert [name for name, _ in pairs] == list(shown)


def test_what_is_not_known_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    found = access_record(RequestRecord("r", "GET", "/x", outcome="client left"), caplog)
    line = json.loads(formatted("json", found))
    assert not {"status", "model", "tensor", "selection"} & set(line)
    assert found.getMessage() == (
        'request request_id=r method=GET path=/x route=unmatched bytes_sent=0 outcome="client left" seconds=0.000000'
    )


def test_records_of_requests_are_not_made_when_nobody_wants_them(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "tensortap.access"):
        log_request(RequestRecord())
    assert caplog.records == []


def test_the_configuration_is_valid_and_has_the_remark_of_the_server_dropped(
    capsys: pytest.CaptureFixture[str],
) -> None:
    loggers = [logging.getLogger(name) for name in ("uvicorn", "tensortap", None)]
    before = [(logger, [*logger.handlers], logger.level) for logger in loggers]
    try:
        logging.config.dictConfig(log_config("text"))
        logging.getLogger("uvicorn.error").error("ASGI callable returned without completing response.")
        logging.getLogger("tensortap.access").info("one")
        logging.getLogger("asyncio").warning("two")
        logging.getLogger("asyncio").info("three")
    finally:
        for logger, handlers, level in before:
            logger.handlers[:] = handlers
            logger.setLevel(level)
            logger.propagate = True
    shown = capsys.readouterr()
    assert shown.out == ""
    assert [line.partition(": ")[2] for line in shown.err.splitlines()] == ["one", "two"]
