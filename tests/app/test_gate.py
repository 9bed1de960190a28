"""The gate of streams: so many at a time, a short queue, a refusal; and what is small passes by."""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from app.errors import Unavailable
from app.gate import RequestGate, StreamGate
from tests.app.conftest import Serve, slug
from tests.app.test_streaming import ask, write_f32
from tests.builder import base
from tests.server import Server
from tests.waiting import eventually

Test = Callable[[], Coroutine[Any, Any, None]]


def run(work: Test) -> None:
    asyncio.run(asyncio.wait_for(work(), 10))


def test_so_many_come_in_and_the_next_waits_for_a_place() -> None:
    async def work() -> None:
        gate = StreamGate(2, 5, 5)
        order: list[int] = []
        release = asyncio.Event()

        async def stream(number: int) -> None:
            await gate.enter()
            order.append(number)
            await release.wait()
            gate.leave()

        tasks = [asyncio.create_task(stream(number)) for number in range(5)]
        await asyncio.sleep(0.05)
        assert (order, gate.open) == ([0, 1], 2)
        release.set()
        await asyncio.gather(*tasks)
        assert (order, gate.open) == ([0, 1, 2, 3, 4], 0)

    run(work)


@pytest.mark.case(13)
def test_more_than_the_queue_is_refused_at_once_and_the_queue_after_a_while() -> None:
    async def work() -> None:
        gate = StreamGate(1, 1, 0.1)
        await gate.enter()
        waiting = asyncio.create_task(gate.enter())
        await asyncio.sleep(0.01)
        with pytest.raises(Unavailable) as refused:
            await gate.enter()
        assert refused.value.slug == "overloaded"
        assert refused.value.headers["Retry-After"]
        with pytest.raises(Unavailable):
            await waiting
        gate.leave()
        assert gate.open == 0
        await gate.enter()
        assert gate.open == 1

    run(work)


def test_one_who_gives_up_waiting_takes_no_place() -> None:
    async def work() -> None:
        gate = StreamGate(1, 3, 5)
        await gate.enter()
        waiting = [asyncio.create_task(gate.enter()) for _ in range(3)]
        await asyncio.sleep(0.01)
        waiting[0].cancel()
        await asyncio.sleep(0.01)
        gate.leave()
        await waiting[1]
        # Given its place and cancelled in the same moment: the place goes on to the next.
        gate.leave()
        waiting[2].cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert gate.open == 0

    run(work)


@pytest.mark.case(13)
def test_an_overloaded_service_refuses_streams_and_serves_the_small(tmp_path: Path) -> None:
    write_f32(tmp_path / "m.gguf", 64, 1.0)
    path = "/v1/models/m/-/data/w"
    with Server(tmp_path, max_streams=1, stream_queue=0) as server:
        with ask(server, path) as connection:
            connection.recv(1000)
            refused = server.client.get(path)
            assert refused.status_code == 503
            assert refused.json()["type"] == "/problems/overloaded"
            assert int(refused.headers["retry-after"]) >= 1
            assert server.client.get(f"{path}?format=json&rows=0:2000").status_code == 503
            assert server.client.get(f"{path}?rows=0").status_code == 200
            assert server.client.head(path).status_code == 200
            assert server.client.get("/readyz").status_code == 200
        answer = eventually(
            lambda: now if (now := server.client.get(f"{path}?rows=0:1000")).status_code == 200 else None
        )
        assert len(answer.content) == 1000 * 4096 * 4


@pytest.mark.case(13)
def test_a_client_that_leaves_the_queue_keeps_no_place_in_it(tmp_path: Path) -> None:
    write_f32(tmp_path / "m.gguf", 64, 1.0)
    path = "/v1/models/m/-/data/w"

    def answer(connection: socket.socket, seconds: float) -> bytes:
        """The beginning of an answer; nothing while the request waits."""
        connection.settimeout(seconds)
        try:
            return connection.recv(1000)
        except TimeoutError:
            return b""

    with (
        Server(tmp_path, max_streams=1, stream_queue=1, queue_seconds=60) as server,
        ask(server, path) as inside,
    ):
        assert answer(inside, 20).startswith(b"HTTP/1.1 200")

        def waits() -> bool:
            with ask(server, path) as one:
                return answer(one, 0.3) == b""

        assert waits()
        eventually(waits)  # the place in the queue is not kept for the one who has left


def test_an_answer_over_its_limit_is_refused_and_ranges_of_it_are_not(serve: Serve) -> None:
    face = serve(base(), answer_limit=16)
    refused = face.get("/v1/models/m/-/data/w")
    assert slug(refused) == (413, "response-too-large")
    assert (refused.json["size"], refused.json["limit"]) == (32, 16)
    assert face.get("/v1/models/m/-/data/w?rows=0").status == 200
    assert face.get("/v1/models/m/-/data/w", headers={"Range": "bytes=0-15"}).status == 206
    assert slug(face.get("/v1/models/m/-/safetensors")) == (413, "response-too-large")


async def never() -> Message:
    raise AssertionError("nothing is received")


async def nothing(_: Message) -> None:
    raise AssertionError("nothing is sent")


def test_requests_begin_a_few_in_each_turn_of_the_loop_in_order_and_probes_at_once() -> None:
    async def work() -> None:
        begun: list[str] = []

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            begun.append(scope["path"])

        gate = RequestGate(app)
        paths = [f"/{number}" for number in range(100)]
        tasks = [
            asyncio.create_task(gate({"type": "http", "path": path}, never, nothing)) for path in [*paths, "/healthz"]
        ]
        await asyncio.sleep(0)  # one turn
        few = len(begun) - 1
        assert 1 <= few < 50
        assert begun == [*paths[:few], "/healthz"]
        tasks[few].cancel()  # one that waits, and takes no place
        await asyncio.wait(tasks)
        assert begun == [*paths[:few], "/healthz", *paths[few + 1 :]]
        begun.clear()
        await gate({"type": "http", "path": "/again"}, never, nothing)
        assert begun == ["/again"]

    run(work)
