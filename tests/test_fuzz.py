"""The fuzzer's targets, without the fuzzer: all that it ever found holds, and what the targets rely on does."""

import random
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from fuzz import _limits, _mutation
from fuzz._campaign import CORPUS, figures
from fuzz._limits import Costly, within_limits
from fuzz._reading import Refused, take_apart
from fuzz._requests import header_lines, visible
from fuzz._targets import TARGETS, load
from fuzz._tensors import expected_tensors
from fuzz._wire import Request, read_answers, read_requests
from fuzz.problem import documented

README = (CORPUS.parent / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("target", TARGETS)
def test_all_that_was_found_holds(target: str) -> None:
    loaded = load(target)
    kept = sorted((CORPUS / target).iterdir())
    assert kept
    for path in kept:
        try:
            loaded.run(path.read_bytes())
        except Exception as error:
            error.add_note(f"{path}: python -m fuzz {target} --repeat {path}")
            raise
    for seed in loaded.seeds():
        loaded.run(seed)


def test_the_corpus_is_small_and_of_the_targets_alone() -> None:
    files = [path for path in CORPUS.rglob("*") if path.is_file()]
    assert {path.parent.name for path in files} == set(TARGETS)
    assert len(files) <= 1000
    assert sum(path.stat().st_size for path in files) < 1 << 20
    assert all(path.stat().st_size <= _limits.MOST_BYTES for path in files)


@pytest.mark.parametrize("target", TARGETS)
def test_the_readme_has_every_target(target: str) -> None:
    assert f"\n| `{target}` |" in README


def broken(data: bytes, at: int) -> bytes:
    """Some bytes with one of them changed."""
    return data[: at % len(data)] + b"\xff" + data[at % len(data) + 1 :] if data else b"\xff"


def test_mutations_follow_from_their_seed_and_keep_to_the_size() -> None:
    seeds = _mutation.seeds()
    for number in range(300):
        one, two = seeds[number % len(seeds)], seeds[number * 7 % len(seeds)]
        made = _mutation.mutated(one, 3000, number, broken)
        assert made == _mutation.mutated(one, 3000, number, broken)
        assert len(made) <= 3000
        made = _mutation.spliced(one, two, 3000, number)
        assert made == _mutation.spliced(one, two, 3000, number)
        assert len(made) <= 3000


def test_random_files_are_by_the_rules_and_are_written_as_they_are_read() -> None:
    chance = random.Random(3)
    readable = 0
    for _ in range(200):
        data = _mutation.random_file(chance).write()
        file = take_apart(data, whole=True)
        assert file.write() == data
        faults = [tensor.fault for tensor in expected_tensors(file, data)]
        assert set(faults) <= {None, "unsupported-type"}
        readable += faults.count(None)
    assert readable > 200


def test_most_mutations_are_still_read_as_files() -> None:
    seeds, taken = _mutation.seeds(), 0
    for number in range(400):
        with suppress(Refused):
            take_apart(_mutation.mutated(seeds[number % len(seeds)], 1 << 16, number, broken), whole=True)
            taken += 1
    assert taken > 150


def test_parts_of_a_set_are_what_was_put_in() -> None:
    for parts in ([b"GGUF"], [b""], [b"one", b"two"], [b"", b"", b"three"]):
        assert _mutation.parts_of(_mutation.input_of(parts)) == parts


def spends(seconds: float, size: int) -> Callable[[bytes], None]:
    """A target that takes time or memory."""

    def run(_: bytes) -> None:
        began = time.process_time()
        bytearray(size)[::4096] = b"x" * len(range(0, size, 4096))
        while time.process_time() - began < seconds:
            pass

    return run


def test_what_costs_too_much_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    within_limits(spends(0, 1 << 20), b"")
    with pytest.raises(Costly, match="MiB"):
        within_limits(spends(0, 80 << 20), b"")
    within_limits(spends(0, 1 << 20), b"")
    monkeypatch.setattr(_limits, "_MOST_SECONDS", 0.01)
    with pytest.raises(Costly, match="bytes take"):
        within_limits(spends(0.02, 0), b"")


def test_what_costs_too_much_once_does_not_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_limits, "_MOST_SECONDS", 0.5)
    sizes = iter((80 << 20, 0))
    within_limits(lambda data: spends(0, next(sizes))(data), b"")


