"""Threads that are all there from the start: work in order, a queue with an end, and an end that waits for nothing."""

import asyncio
import gc
import threading
from concurrent.futures import CancelledError

import pytest

from app.errors import Unavailable
from app.threads import NoThreads, Threads


def named(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(name)]


def test_all_threads_are_there_before_there_is_work() -> None:
    threads = Threads(3, "there")
    assert [thread.name for thread in named("there")] == ["there_0", "there_1", "there_2"]
    assert threads.submit(lambda: 5).result() == 5
    assert threads.close(10)
    assert not named("there")


def test_errors_are_the_work_s_own_and_end_no_thread() -> None:
    threads = Threads(1, "errors")

    def fail() -> None:
        raise KeyError("x")

    for _ in range(3):
        with pytest.raises(KeyError):
            threads.submit(fail).result()
    assert threads.submit(lambda: 5).result() == 5
    threads.close(10)


def test_work_that_waits_is_counted_cancelled_and_refused_beyond_the_most() -> None:
    threads = Threads(1, "waits", most_waiting=2)
    go, begun = threading.Event(), threading.Event()

    def run() -> bool:
        begun.set()
        return go.wait(30)

    running = threads.submit(run)
    assert begun.wait(10)
    done: list[int] = []
    first, second = threads.submit(lambda: done.append(1)), threads.submit(lambda: done.append(2))
    assert threads.waiting == 2
    with pytest.raises(Unavailable) as refused:
        threads.submit(lambda: done.append(3))
    assert (refused.value.slug, refused.value.fields) == ("overloaded", {"limit": 2})
    assert first.cancel()
    go.set()
    assert running.result()
    second.result()
    assert done == [2]
    threads.close(10)


def test_closing_cancels_what_waits_and_does_not_wait_for_what_hangs() -> None:
    threads = Threads(1, "closing")
    go, begun = threading.Event(), threading.Event()

    def hang() -> bool:
        begun.set()
        return go.wait(30)

    hanging = threads.submit(hang)
    waiting = threads.submit(lambda: None)
    assert begun.wait(10)
    assert not threads.close(0)
    with pytest.raises(CancelledError):
        waiting.result()
    with pytest.raises(Unavailable):
        threads.submit(lambda: None)
    go.set()
    assert hanging.result()
    assert threads.close(10)


def test_a_start_that_fails_leaves_no_thread_and_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    start, left = threading.Thread.start, [2]

    def limited(thread: threading.Thread) -> None:
        if not left[0]:
            raise RuntimeError("can't start new thread")
        left[0] -= 1
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    with pytest.raises(NoThreads, match=r"thread 3 of 4 for 'few' cannot be started.*Raise the limit"):
        Threads(4, "few")
    for thread in named("few"):
        thread.join(10)
    assert not named("few")


def test_threads_that_are_forgotten_end() -> None:
    threads = Threads(2, "forgotten")
    assert threads.submit(lambda: 1).result() == 1
    running = named("forgotten")
    del threads
    gc.collect()
    for thread in running:
        thread.join(10)
    assert not named("forgotten")


def test_the_event_loop_waits_for_work_and_one_who_gives_up_undoes_it() -> None:
    threads = Threads(1, "loop")
    go = threading.Event()
    done: list[int] = []

    async def ask() -> None:
        assert await threads.run(divmod, 7, 2) == (3, 1)
        hanging = asyncio.create_task(threads.run(go.wait))
        given_up = asyncio.create_task(threads.run(done.append, 1))
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.sleep(0)
        go.set()
        await hanging

    asyncio.run(ask())
    threads.close(10)
    assert done == []
