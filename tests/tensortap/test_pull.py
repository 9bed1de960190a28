"""Pulling whole models: whatever ends a pull, the next one goes on with what is sound of it, and with nothing else."""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

import tensortap._pull
from decoders import GGMLType
from tensortap import AsyncClient, Client, ModelChanged, NotFound, Pulled, ServiceError, TensorTapError, Unreadable
from tensortap._flow import Answer, Ask, Compute, Together
from tensortap._partial import PartialFile
from tests import builder
from tests.demo import demo_model
from tests.server import Server
from tests.tensortap.proxy import Fault, Proxy
from tests.waiting import eventually

PIECE = 64 << 10


def model_of(seed: int, n_weights: int = 1 << 20) -> bytes:
    """A model of one large tensor between two small ones; all have one size, whatever the seed."""
    weights = np.random.default_rng(seed).standard_normal(n_weights).astype("<f2")
    return builder.build(
        [
            ("first", [8], GGMLType.F32, builder.F8),
            ("large", [1024, n_weights // 1024], GGMLType.F16, weights.tobytes()),
            ("last", [8], GGMLType.F32, builder.F8),
        ],
        [("general.architecture", builder.STRING, "llama")],
    )


@pytest.fixture(scope="module")
def volume(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pull")
    (folder / "demo.gguf").write_bytes(demo_model())
    (folder / "medium.gguf").write_bytes(model_of(1))
    (folder / "long.gguf").write_bytes(model_of(2, 16 << 20))
    damaged = [("good", [8], GGMLType.F32, builder.F8), ("bad", [8], 99, builder.F8)]
    (folder / "damaged.gguf").write_bytes(builder.build(damaged))
    return folder


@pytest.fixture(scope="module")
def served(volume: Path) -> Iterator[Server]:
    with Server(volume, recheck_seconds=0) as running:
        yield running


@pytest.fixture
def tap(served: Server) -> Iterator[Client]:
    with Client(served.url) as client:
        yield client


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensortap._pull, "_PIECE_BYTES", PIECE)


def body(server: Server, model: str, **query: str) -> bytes:
    answer = server.client.get(f"/v1/models/{model}/-/safetensors", params=query)
    assert answer.status_code == 200
    return answer.content


def leftovers(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


class Enough(Exception):
    """Ends a pull."""


def until(n_bytes: int) -> Callable[[int, int], None]:
    """A progress that ends the pull once so much is there."""

    def tell(done: int, total: int) -> None:
        if n_bytes <= done < total:
            raise Enough

    return tell


def break_off(tap: Client, target: Path, model: str = "medium", n_bytes: int = 1 << 20) -> dict[str, Any]:
    """Pull a part of a model; gives the state that is left."""
    with pytest.raises(Enough):
        tap.pull(model, target, progress=until(n_bytes))
    assert leftovers(target.parent) == {f"{target.name}.part", f"{target.name}.part.json"}
    state: dict[str, Any] = json.loads(target.with_name(f"{target.name}.part.json").read_text())
    return state


def covered(state: dict[str, Any]) -> int:
    """How many bytes the pieces of a state cover."""
    total = at = 0
    for first, stop, _ in sorted(state["pieces"]):
        total += max(0, stop - max(first, at))
        at = max(at, stop)
    return total


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_file_is_the_services_own_body(tap: Client, served: Server, tmp_path: Path, dtype: Any) -> None:
    target = tmp_path / "out.safetensors"
    result = tap.pull("demo", target, dtype=dtype)
    expected = body(served, "demo", dtype=dtype)
    assert target.read_bytes() == expected
    assert result == Pulled(target, len(expected), 39, result.moved)
    assert result.moved == len(expected)
    assert leftovers(tmp_path) == {target.name}


def test_its_tensors_are_those_that_the_client_reads(tap: Client, tmp_path: Path) -> None:
    tap.pull("demo", tmp_path / "out", name="blk.*")
    found = load_file(tmp_path / "out")
    model = tap["demo"]
    assert set(found) == {"blk.0.attn_q.weight", "blk.0.ffn_gate_exps.weight"}
    for name, weights in found.items():
        np.testing.assert_array_equal(weights, model[name][...])


@pytest.mark.usefixtures("small_pieces")
def test_many_pieces_at_a_time_make_the_same_file(served: Server, tmp_path: Path) -> None:
    for connections in (1, 3, 8):
        with Client(served.url, max_connections=connections) as tap:
            tap.pull("medium", tmp_path / "out")
        assert (tmp_path / "out").read_bytes() == body(served, "medium")


def test_both_clients_pull_the_same(served: Server, tmp_path: Path) -> None:
    async def pull() -> Pulled:
        async with AsyncClient(served.url) as tap:
            return await tap.pull("medium", tmp_path / "out", exclude="last", dtype="float16")

    result = asyncio.run(pull())
    assert result.n_tensors == 2
    assert (tmp_path / "out").read_bytes() == body(served, "medium", exclude="last", dtype="float16")


def test_a_file_that_has_the_name_is_replaced(tap: Client, served: Server, tmp_path: Path) -> None:
    (tmp_path / "out").write_bytes(b"older")
    tap.pull("demo", tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == body(served, "demo")


def test_progress_ends_at_the_length_of_the_file(tap: Client, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    result = tap.pull("demo", tmp_path / "out", progress=lambda *figures: told.append(figures))
    assert told[-1] == (result.n_bytes, result.n_bytes)


@pytest.mark.usefixtures("small_pieces")
def test_a_pull_that_broke_off_goes_on(tap: Client, served: Server, tmp_path: Path) -> None:
    target = tmp_path / "out"
    state = break_off(tap, target)
    assert covered(state) >= 1 << 19
    result = tap.pull("medium", target)
    assert result.moved == result.n_bytes - covered(state)
    assert target.read_bytes() == body(served, "medium")
    assert leftovers(tmp_path) == {"out"}


def test_what_came_of_a_piece_is_kept(tap: Client, tmp_path: Path) -> None:
    # The file is one piece.
    state = break_off(tap, tmp_path / "out", n_bytes=1 << 20)
    assert covered(state) >= 1 << 20
    assert tap.pull("medium", tmp_path / "out").moved == state["length"] - covered(state)


@pytest.mark.usefixtures("small_pieces")
def test_a_piece_that_is_damaged_is_brought_again(tap: Client, served: Server, tmp_path: Path) -> None:
    state = break_off(tap, tmp_path / "out")
    first, stop, _ = max(state["pieces"], key=lambda piece: piece[1] - piece[0])
    with (tmp_path / "out.part").open("r+b") as file:
        file.seek(stop - 1)
        (byte,) = file.read(1)
        file.seek(stop - 1)
        file.write(bytes([byte ^ 1]))
    result = tap.pull("medium", tmp_path / "out")
    assert result.moved == result.n_bytes - covered(state) + stop - first
    assert (tmp_path / "out").read_bytes() == body(served, "medium")


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("other", [{"dtype": "float16"}, {"exclude": "first"}])
def test_another_body_begins_anew(tap: Client, served: Server, tmp_path: Path, other: dict[str, Any]) -> None:
    break_off(tap, tmp_path / "out")
    result = tap.pull("medium", tmp_path / "out", **other)
    assert result.moved == result.n_bytes
    assert (tmp_path / "out").read_bytes() == body(served, "medium", **other)


@pytest.mark.usefixtures("small_pieces")
def test_another_version_of_the_model_begins_anew(tap: Client, served: Server, volume: Path, tmp_path: Path) -> None:
    (volume / "changing.gguf").write_bytes(model_of(3))
    break_off(tap, tmp_path / "out", "changing")
    fresh = volume / "fresh"
    fresh.write_bytes(model_of(4))
    fresh.rename(volume / "changing.gguf")
    result = tap.pull("changing", tmp_path / "out")
    assert result.moved == result.n_bytes
    assert (tmp_path / "out").read_bytes() == body(served, "changing")
    np.testing.assert_array_equal(load_file(tmp_path / "out")["large"], tap["changing"]["large"][...])


@pytest.mark.usefixtures("small_pieces")
def test_a_model_that_changes_meanwhile_is_never_mixed(tap: Client, volume: Path, tmp_path: Path) -> None:
    (volume / "changing.gguf").write_bytes(model_of(3))
    model = tap["changing"]

    def change(done: int, _: int) -> None:
        if done > 1 << 20 and not fresh.exists():
            fresh.write_bytes(model_of(4))
            os.replace(fresh, volume / "changing.gguf")
            fresh.touch()

    fresh = volume / "fresh"
    fresh.unlink(missing_ok=True)
    with pytest.raises(ModelChanged):
        model.pull(tmp_path / "out", progress=change)
    fresh.unlink()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "state",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"etag": 1, "length": 2, "pieces": 3}',
        lambda state: {**state, "pieces": None},
        lambda state: {**state, "pieces": [[0, state["length"], 0]]},
        lambda state: {**state, "pieces": [[0, 1 << 62, 0], [5, 5, 0], [7, 3, 0], [-9, 9, 0], ["0", 9, 0], [0], 1]},
        lambda state: {**state, "length": state["length"] - 1},
        lambda state: {**state, "etag": '"another"'},
    ],
)
@pytest.mark.usefixtures("small_pieces")
def test_a_state_that_says_something_else_spoils_nothing(
    tap: Client, served: Server, tmp_path: Path, state: Any
) -> None:
    left = break_off(tap, tmp_path / "out")
    written = state if isinstance(state, bytes) else json.dumps(state(left)).encode()
    (tmp_path / "out.part.json").write_bytes(written)
    result = tap.pull("medium", tmp_path / "out")
    assert result.moved == result.n_bytes
    assert (tmp_path / "out").read_bytes() == body(served, "medium")


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("size", [0, 1000, 100 << 20])
def test_a_part_of_another_length_is_not_trusted(tap: Client, served: Server, tmp_path: Path, size: int) -> None:
    break_off(tap, tmp_path / "out")
    os.truncate(tmp_path / "out.part", size)
    result = tap.pull("medium", tmp_path / "out")
    assert result.moved == result.n_bytes
    assert (tmp_path / "out").read_bytes() == body(served, "medium")


def test_two_pulls_to_one_path_do_not_meet(tap: Client, tmp_path: Path) -> None:
    other = PartialFile(tmp_path / "out", '"etag"', 100).open()
    with pytest.raises(BlockingIOError, match="another process"):
        tap.pull("demo", tmp_path / "out")
    other.close()
    tap.pull("demo", tmp_path / "out")


def test_a_pull_that_ends_another_does_not_touch_what_it_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "out"
    first = PartialFile(target, "a", 100).open()
    first.write(0, b"A" * 100)
    replace, met = os.replace, []

    def meeting(source: Path, to: Path) -> None:
        if to == target:
            with pytest.raises(BlockingIOError):
                PartialFile(target, "b", 500).open()
            met.append(to)
        replace(source, to)

    monkeypatch.setattr(os, "replace", meeting)
    first.finish()
    assert met == [target]
    second = PartialFile(target, "b", 500).open()
    second.write(0, b"B" * 250)
    second.close()
    assert target.read_bytes() == b"A" * 100


def test_a_file_without_a_state_is_not_touched(tap: Client, served: Server, tmp_path: Path) -> None:
    part = tmp_path / "out.part"
    part.write_text("mine")
    with pytest.raises(FileExistsError, match="no pull has made it"):
        tap.pull("demo", tmp_path / "out")
    assert part.read_text() == "mine"
    assert leftovers(tmp_path) == {"out.part"}
    part.unlink()
    os.mkfifo(part)
    with pytest.raises(FileExistsError, match="no pull has made it"):
        tap.pull("demo", tmp_path / "out")
    assert part.is_fifo()
    part.unlink()
    part.touch()  # as a pull leaves it that is killed before it has said of which body it is
    tap.pull("demo", tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == body(served, "demo")


def test_a_folder_is_known_before_anything_is_moved(tap: Client, tmp_path: Path) -> None:
    model = tap["demo"]
    tap.close()
    with pytest.raises(IsADirectoryError, match=re.escape(str(tmp_path))):
        model.pull(tmp_path)
    assert leftovers(tmp_path) == set()


def test_a_cancelled_pull_leaves_its_file_to_the_next(
    served: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, cancelled = threading.Event(), threading.Event()
    resume = PartialFile._resume

    def waiting(partial: PartialFile) -> None:
        opened.set()
        assert cancelled.wait(30)
        resume(partial)

    async def pull() -> Pulled:
        async with AsyncClient(served.url) as tap:
            model = await tap["demo"]
            with monkeypatch.context() as patched:
                patched.setattr(PartialFile, "_resume", waiting)
                task = asyncio.create_task(model.pull(tmp_path / "out"))
                await asyncio.to_thread(opened.wait, 30)
                task.cancel()
                await asyncio.sleep(0)  # the task has heard of it
                cancelled.set()
                with pytest.raises(asyncio.CancelledError) as kept:  # with the frames that it came through
                    await task
            result = await model.pull(tmp_path / "out")
            assert kept.value.__traceback__ is not None
            return result

    result = asyncio.run(pull())
    assert (tmp_path / "out").stat().st_size == result.n_bytes


def test_a_disk_without_room_is_known_before(tap: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(OSError, match="no room for the"):
        tap.pull("demo", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_tensors_that_cannot_be_read_are_named_and_can_be_left_out(tap: Client, tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match="exclude"):
        tap.pull("damaged", tmp_path / "out")
    with pytest.raises(NotFound):
        tap.pull("damaged", tmp_path / "out", name="no such*")
    assert leftovers(tmp_path) == set()
    assert tap.pull("damaged", tmp_path / "out", exclude="bad").n_tensors == 1
    assert load_file(tmp_path / "out")["good"].tolist() == list(range(8))


def test_cuts_on_the_way_cost_only_what_was_lost(served: Server, tmp_path: Path) -> None:
    cut = Fault(after=5 << 20)
    with Proxy(served.port, lambda _: cut) as proxy, Client(proxy.url, max_connections=2) as tap:
        result = tap.pull("long", tmp_path / "out")
        assert proxy.ended >= result.n_bytes // (5 << 20) - 1
        assert proxy.passed < result.n_bytes * 1.1
    assert (tmp_path / "out").read_bytes() == body(served, "long")


def command(url: str, target: Path) -> list[str]:
    return [sys.executable, "-m", "tensortap", "pull", url, "long", "-o", str(target), "--connections=4", "--json"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_the_same_command_goes_on_after_a_kill(served: Server, tmp_path: Path, number: int) -> None:
    target, state = tmp_path / "out", tmp_path / "out.part.json"
    # Two of the four connections stop in the middle of their pieces, so the pull does not end by itself.
    stalls = {2: Fault(after=1 << 20, how="stall"), 3: Fault(after=1 << 20, how="stall")}
    with (
        Proxy(served.port, stalls.get) as proxy,
        subprocess.Popen(
            command(proxy.url, target), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process,
    ):
        try:
            eventually(lambda: state.exists() and len(json.loads(state.read_text())["pieces"]) > 1)
        except BaseException:
            process.kill()
            raise
        process.send_signal(number)
        _, told = process.communicate(timeout=30)
    assert process.returncode == -number
    assert "Traceback" not in told
    assert leftovers(tmp_path) == {"out.part", "out.part.json"}
    left = json.loads(state.read_text())
    assert covered(left) >= 16 << 20
    again = subprocess.run(command(served.url, target), capture_output=True, text=True, check=True)
    assert json.loads(again.stdout)["moved"] == left["length"] - covered(left)
    assert target.read_bytes() == body(served, "long")


class Service:
    """A service for one flow: answers its requests with ranges of a body, as it is told to."""

    def __init__(self, content: bytes, **headers: str) -> None:
        self.content = content
        self.etags = iter(["etag"] * 2)
        self.later_etag = "etag"
        self.headers = headers

    def run(self, flow: Any) -> Any:
        try:
            effect = next(flow)
            while True:
                effect = flow.send(self.do(effect))
        except StopIteration as end:
            return end.value
        finally:
            flow.close()

    def do(self, effect: Any) -> Any:
        if isinstance(effect, Together):
            return [self.run(flow) for flow in effect.flows]
        if isinstance(effect, Compute):
            return effect.work()
        assert isinstance(effect, Ask)
        assert effect.sink is not None
        assert effect.first is not None
        assert effect.headers == {"If-Match": "version"}
        effect.sink.take(self.content[effect.first : effect.first + len(effect.sink.view)])
        effect.sink.etag = next(self.etags, self.later_etag)
        return Answer(206, self.headers, b"")

    def pull(self, target: Path) -> Pulled:
        flow = tensortap._pull.pulled("/path", "version", target, None, None, "float32", False)
        result: Pulled = self.run(flow)
        return result


def file_of(header: Any, weights: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + weights


def line(first: int, stop: int, shape: list[Any], dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [first, stop]}


def test_a_sound_file_is_taken(tmp_path: Path) -> None:
    content = file_of({"__metadata__": {}, "a": line(0, 8, [2]), "b": line(8, 12, [])}, bytes(range(12)))
    result = Service(content, **{"content-range": f"bytes 0-7/{len(content)}"}).pull(tmp_path / "out")
    assert result == Pulled(tmp_path / "out", len(content), 2, len(content))
    assert (tmp_path / "out").read_bytes() == content


@pytest.mark.parametrize(
    "header",
    [
        b"no JSON",
        b"[]",
        b'{"a": 1}',
        {"a": line(0, 8, [3])},
        {"a": line(4, 12, [2])},
        {"a": line(0, 8, [2]), "b": line(4, 12, [2])},
        {"a": line(0, 8, [2]), "b": line(12, 20, [2])},
        {"a": line(0, 8, [2], "F33")},
        {"a": line(0, -8, [-2])},
        {"a": line(0, 8, ["2"])},
        {"a": line(0, 8, [2.0])},
        {"a": {"dtype": "F32", "shape": [2]}},
    ],
)
def test_a_header_whose_places_do_not_fit_is_refused(tmp_path: Path, header: Any) -> None:
    with pytest.raises(ServiceError):
        Service(file_of(header, bytes(64))).pull(tmp_path / "out")
    assert leftovers(tmp_path) == set()


def test_what_is_no_safetensors_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match="no safetensors file"):
        Service(b"<!DOCTYPE html>").pull(tmp_path / "out")


def test_a_length_that_is_not_the_headers_is_refused(tmp_path: Path) -> None:
    content = file_of({"a": line(0, 8, [2])}, bytes(8))
    with pytest.raises(ServiceError, match="by its header"):
        Service(content, **{"content-range": f"bytes 0-7/{len(content) + 1}"}).pull(tmp_path / "out")


@pytest.mark.parametrize(
    ("head", "later"), [((None, None), "etag"), (("etag", "other"), "etag"), (("e", "e"), "other")]
)
def test_a_body_of_another_etag_is_refused(tmp_path: Path, head: tuple[Any, Any], later: str) -> None:
    service = Service(file_of({"a": line(0, 8, [2])}, bytes(8)))
    service.etags, service.later_etag = iter(head), later
    with pytest.raises(TensorTapError):
        service.pull(tmp_path / "out")
    assert not (tmp_path / "out").exists()


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(1, 40))), st.integers(1, 50))
def test_what_is_missing_is_what_was_not_written(
    tmp_path_factory: pytest.TempPathFactory, written: list[tuple[int, int]], piece_bytes: int
) -> None:
    target = tmp_path_factory.mktemp("partial") / "file"
    there = np.zeros(100, np.bool_)
    for again in range(2):
        partial = PartialFile(target, "etag", 100).open()
        for first, size in written if not again else []:
            stop = min(100, first + size)
            partial.write(first, bytes([first]) * (stop - first))
            there[first:stop] = True
        found = np.zeros(100, np.bool_)
        for first, stop in partial.missing(piece_bytes):
            assert 0 < stop - first <= piece_bytes
            assert not found[first:stop].any()
            found[first:stop] = True
        partial.close()
        partial.write(0, b"after the end")
        if not again:
            np.testing.assert_array_equal(found, ~there)
        else:  # a piece that another was written over is not what it was, and counts no more
            assert (found | there).all()
            assert found[~there].all()
