"""The parts of the benchmarks that decide whether their figures can be believed; nothing here is timed."""

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import combinations, count
from pathlib import Path
from random import Random

import numpy as np
import pytest
from click.testing import CliRunner
from fastapi import FastAPI

from app.gguf import open_model
from app.server import create_app
from app.settings import Settings
from bench import _bare
from bench._blocks import random_blocks
from bench._files import decode_file, write_holes, write_model
from bench._peers import ggml_decoder, gguf_decoder
from bench._policies import LRU, belady_hits
from bench._receiver import receive
from bench._receivers import Receivers
from bench._run import BENCHMARKS, main
from bench._selections import select
from bench._servers import cpu_seconds, usage
from bench._table import Machine, Plot, Series, Table, Target
from bench._targets import write_targets
from bench._timing import alternate, best, geometric_mean
from bench._versions import MODELS, load_versions, put, write_versions
from bench.scale import straight_line
from decoders import GGMLType, dequantize, info

README = Path(__file__).parent.parent / "bench" / "README.md"
DECODABLE = [type_ for type_ in GGMLType if info(type_).decodable]
TABLE = Table(
    "example",
    "speeds|of IQ2_XXS",
    ["format", "GB/s", "clients"],
    [["IQ2_XXS", 1.23456, 16], ["F32", None, 1]],
    [Plot([Series("one", [1.0])], ["a"], "GB/s")],
    [Target("ratio", 0.5, 1), Target("p50", 1.5, 2, "at most")],
    ["a <note>"],
)


def names_in(pattern: str, text: str) -> list[str]:
    found: list[str] = re.findall(pattern, text, re.MULTILINE)
    return found


def test_a_table_is_text_with_its_targets() -> None:
    title, columns, *rows, missed, reached, note = TABLE.text().splitlines()
    assert title == "example: speeds|of IQ2_XXS"
    assert columns.split() == ["format", "GB/s", "clients"]
    assert [row.split() for row in rows] == [["IQ2_XXS", "1.23", "16"], ["F32", "-", "1"]]
    assert missed == "ratio: 0.500, at least 1 wanted: not reached"
    assert reached == "p50: 1.50, at most 2 wanted: reached"
    assert note == "a <note>"


def test_a_table_as_markdown_shows_what_markdown_would_take_for_itself() -> None:
    lines = TABLE.markdown(Machine.here(quick=True)).splitlines()
    assert "| IQ2\\_XXS | 1.23 | 16 |" in lines
    assert "| --- | ---: | ---: |" in lines
    assert "- a \\<note\\>" in lines
    assert "![example](example.png)" in lines
    assert lines[-1].endswith(", a quick run.")


def test_a_table_as_json_has_figures_targets_and_the_machine() -> None:
    document = json.loads(TABLE.json(Machine.here(quick=False)))
    assert document["rows"] == [["IQ2_XXS", 1.23456, 16], ["F32", None, 1]]
    assert [target["reached"] for target in document["targets"]] == [False, True]
    assert document["machine"]["versions"]["numpy"] == np.__version__
    assert document["machine"]["cores"] == len(os.sched_getaffinity(0))
    assert document["machine"]["quick"] is False


def test_targets_of_all_tables_are_on_one_page(tmp_path: Path) -> None:
    (tmp_path / "example.json").write_text(TABLE.json(Machine.here(quick=True)), encoding="utf-8")
    write_targets(tmp_path)
    assert (tmp_path / "targets.md").read_text(encoding="utf-8").splitlines()[4:] == [
        "| [example](example.md) | ratio | at least 1 | 0.5 | **not reached** |",
        "| [example](example.md) | p50 | at most 2 | 1.5 | reached |",
    ]


def test_a_row_with_a_cell_missing_is_refused() -> None:
    with pytest.raises(ValueError, match="table t: 2 columns, but a row of 1"):
        Table("t", "", ["a", "b"], [["only one"]], [])


def test_every_benchmark_is_listed_and_says_what_it_gives() -> None:
    assert names_in(r"^\| `(\w+)` \|", README.read_text(encoding="utf-8")) == list(BENCHMARKS)
    for benchmark in BENCHMARKS.values():
        assert benchmark.run.__doc__
    shown = CliRunner().invoke(main, ["--help"]).output
    for name in BENCHMARKS:
        assert re.search(rf"\b{name}\b", shown), name


def test_a_benchmark_whose_program_is_missing_says_so_before_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    result = CliRunner().invoke(main, ["requests"])
    assert result.exit_code == 1
    assert "requests needs wrk, which is not installed" in result.output


def test_pictures_alone_need_matplotlib() -> None:
    code = "import sys, bench._run; print('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_sides_take_turns_and_every_other_round_goes_backwards() -> None:
    turns = count(1)
    assert alternate({"a": lambda: next(turns), "b": lambda: next(turns)}, 3) == {"a": [1, 4, 5], "b": [2, 3, 6]}


