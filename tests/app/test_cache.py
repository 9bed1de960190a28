"""The window cache against a model of it, and among threads."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from numpy.typing import NDArray

from app.cache import WindowCache
from tests.waiting import eventually

Key = tuple[str, int]
keys = st.tuples(st.sampled_from("ab"), st.integers(0, 5))


class DecodeFailed(Exception):
    pass


def window(size: int, fill: int = 0) -> NDArray[Any]:
    return np.full(size, fill, np.uint8)


def must_not_decode() -> NDArray[Any]:
    raise AssertionError("the window should have been here")


class CacheMachine(RuleBasedStateMachine):
    """The cache beside a reference of two dicts in order of use, sizes only."""

    @initialize(budget=st.sampled_from([0, 10, 50, 60]))
    def begin(self, budget: int) -> None:
        self.budget = budget
        self.cache = WindowCache(budget)
        self.once: OrderedDict[Key, int] = OrderedDict()
        self.often: OrderedDict[Key, int] = OrderedDict()
        self.content: dict[Key, int] = {}
        self.hits = self.misses = self.evictions = self.decodes = 0

    def _here(self, key: Key, scan: bool) -> bool:
        if key in self.often:
            if not scan:
                self.often.move_to_end(key)
        elif key in self.once:
            if not scan:
                self.often[key] = self.once.pop(key)
                while sum(self.often.values()) > self.budget * 4 // 5:
                    least = next(iter(self.often))
                    self.once[least] = self.often.pop(least)
        else:
            return False
        self.hits += 1
        return True

    def _add(self, key: Key, size: int) -> None:
        if size > self.budget:
            return
        while sum(self.once.values()) + sum(self.often.values()) + size > self.budget:
            (self.once or self.often).popitem(last=False)
            self.evictions += 1
        self.once[key] = size

    @rule(key=keys, size=st.integers(0, 12) | st.integers(0, 40), scan=st.booleans())
    def get(self, key: Key, size: int, scan: bool) -> None:
        here = self._here(key, scan)
        fresh = self.decodes + 1

        def decode() -> NDArray[Any]:
            self.decodes += 1
            return window(size, self.decodes % 256)

        found = self.cache.get(key, decode, scan=scan)
        assert (self.decodes == fresh) is not here
        assert not found.flags.writeable
        if here:
            assert found.size == {**self.once, **self.often}[key]
        else:
            assert found.size == size
            self.content[key] = fresh % 256
            self.misses += 1
            if not scan:
                self._add(key, size)
        if found.size and (key in self.once or key in self.often):
            assert found[0] == self.content[key]

    @rule(key=keys, scan=st.booleans())
    def get_in_vain(self, key: Key, scan: bool) -> None:
        def decode() -> NDArray[Any]:
            raise DecodeFailed

        if self._here(key, scan):
            self.cache.get(key, decode, scan=scan)
            return
        self.misses += 1
        with pytest.raises(DecodeFailed):
            self.cache.get(key, decode, scan=scan)

    @rule(key=keys, scan=st.booleans())
    def peek(self, key: Key, scan: bool) -> None:
        here = self._here(key, scan)
        found = self.cache.peek(key, scan=scan)
        assert (found is not None) is here
        assert found is None or found.size == {**self.once, **self.often}[key]

    @rule(group=st.sampled_from("abc"))
    def drop(self, group: str) -> None:
        self.cache.drop(group)
        for queue in (self.once, self.often):
            for key in [key for key in queue if key[0] == group]:
                del queue[key]

    @invariant()
    def figures_agree(self) -> None:
        figures = self.cache.figures()
        held = {**self.once, **self.often}
        assert figures.bytes == sum(held.values()) <= figures.budget == self.budget
        assert figures.windows == len(held)
        assert (figures.hits, figures.misses, figures.evictions) == (self.hits, self.misses, self.evictions)


CacheMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAgainstTheReference = CacheMachine.TestCase


def together(count: int, job: Callable[[int], Any]) -> list[Any]:
    """What `job` gives, or raises, in `count` threads that start at the same time."""
    start = threading.Barrier(count)

    def run(number: int) -> Any:
        start.wait(10)
        try:
            return job(number)
        except Exception as error:
            return error

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def test_ten_threads_decode_a_cold_window_once() -> None:
    cache = WindowCache(1000)
    decodes: list[int] = []

    def decode() -> NDArray[Any]:
        decodes.append(1)
        eventually(lambda: cache.figures().hits == 9)  # all the others wait for this one
        return window(10, 7)

    found = together(10, lambda _: cache.get(("a", 0), decode))
    assert decodes == [1]
    assert all(one is found[0] for one in found)
    assert (cache.figures().hits, cache.figures().misses, cache.figures().windows) == (9, 1, 1)


def test_an_error_reaches_all_who_wait_and_is_not_kept() -> None:
    cache = WindowCache(1000)

    def decode() -> NDArray[Any]:
        eventually(lambda: cache.figures().hits == 9)
        raise DecodeFailed

    assert all(isinstance(one, DecodeFailed) for one in together(10, lambda _: cache.get(("a", 0), decode)))
    assert cache.figures().windows == 0
    assert cache.get(("a", 0), lambda: window(10, 1))[0] == 1


def test_windows_are_read_only() -> None:
    cache = WindowCache(1000)
    for scan in (False, True):
        found = cache.get(("a", int(scan)), lambda: window(10), scan=scan)
        with pytest.raises(ValueError, match="read-only"):
            found[0] = 1


def test_a_large_scan_leaves_what_others_use() -> None:
    cache = WindowCache(100)
    for number in range(10):
        cache.get(("a", number), lambda: window(10))
    for number in range(1000):
        cache.get(("scan", number), lambda: window(10), scan=True)
    assert cache.figures().evictions == 0
    for number in range(10):
        cache.get(("a", number), must_not_decode)


def test_windows_used_once_leave_those_used_twice() -> None:
    cache = WindowCache(100)
    for _ in range(2):
        for number in range(8):
            cache.get(("a", number), lambda: window(10))
    for number in range(1000):
        cache.get(("other", number), lambda: window(10))
    for number in range(8):
        cache.get(("a", number), must_not_decode)


def test_what_protection_has_no_room_for_goes_before_newer_windows() -> None:
    cache = WindowCache(100)
    for _ in range(2):
        for number in range(9):  # 90 bytes used twice, 80 of them protected
            cache.get(("a", number), lambda: window(10))
    for number in range(2):
        cache.get(("new", number), lambda: window(10))
    assert cache.peek(("a", 0)) is None
    assert cache.peek(("new", 0)) is not None
    assert cache.peek(("a", 1)) is not None


def test_a_scan_that_others_join_is_kept_for_them() -> None:
    cache = WindowCache(100)
    began, end = threading.Event(), threading.Event()

    def decode() -> NDArray[Any]:
        began.set()
        assert end.wait(10)
        return window(10)

    with ThreadPoolExecutor(2) as pool:
        scan = pool.submit(cache.get, ("a", 0), decode, scan=True)
        assert began.wait(10)
        other = pool.submit(cache.get, ("a", 0), must_not_decode)
        eventually(lambda: cache.figures().hits == 1)
        end.set()
        assert scan.result(10) is other.result(10)
    assert cache.peek(("a", 0)) is scan.result()


def test_what_is_dropped_while_it_is_decoded_is_not_kept() -> None:
    cache = WindowCache(100)

    def decode() -> NDArray[Any]:
        cache.drop("a")
        return window(10, 3)

    assert cache.get(("a", 0), decode)[0] == 3
    assert cache.peek(("a", 0)) is None
    assert cache.get(("b", 0), decode)[0] == 3
    assert cache.peek(("b", 0)) is not None
    assert (cache.figures().windows, cache.figures().bytes) == (1, 10)


def test_a_window_larger_than_the_budget_is_given_and_not_kept() -> None:
    cache = WindowCache(100)
    cache.get(("a", 0), lambda: window(100))
    assert cache.get(("a", 1), lambda: window(101)).size == 101
    assert cache.peek(("a", 1)) is None
    assert cache.peek(("a", 0)) is not None


def test_figures_stay_consistent_among_threads() -> None:
    """Every get is a hit or a miss, no thread sees more bytes than the budget, and drops leave nothing behind."""
    cache = WindowCache(200)
    decodes: list[int] = []

    def decode() -> NDArray[Any]:
        decodes.append(1)
        return window(30)

    def work(seed: int) -> int:
        random = np.random.default_rng(seed)
        for _ in range(500):
            group, number, kind = "abc"[random.integers(3)], int(random.integers(6)), int(random.integers(20))
            if kind == 0:
                cache.drop(group)
            assert cache.get((group, number), decode, scan=kind == 1).size == 30
            figures = cache.figures()
            assert figures.bytes == 30 * figures.windows <= 200
        return 500

    assert together(8, work) == [500] * 8
    figures = cache.figures()
    assert figures.hits + figures.misses == 4000
    assert figures.misses == len(decodes)
    for group in "abc":
        cache.drop(group)
    assert (cache.figures().windows, cache.figures().bytes) == (0, 0)


class _NoMemory(OrderedDict[Any, Any]):
    """A queue of the cache that has no memory for another window."""

    def __setitem__(self, key: Any, value: Any) -> None:
        raise MemoryError


@pytest.mark.parametrize("queue", ["_probation", "_protected"])
def test_a_window_that_there_is_no_memory_to_keep_is_served_and_counted_right(queue: str) -> None:
    cache = WindowCache(1 << 20)
    for number in range(3):
        cache.get(("g", number), lambda: np.zeros(16, np.float32))
    held = getattr(cache, queue)
    setattr(cache, queue, _NoMemory())
    if queue == "_probation":
        assert cache.get(("other", 9), lambda: np.ones(16, np.float32))[0] == 1
        setattr(cache, queue, held)
    else:
        with pytest.raises(MemoryError):
            cache.peek(("g", 1))
        setattr(cache, queue, held)
        assert cache.peek(("g", 1)) is not None
    assert (cache.figures().windows, cache.figures().bytes) == (3, 3 * 64)
    cache.drop("other")
    cache.drop("g")
    assert (cache.figures().windows, cache.figures().bytes) == (0, 0)
