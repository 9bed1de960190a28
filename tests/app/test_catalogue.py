"""The catalogue: one snapshot while nothing changes, a new one when anything does, and no file left open."""

import gc
import os
import threading
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

import app.snapshot
from app.catalogue import Catalogue, Listed
from app.errors import NotFound, Problem, Unavailable, Unreadable
from app.gguf import open_model
from app.snapshot import Snapshot
from app.volume import Volume
from tests.builder import I32, STRING, U16, base, build, floats, tensor_info

F32 = 0
OTHER = base(data=floats(*range(8, 16)))
SMALLER = base(infos=[tensor_info("w", [2, 4], 0, 0)])


def n_open() -> int:
    gc.collect()  # what other tests have left behind goes now, and not while one counts
    return len(os.listdir("/proc/self/fd"))


def write(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def weights(snapshot: Snapshot) -> bytes:
    tensor = snapshot.model.find(b"w")
    content = np.zeros(32, np.uint8)
    snapshot.read(0, tensor.start, content)
    return content.tobytes()


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Counts the models that are parsed."""
    counted = Mock(wraps=open_model)
    monkeypatch.setattr(app.snapshot, "open_model", counted)
    return counted


class Rig:
    """Catalogues of one folder, closed at the end, and the keys that they said are gone."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.gone: list[bytes] = []
        self.made: list[Catalogue] = []

    def __call__(self, *, most_open: int = 32, recheck_seconds: float = 0) -> Catalogue:
        volume = Volume(self.root)
        made = Catalogue(volume, most_open=most_open, recheck_seconds=recheck_seconds, on_gone=self.gone.append)
        self.made.append(made)
        return made


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    before = n_open()
    made = Rig(tmp_path)
    yield made
    for catalogue in made.made:
        catalogue.close()
    assert n_open() == before


def refused(catalogue: Catalogue, model_id: bytes) -> Problem:
    with pytest.raises(Problem) as raised:
        catalogue.snapshot(model_id).release()
    return raised.value


@pytest.mark.case(7)
def test_an_unchanged_model_has_one_snapshot(rig: Rig, parsed: Mock) -> None:
    write(rig.root / "m.gguf", base())
    catalogue = rig()
    with catalogue.snapshot(b"m") as first, catalogue.snapshot(b"m") as second:
        assert first is second
    assert parsed.call_count == 1
    assert rig.gone == []
    assert catalogue.figures() == {"open_models": 1, "header_bytes": first.model.memory_bytes}


def replaced(path: Path, data: bytes, *, disguised: bool) -> None:
    status = path.stat()
    new = write(path.with_suffix(".part"), data)
    if disguised:
        assert len(data) == status.st_size
        os.utime(new, ns=(status.st_atime_ns, status.st_mtime_ns))
    new.rename(path)


@pytest.mark.case(25)
@pytest.mark.parametrize("disguised", [True, False])
def test_a_replaced_file_is_a_new_snapshot(rig: Rig, disguised: bool) -> None:
    """Also with the old size and mtime."""
    path = write(rig.root / "m.gguf", base())
    catalogue = rig()
    with catalogue.snapshot(b"m") as old:
        replaced(path, OTHER if disguised else SMALLER, disguised=disguised)
        with catalogue.snapshot(b"m") as new:
            assert new is not old
            assert new.key != old.key
            assert rig.gone == [old.key]
            assert weights(old) == floats(*range(8))
            assert weights(new) == (floats(*range(8, 16)) if disguised else floats(*range(8)))
            assert new.model.find(b"w").ne == ((4, 2) if disguised else (2, 4))


@pytest.mark.case(25)
def test_a_model_appears_and_is_gone_and_may_come_back(rig: Rig) -> None:
    catalogue, before = rig(), n_open()
    problem = refused(catalogue, b"m")
    assert isinstance(problem, NotFound)
    assert (problem.slug, problem.status) == ("no-such-model", 404)
    path = write(rig.root / "m.gguf", base())
    with catalogue.snapshot(b"m") as snapshot:
        path.unlink()
        assert refused(catalogue, b"m").slug == "no-such-model"
        assert rig.gone == [snapshot.key]
        assert weights(snapshot) == floats(*range(8))
    assert n_open() == before
    write(path, base())
    with catalogue.snapshot(b"m") as again:
        assert again is not snapshot


def test_an_alias_and_the_id_have_the_same_content_key(rig: Rig) -> None:
    write(rig.root / "m.gguf", base())
    catalogue = rig()
    with catalogue.snapshot(b"m") as one, catalogue.snapshot(b"m.gguf") as other:
        assert one.key == other.key
        assert one.model_id == other.model_id == b"m"


@pytest.mark.case(21)
def test_a_split_set_follows_each_of_its_parts(rig: Rig) -> None:
    part = [("split.count", U16, 2), ("split.tensors.count", I32, 1)]
    first = build((), [("split.no", U16, 0), *part])
    second = build([("w", [4, 2], F32, floats(*range(8)))], [("split.no", U16, 1), *part])
    write(rig.root / "m-00001-of-00002.gguf", first)
    catalogue = rig()
    problem = refused(catalogue, b"m")
    assert problem.slug == "incomplete-split"
    assert "m-00002-of-00002.gguf" in problem.detail
    write(rig.root / "m-00002-of-00002.gguf", second)
    with catalogue.snapshot(b"m") as whole:
        assert whole.model.find(b"w").file == 1
    replaced(rig.root / "m-00002-of-00002.gguf", second, disguised=True)
    with catalogue.snapshot(b"m") as other:
        assert other is not whole
    write(rig.root / "m-00001-of-00002.gguf", second)
    assert refused(catalogue, b"m").slug == "incomplete-split"


@pytest.mark.case(6)
def test_a_bad_file_is_parsed_once_while_it_stays(rig: Rig, parsed: Mock) -> None:
    path = write(rig.root / "bad.gguf", b"<!DOCTYPE html><title>Not found</title>")
    catalogue = rig()
    problems = [refused(catalogue, b"bad") for _ in range(5)]
    assert parsed.call_count == 1
    for problem in problems:
        assert isinstance(problem, Unreadable)
        assert (problem.slug, problem.status) == ("unreadable-model", 422)
        assert "HTML" in problem.detail
        assert problem.body() == problems[0].body()
    assert catalogue.figures() == {"open_models": 0, "header_bytes": 0}
    assert catalogue.recent(b"bad") is None
    write(path, base())
    with catalogue.snapshot(b"bad"):
        assert parsed.call_count == 2


def test_a_kept_problem_keeps_no_frames(rig: Rig) -> None:
    write(rig.root / "bad.gguf", b"bad")
    catalogue = rig()
    first, second, third = (refused(catalogue, b"bad") for _ in range(3))
    assert len({id(first), id(second), id(third)}) == 3  # what is raised is not what is kept
    assert len(traceback.extract_tb(second.__traceback__)) == len(traceback.extract_tb(third.__traceback__))
    (listed,) = catalogue.list()
    assert listed.problem is not None
    assert listed.problem.__traceback__ is None
    assert listed.problem.__context__ is None
    assert listed.problem.__cause__ is None


def test_models_used_longest_ago_are_closed(rig: Rig) -> None:
    for number in range(6):
        write(rig.root / f"m{number}.gguf", base())
    catalogue = rig(most_open=2)
    before = n_open()
    held = catalogue.snapshot(b"m0")
    for number in range(6):
        catalogue.snapshot(b"m%d" % number).release()
    assert n_open() == before + 3
    assert catalogue.figures()["open_models"] == 2
    assert weights(held) == floats(*range(8))
    held.release()
    assert n_open() == before + 2
    assert rig.gone == []  # closed is not gone: its windows are still right
    catalogue.close()
    assert n_open() == before


def test_the_least_used_goes_first(rig: Rig, parsed: Mock) -> None:
    for name in "abc":
        write(rig.root / f"{name}.gguf", base())
    catalogue = rig(most_open=2)
    for model_id in (b"a", b"b", b"a", b"c", b"a"):
        catalogue.snapshot(model_id).release()
    assert parsed.call_count == 3
    catalogue.snapshot(b"b").release()
    assert parsed.call_count == 4


def test_large_headers_are_let_go(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        write(rig.root / f"m{number}.gguf", base())
    catalogue = rig()
    with catalogue.snapshot(b"m0") as snapshot:
        size = snapshot.model.memory_bytes
    monkeypatch.setattr("app.catalogue._MOST_HEADER_BYTES", 2 * size)
    for number in range(4):
        catalogue.snapshot(b"m%d" % number).release()
    assert catalogue.figures() == {"open_models": 2, "header_bytes": 2 * size}
    monkeypatch.setattr("app.catalogue._MOST_HEADER_BYTES", 1)
    catalogue.snapshot(b"m0").release()
    assert catalogue.figures()["open_models"] == 1  # the one in use stays


def test_a_look_at_the_volume_holds_for_its_time(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    path = write(rig.root / "m.gguf", base())
    catalogue = rig(recheck_seconds=5)
    assert catalogue.recent(b"m") is None
    with catalogue.snapshot(b"m") as first:
        assert [listed.model_id for listed in catalogue.list()] == [b"m"]
        replaced(path, SMALLER, disguised=False)
        write(rig.root / "n.gguf", base())
        now += 5
        for look in (catalogue.recent, catalogue.snapshot):
            again = look(b"m")
            assert again is first
            again.release()
        assert len(catalogue.list()) == 1
        now += 0.5
        assert catalogue.recent(b"m") is None
        with catalogue.snapshot(b"m") as second:
            assert second is not first
        with catalogue.snapshot(b"m") as third:
            assert third is second
        assert len(catalogue.list()) == 2


def test_a_volume_that_is_not_there_is_unavailable(rig: Rig, tmp_path: Path) -> None:
    rig.root = tmp_path / "mount"
    catalogue = rig()
    assert isinstance(refused(catalogue, b"m"), Unavailable)
    with pytest.raises(Unavailable):
        catalogue.list()
    write(rig.root / "m.gguf", base())
    catalogue.snapshot(b"m").release()
    assert len(catalogue.list()) == 1


@pytest.mark.parametrize(
    ("error", "slug"),
    [
        (PermissionError(13, "Permission denied"), "unreadable-model"),
        (FileNotFoundError(2, "No such file"), "no-such-model"),
        (OSError(5, "Input/output error"), "volume-error"),
    ],
)
def test_errors_of_the_volume(rig: Rig, monkeypatch: pytest.MonkeyPatch, error: OSError, slug: str) -> None:
    write(rig.root / "m.gguf", base())
    catalogue = rig()
    with monkeypatch.context() as patch:
        patch.setattr(app.snapshot, "open_regular_file", Mock(side_effect=error))
        assert refused(catalogue, b"m").slug == slug
        (listed,) = catalogue.list()
        assert listed.problem is not None
        assert listed.problem.slug == slug
    if slug == "volume-error":  # nothing to remember: the file is as good as before
        catalogue.snapshot(b"m").release()
        assert catalogue.list()[0].summary is not None


def test_the_list_has_each_model_with_its_summary_or_its_problem(rig: Rig, parsed: Mock) -> None:
    write(rig.root / "good.gguf", build([("w", [4, 2], F32, bytes(32))], [("general.name", STRING, "Good")]))
    write(rig.root / "empty.gguf", b"")
    write(rig.root / "part-00001-of-00002.gguf", base())
    write(rig.root / "folder/deep.gguf", base())
    catalogue = rig()
    listed = {one.model_id: one for one in catalogue.list()}
    assert list(listed) == [b"empty", b"good", b"part", b"folder/deep"]
    good = listed[b"good"]
    assert good.problem is None
    assert good.summary is not None
    assert (good.summary.name, good.summary.architecture) == ("Good", None)
    assert (good.summary.tensors, good.summary.parameters, good.files) == (1, 8, 1)
    assert good.bytes == (rig.root / "good.gguf").stat().st_size
    assert {one.model_id: one.problem.slug for one in listed.values() if one.problem} == {
        b"empty": "unreadable-model",
        b"part": "incomplete-split",
    }
    assert parsed.call_count == 3
    assert catalogue.figures()["open_models"] == 0


def test_a_listed_file_is_parsed_again_only_when_it_changed(rig: Rig, parsed: Mock) -> None:
    for name in ("a", "b", "bad"):
        write(rig.root / f"{name}.gguf", b"bad" if name == "bad" else base())
    catalogue = rig()

    def ids() -> list[bytes]:
        return [one.model_id for one in catalogue.list()]

    assert ids() == ids() == [b"a", b"b", b"bad"]
    assert parsed.call_count == 3
    replaced(rig.root / "a.gguf", OTHER, disguised=True)
    (rig.root / "b.gguf").unlink()
    write(rig.root / "c.gguf", base())
    assert ids() == ids() == [b"a", b"bad", b"c"]
    assert parsed.call_count == 5


def test_a_thousand_files_are_listed(rig: Rig, parsed: Mock) -> None:
    for number in range(1000):
        write(rig.root / f"d{number % 10}" / f"m{number:03}.gguf", base())
    catalogue, before = rig(), n_open()
    found: list[Listed] = catalogue.list()
    assert [one.model_id for one in found] == sorted(one.model_id for one in found)
    assert len(found) == 1000
    assert all(one.summary and one.summary.parameters == 8 for one in found)
    assert n_open() == before
    assert catalogue.list() == found
    assert parsed.call_count == 1000


@pytest.mark.case(7)
def test_threads_that_want_one_model_open_it_once(rig: Rig, parsed: Mock) -> None:
    write(rig.root / "m.gguf", base())
    catalogue, before, start = rig(), n_open(), threading.Barrier(10)

    def work(_: int) -> Snapshot:
        start.wait(10)
        return catalogue.snapshot(b"m")

    with ThreadPoolExecutor(10) as pool:
        snapshots = list(pool.map(work, range(10)))
    assert parsed.call_count == 1
    assert all(snapshot is snapshots[0] for snapshot in snapshots)
    for snapshot in snapshots:
        snapshot.release()
    assert n_open() == before + 1


def test_no_file_stays_open_over_many_rounds_in_many_threads(rig: Rig) -> None:
    """Models are replaced, removed, broken and read at once: every answer is all of one state."""
    before = n_open()
    for number in range(6):
        write(rig.root / f"m{number}.gguf", base())
    catalogue = rig(most_open=2)
    states = {floats(*range(8)), floats(*range(8, 16))}
    end = threading.Event()

    def change() -> None:
        for turn in range(150):
            path = rig.root / f"m{turn % 6}.gguf"
            if turn % 5 == 4:
                path.unlink()
            else:
                content = b"bad" if turn % 5 == 3 else (base(), OTHER)[turn % 2]
                write(rig.root / "next", content).rename(path)
        end.set()

    def use(seed: int) -> None:
        turn = seed
        while not end.is_set():
            turn += 1
            try:
                with catalogue.snapshot(b"m%d" % (turn % 6)) as snapshot:
                    assert weights(snapshot) in states
            except (NotFound, Unreadable):
                pass
            if turn % 50 == 0:
                catalogue.list()

    with ThreadPoolExecutor(5) as pool:
        jobs = [pool.submit(change), *(pool.submit(use, seed) for seed in range(4))]
        for job in jobs:
            job.result(60)
    catalogue.close()
    assert n_open() == before


def test_a_removed_model_is_let_go_of_without_being_asked_for(rig: Rig) -> None:
    path = write(rig.root / "m.gguf", base())
    catalogue = rig()
    with catalogue.snapshot(b"m") as snapshot:
        key = snapshot.key
    catalogue.forget_gone()
    assert catalogue.figures()["open_models"] == 1
    path.unlink()
    catalogue.forget_gone()
    assert catalogue.figures()["open_models"] == 0
    assert rig.gone == [key]


def test_a_root_that_is_away_for_a_moment_closes_nothing(tmp_path: Path) -> None:
    root = tmp_path / "volume"
    root.mkdir()
    (root / "m.gguf").write_bytes(base())
    gone: list[bytes] = []
    catalogue = Catalogue(Volume(root), most_open=4, recheck_seconds=0, on_gone=gone.append)
    with catalogue.snapshot(b"m") as before:
        root.rename(tmp_path / "away")
        with pytest.raises(Unavailable):
            catalogue.snapshot(b"m")
        catalogue.forget_gone()
        (tmp_path / "away").rename(root)
        with catalogue.snapshot(b"m") as after:
            assert after is before
    assert gone == []
    (root / "m.gguf").unlink()
    catalogue.forget_gone()
    assert len(gone) == 1
    catalogue.close()