def test_the_best_is_the_least_of_all_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 5.0, 10.0, 13.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    assert best({"side": lambda: None}, 2) == {"side": 3.0}


def test_geometric_mean() -> None:
    assert geometric_mean([0.5, 2, 8]) == pytest.approx(2)


def test_processor_time_is_the_systems() -> None:
    before = time.process_time()
    measured = cpu_seconds(os.getpid())
    assert before <= measured <= time.process_time()


@pytest.mark.parametrize("type_", DECODABLE, ids=lambda type_: type_.name)
def test_peers_decode_the_same_finite_weights(type_: GGMLType) -> None:
    blocks = random_blocks(type_, 2048)
    weights = dequantize(blocks, type_)
    assert weights.size == 2048
    assert np.isfinite(weights).all()
    assert weights.any()
    in_c, in_python = ggml_decoder(type_), gguf_decoder(type_)
    if in_c is not None:
        out = np.empty(2048, np.float32)
        in_c(blocks, out)
        assert np.array_equal(out, weights)
    if in_python is not None:
        assert np.array_equal(in_python(blocks).reshape(-1), weights)


def test_model_files_hold_what_they_say(tmp_path: Path) -> None:
    write_model(tmp_path / "m.gguf", GGMLType.Q4_K, 1 << 16)
    write_holes(tmp_path / "holes.gguf", 1 << 30, ("a", "b"))
    assert (tmp_path / "holes.gguf").stat().st_blocks * 512 < 1 << 20
    shapes = {}
    for path in tmp_path.iterdir():
        fd = os.open(path, os.O_RDONLY)
        model = open_model([fd])
        shapes[path.name] = [(tensor.name, tuple(tensor.shape), tensor.fault) for tensor in model.tensors]
        os.close(fd)
    assert shapes["m.gguf"] == [(b"w", (16, 4096), None)]
    assert shapes["holes.gguf"] == [(b"a", (1 << 18, 4096), None), (b"b", (1 << 18, 4096), None)]
    decode_file(tmp_path / "m.gguf", GGMLType.Q4_K, 1 << 16, tmp_path / "w.f32")
    expected = dequantize(random_blocks(GGMLType.Q4_K, 1 << 16), GGMLType.Q4_K)
    assert np.array_equal(np.fromfile(tmp_path / "w.f32", np.float32), expected)