OUTPUT = """\
#94	INITED cov: 374 ft: 1200 corp: 60/60Kb exec/s: 0 rss: 60Mb
#300	NEW    cov: 380 ft: 1220 corp: 61/61Kb lim: 65536 exec/s: 0 rss: 60Mb L: 23/99 MS: 1 Custom-
#512	pulse  cov: 385 ft: 1230 corp: 62/61Kb lim: 65536 exec/s: 500 rss: 61Mb
#11958	DONE   cov: 489 ft: 1400 corp: 90/70Kb lim: 65536 exec/s: 552 rss: 61Mb
Done 11958 runs in 21 second(s)
stat::number_of_executed_units: 11958
stat::average_exec_per_sec:     569
stat::new_units_added:          637
stat::slowest_unit_time_sec:    0
stat::peak_rss_mb:              61
"""


def test_the_fuzzers_output_is_read_as_figures() -> None:
    read = figures("header", OUTPUT)
    assert (read.coverage_at_start, read.coverage_at_end, read.inputs, read.new_paths) == (374, 489, 11958, 637)
    assert figures("header", "Traceback …").inputs == 0


GET = b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n"
POST = b"POST /b HTTP/1.1\r\n%s\r\n\r\n"


@pytest.mark.parametrize(
    ("data", "bodies", "end"),
    [
        (b"", [], "clean"),
        (GET + GET, [b"", b""], "clean"),
        (GET[:-1], [], "cut"),
        (POST % b"Content-Length: 2" + b"ab" + GET, [b"ab", b""], "clean"),
        (POST % b"Content-Length: 2" + b"a", [], "cut"),
        (POST % b"Transfer-Encoding: chunked" + b"2;x\r\nab\r\n0\r\nA: b\r\n\r\n" + GET, [b"ab", b""], "clean"),
        (POST % b"Transfer-Encoding: chunked" + b"2\r\nabc0\r\n\r\n", [], "refused"),
        (POST % b"Transfer-Encoding: chunked\r\nContent-Length: 5" + b"0\r\n\r\n", [], "refused"),
        (POST % b"Content-Length: 2\r\nContent-Length: 2" + b"ab", [], "refused"),
        (POST % b"Content-Length: +2" + b"ab", [], "refused"),
        (POST % b"Content-Length : 2" + b"ab", [], "refused"),
        (POST % b"A: b\r\n folded" + GET, [], "refused"),
        (GET.replace(b"\r\n", b"\n"), [], "refused"),
        (GET.replace(b"1.1", b"1.0") + GET, [b""], "last"),
        (GET.replace(b"Host: a", b"Connection: x, Close") + GET, [b""], "last"),
    ],
)
def test_the_strict_reading_of_requests(data: bytes, bodies: list[bytes], end: str) -> None:
    reading = read_requests(data)
    assert [request.body for request in reading.requests] == bodies
    assert reading.end == end


def test_requests_have_their_method_and_target() -> None:
    assert read_requests(b"\r\n" + GET).requests == [Request(b"GET", b"/a", b"")]


def test_answers_are_read_from_end_to_end() -> None:
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"
    going_on = b"HTTP/1.1 100 Continue\r\n\r\n"
    assert read_answers(answer + going_on + answer + b"ok", [b"HEAD", b"POST"]) == [200, 200]
    with pytest.raises(AssertionError):
        read_answers(answer + b"o", [b"GET"])
    with pytest.raises(AssertionError):
        read_answers(answer + b"okHTTP", [b"GET"])


def test_inputs_become_what_a_server_lets_through() -> None:
    assert visible(b"a b\xff#?") == b"/a%20b%FF%23?"
    lines = b"A: b \nb:\xff\nno colon\nC d: e\nf: g\0\nContent-Length: -1\ncontent-length: 5"
    assert header_lines(lines) == [(b"a", b"b"), (b"b", b"\xff"), (b"content-length", b"5")]


def test_the_documented_problems_are_read_from_the_docs() -> None:
    assert {(404, "no-such-tensor"), (404, "no-such-key"), (503, "overloaded"), (413, "body-too-large")} <= documented()


def test_no_target_needs_the_fuzzer() -> None:
    sources = [path for path in CORPUS.parent.glob("*.py") if "import atheris" in path.read_text(encoding="utf-8")]
    assert [path.name for path in sources] == ["_engine.py"]
