"""Clocks that jump, and times of files that no clock ever shows: nothing depends on them but what says the time."""

import os
import re

import pytest

from tests.faults.server import FaultyServer, steady, values

DATE = re.compile(r"(Mon|Tue|Wed|Thu|Fri|Sat|Sun), \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT")
LINE = re.compile(r"-?\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z [A-Z]+ [a-z.]+: ")
W = "/v1/models/m/-/data/w"


@pytest.mark.parametrize("clock", [{"shift": -3600}, {"shift": 366 * 86400}, {"at": -86400.5}, {"at": 0}, {"at": 8e9}])
def test_a_clock_that_jumps(server: FaultyServer, clock: dict[str, float]) -> None:
    before = server.get(W)
    with steady(server):
        server.rules({"call": ["time", "time_ns"], **clock})
        for _ in range(3):
            reply = server.get(W)
            assert reply.body == values(0)
            assert reply.headers["etag"] == before.headers["etag"]
            assert DATE.fullmatch(reply.headers["date"])
            assert server.get(W, If_None_Match=before.headers["etag"]).status == 304
            assert server.get("/v1/models").status == 200
            assert server.get("/metrics").status == 200
        os.utime(server.root / "m.gguf")  # a new state is a new one, whatever the clock says
        again = server.get(W)
        assert again.body == values(0)
        assert again.headers["etag"] != before.headers["etag"]
        assert all(LINE.match(line) for line in server.log), server.log
        server.rules()
    assert server.get(W).headers["etag"] == again.headers["etag"]


@pytest.mark.parametrize("seconds", [0, 1, -1, -86400 * 365, 4_102_444_800, 7_258_118_400, 9_000_000_000])
def test_a_file_of_any_time(server: FaultyServer, seconds: int) -> None:
    os.utime(server.root / "m.gguf", (seconds, seconds))
    reply = server.get(W)
    assert reply.body == values(0)
    assert DATE.fullmatch(reply.headers["last-modified"])
    assert server.get(W, If_Modified_Since=reply.headers["last-modified"]).status == 304
    assert server.get(W, If_Unmodified_Since=reply.headers["last-modified"]).body == values(0)
    assert server.get("/v1/models/m").status == server.get("/v1/models").status == 200
    os.utime(server.root / "m.gguf")