@contextmanager
def answering(answer: bytes, times: int) -> Iterator[int]:
    """A port where each of so many connections gets an answer, in two parts."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for _ in range(times):
                connection, _ = server.accept()
                with connection:
                    while b"\r\n\r\n" not in connection.recv(4096):
                        pass
                    connection.sendall(answer[:60])
                    time.sleep(0.01)
                    connection.sendall(answer[60:])

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        thread.join()


def received(answer: bytes) -> int:
    with answering(answer, 1) as port, socket.create_connection(("127.0.0.1", port)) as connection:
        n_bytes, start, end = receive(connection, "/x", memoryview(bytearray(1000)))
        assert start < end
        return n_bytes


def test_the_receiver_counts_the_bytes_of_the_body() -> None:
    assert received(b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\nX-Other: 7\r\n\r\n" + bytes(5000)) == 5000
    assert received(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n") == 0


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n" + bytes(4999), "4999 of 5000 bytes came"),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 10\r\n\r\n" + bytes(10), "no 200"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "no 200 with a Content-Length"),
        (b"HTTP/1.1 200 OK\r\n", "no answer to /x"),
    ],
)
def test_the_receiver_refuses_an_answer_that_is_not_whole(answer: bytes, message: str) -> None:
    with pytest.raises(ConnectionError, match=message):
        received(answer)


def test_receivers_add_up() -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 3000\r\n\r\n" + bytes(3000)
    with answering(answer, 3) as port, Receivers(2) as receivers:
        assert receivers.read(port, ["/a", "/b"]).n_bytes == 6000
        read = receivers.read(port, ["/c"])
    assert read.n_bytes == 3000
    assert read.speed == pytest.approx(3000 / read.seconds / 1e9)


def test_the_bare_route_has_the_signature_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCH_HEADERS", "{}")
    monkeypatch.setenv("BENCH_BYTES", "4")

    def parameters(application: FastAPI) -> set[tuple[str, str]]:
        route = application.openapi()["paths"]["/v1/models/{model}/-/data/{tensor}"]["get"]
        return {(one["in"], one["name"]) for one in route["parameters"] if one.get("in") in ("path", "query")}

    assert parameters(_bare.create_app()) == parameters(create_app(Settings()))


def most_hits(trace: list[int], capacity: int) -> int:
    """By trying everything: the most hits that any cache of that capacity can have."""
    reached = {frozenset[int](): 0}
    for key in trace:
        after: dict[frozenset[int], int] = {}
        for kept, hits in reached.items():
            now = kept | {key}
            for size in range(min(capacity, len(now)) + 1):
                for chosen in map(frozenset, combinations(sorted(now), size)):
                    after[chosen] = max(after.get(chosen, 0), hits + (key in kept))
        reached = after
    return max(reached.values())


@pytest.mark.parametrize("seed", range(20))
def test_no_cache_has_more_hits_than_beladys(seed: int) -> None:
    rng = np.random.default_rng(seed)
    trace, capacity = rng.integers(0, 6, 14).tolist(), 1 + seed % 3
    assert sum(belady_hits(trace, capacity)) == most_hits(trace, capacity)


def test_the_plain_lru_throws_out_what_was_used_longest_ago() -> None:
    made: list[int] = []
    lru = LRU(2)

    def make(key: int) -> int:
        made.append(key)
        return key

    for key in (1, 2, 1, 3, 1, 2):
        assert lru.get(key, partial(make, key)) == key
    assert made == [1, 2, 3, 2]


def test_a_straight_line_is_found_and_begins_no_lower_than_zero() -> None:
    assert straight_line([1, 2, 4], [3.0, 5.0, 9.0]) == pytest.approx([3, 5, 9])
    fitted = straight_line([1, 2, 4], [1.0, 4.0, 16.0])
    assert fitted[1] / fitted[0] == pytest.approx(2)


def test_what_a_server_holds_is_that_of_its_processes_together() -> None:
    # Of a process of its own: in this one threads may just end that another test has left.
    parent = """if True:
        import subprocess, sys
        print("ready", flush=True)
        sys.stdin.readline()
        child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        child.stdin.write(b"it has begun\\n")
        child.stdin.flush()
        child.stdout.readline()
        print(child.pid, flush=True)
        sys.stdin.read()
        child.communicate()
    """
    with subprocess.Popen([sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        process.stdout.readline()
        alone = usage(process.pid)
        process.stdin.write(b"\n")
        process.stdin.flush()
        child = int(process.stdout.readline())
        together, of_the_child = usage(process.pid), usage(child)
        process.stdin.close()
    assert alone.threads == of_the_child.threads == 1
    assert alone.descriptors >= 3
    assert of_the_child.descriptors >= 3
    assert together.threads == 2
    # Two pipes lead to the child: an end of each is in its parent.
    assert together.descriptors == alone.descriptors + 2 + of_the_child.descriptors
    assert together.memory > of_the_child.memory > 1 << 18


@pytest.mark.parametrize("seed", range(100))
def test_random_selections_are_written_as_numpy_reads_them(seed: int) -> None:
    shape = (4, 24, 64)
    array = np.arange(4 * 24 * 64).reshape(shape)
    rows = array.reshape(-1, 64)
    selected = select(Random(seed), shape, (64, 700, 10**6)[seed % 3], rows_only=seed % 4 == 0)
    assert selected.n_items <= max(64, (64, 700, 10**6)[seed % 3])
    query = selected.query

    def part(text: str) -> slice:
        """An integer keeps its axis."""
        numbers = [int(number) if number else None for number in text.split(":")]
        return slice(*numbers) if ":" in text else slice(int(text), int(text) + 1 or None)

    if "slice" in query:
        axes = tuple(part(text) if ":" in text else int(text) for text in query["slice"].split(","))
        expected = array[axes]
    elif query:
        expected = np.concatenate([rows[part(text)] for text in query["rows"].split(",")])
        expected = expected[:, part(query["cols"])] if "cols" in query else expected
    else:
        expected = array
    assert selected.shape == expected.shape
    assert np.array_equal(selected.of(array), expected)


def test_versions_of_a_model_differ_in_what_they_hold_alone(tmp_path: Path) -> None:
    write_versions(tmp_path / "versions", 2)
    versions = load_versions(tmp_path / "versions")
    assert list(versions) == list(MODELS)
    held_types = {held.type for model in versions.values() for held in model[0].tensors}
    assert held_types == set(DECODABLE)
    for model, (first, second) in versions.items():
        for one, other in zip(first.tensors, second.tensors, strict=True):
            assert not np.array_equal(one.weights, other.weights)
            weights = dequantize(one.stored.reshape(-1), one.type)
            assert np.array_equal(weights, one.weights.reshape(-1))
        states = []
        for version in (first, second):
            put(tmp_path / "versions", tmp_path, model, version.number)
            states.append((tmp_path / f"{model}.gguf").stat())
        assert states[0].st_ino != states[1].st_ino
        assert states[0].st_size == states[1].st_size
        assert states[0].st_mtime_ns == states[1].st_mtime_ns
