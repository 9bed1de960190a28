"""Snapshots: what they read, that they notice change, and that they close their files."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from app.errors import Unavailable
from app.gguf import GGUFError
from app.snapshot import FileIdentity, Snapshot, open_regular_file
from tests.builder import I32, U16, base, build

F32 = 0
MIB = 1 << 20


def open_fds() -> set[str]:
    gc.collect()  # what other tests have left behind goes now, and not while one counts
    return set(os.listdir("/proc/self/fd"))


@pytest.fixture(autouse=True)
def no_fd_is_left() -> Iterator[None]:
    before = len(open_fds())
    yield
    assert len(open_fds()) <= before


def opened(*paths: Path) -> Snapshot:
    return Snapshot.open(b"m", [os.fsencode(path) for path in paths])


def read(snapshot: Snapshot, file: int, start: int, size: int) -> bytes:
    content = np.zeros(size, np.uint8)
    snapshot.read(file, start, content)
    return content.tobytes()


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def large(n_bytes: int = MIB) -> bytes:
    data = (bytes(range(251)) * (n_bytes // 251 + 1))[:n_bytes]
    return build([("w", [1024, n_bytes // 4096], F32, data)])


def retimed(path: Path) -> os.stat_result:
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    return status


def test_reads_give_the_bytes_of_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", base())
    with opened(path) as snapshot:
        assert read(snapshot, 0, 0, 160) == path.read_bytes()
        assert read(snapshot, 0, 128, 32) == path.read_bytes()[128:]
        assert read(snapshot, 0, 5, 0) == b""
        assert snapshot.modified_ns == path.stat().st_mtime_ns


@pytest.mark.parametrize("dtype", ["<f4", "<u2", "V16"])
def test_any_contiguous_array_is_filled(tmp_path: Path, dtype: str) -> None:
    with opened(write(tmp_path / "m.gguf", base())) as snapshot:
        items = np.zeros(32 // np.dtype(dtype).itemsize, dtype)
        snapshot.read(0, 128, items)
    assert items.tobytes() == base()[128:]


def test_short_reads_of_the_system_are_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "m.gguf", base())
    real = os.preadv
    with opened(path) as snapshot:
        monkeypatch.setattr(os, "preadv", lambda fd, buffers, at: real(fd, [memoryview(buffers[0])[:7]], at))
        assert read(snapshot, 0, 0, 160) == path.read_bytes()


def test_a_read_past_the_end_is_refused(tmp_path: Path) -> None:
    with opened(write(tmp_path / "m.gguf", base())) as snapshot, pytest.raises(Unavailable) as refused:
        read(snapshot, 0, 100, 61)
    assert refused.value.slug == "volume-error"
    assert refused.value.status == 503


@pytest.mark.case(39)
def test_an_error_of_the_system_is_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> int:
        raise OSError(5, "Input/output error")

    with opened(write(tmp_path / "m.gguf", base())) as snapshot:
        monkeypatch.setattr(os, "preadv", fails)
        with pytest.raises(Unavailable, match="Input/output error"):
            read(snapshot, 0, 0, 160)


@pytest.mark.case(39)
@pytest.mark.parametrize("change", ["shorter", "longer", "rewritten", "touched"])
def test_a_file_changed_in_place_is_not_read(tmp_path: Path, change: str) -> None:
    path = write(tmp_path / "m.gguf", base())
    with opened(path) as snapshot:
        read(snapshot, 0, 0, 160)
        if change == "shorter":
            os.truncate(path, 150)
        elif change == "longer":
            os.truncate(path, 200)
        else:
            if change == "rewritten":
                path.write_bytes(bytes(160))
            retimed(path)
        with pytest.raises(Unavailable, match="changed"):
            read(snapshot, 0, 0, 100)


@pytest.mark.case(39)
def test_a_change_during_the_read_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "m.gguf", base())
    real = os.preadv

    def preadv(fd: int, buffers: list[memoryview], at: int) -> int:
        count = real(fd, buffers, at)
        retimed(path)
        return count

    with opened(path) as snapshot:
        monkeypatch.setattr(os, "preadv", preadv)
        with pytest.raises(Unavailable, match="changed"):
            read(snapshot, 0, 0, 160)


@pytest.mark.case(25)
@pytest.mark.parametrize("fate", ["replaced", "removed"])
def test_a_replaced_or_removed_file_can_be_read_to_its_end(tmp_path: Path, fate: str) -> None:
    """The open file is the old one, whatever its name leads to now."""
    path = write(tmp_path / "m.gguf", base())
    with opened(path) as snapshot:
        if fate == "replaced":
            write(tmp_path / "new", bytes(160)).rename(path)
        else:
            path.unlink()
        assert read(snapshot, 0, 0, 160) == base()


def test_the_key_tells_states_apart(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", base())
    with opened(path) as first, opened(path) as same:
        assert first.key == same.key
        assert first.identities == same.identities == (FileIdentity.of(path.stat()),)
        status = path.stat()
        write(tmp_path / "new", base()).rename(path)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        with opened(path) as second:
            assert second.key != first.key


def test_the_fingerprint_is_of_the_content_not_of_the_place(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", large())
    copy = write(tmp_path / "copy.gguf", large())
    status = path.stat()
    os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))
    with opened(path) as first, opened(path) as second, opened(copy) as other:
        assert len(first.fingerprint()) == 16
        assert first.fingerprint() == first.fingerprint() == second.fingerprint() == other.fingerprint()
        assert other.key != first.key


@pytest.mark.parametrize("place", ["header", "first", "last", "middle", "time", "size"])
def test_the_fingerprint_tells_contents_apart(tmp_path: Path, place: str) -> None:
    path = write(tmp_path / "m.gguf", large())
    with opened(path) as snapshot:
        before = snapshot.fingerprint()
        data_start = snapshot.model.headers[0].data_start
        # The eighth of sixteen pages spread evenly, the first and last at the edges.
        middle = data_start + (MIB - 4096) * 7 // 15
    status = path.stat()
    content = bytearray(path.read_bytes())
    if place == "size":
        content += b"\0"
    elif place != "time":
        at = {"header": content.index(b"w\x02"), "first": data_start, "last": len(content) - 1, "middle": middle}[place]
        content[at] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + (place == "time")))
    with opened(path) as snapshot:
        assert snapshot.fingerprint() != before


@pytest.mark.parametrize("n_bytes", [0, 4096, 8192, 20480])
def test_small_files_have_fingerprints_too(tmp_path: Path, n_bytes: int) -> None:
    path = write(tmp_path / "m.gguf", large(n_bytes))
    with opened(path) as snapshot:
        before = snapshot.fingerprint()
    status = path.stat()
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with opened(path) as snapshot:
        assert (snapshot.fingerprint() != before) or not n_bytes


def test_a_fingerprint_is_read_once(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", base())
    with opened(path) as snapshot:
        before = snapshot.fingerprint()
        retimed(path)
        assert snapshot.fingerprint() == before


def test_a_fingerprint_of_a_changed_file_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", base())
    with opened(path) as snapshot:
        retimed(path)
        with pytest.raises(Unavailable):
            snapshot.fingerprint()


def test_the_last_holder_closes_the_files(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", base())
    before = len(open_fds())
    snapshot = opened(path)
    assert snapshot.acquire() is snapshot
    snapshot.release()
    assert len(open_fds()) == before + 1
    assert read(snapshot, 0, 0, 4) == b"GGUF"
    snapshot.release()
    assert len(open_fds()) == before


def test_a_release_too_many_closes_no_file_of_others(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", base())
    snapshot = opened(path)
    snapshot.release()
    with opened(path) as other:  # takes the same descriptor number
        snapshot.release()
        assert read(other, 0, 0, 4) == b"GGUF"


def test_a_split_set_is_read_part_by_part(tmp_path: Path) -> None:
    names = [f"m-0000{number}-of-00002.gguf" for number in (1, 2)]
    one = build((), [("split.no", U16, 0), ("split.count", U16, 2), ("split.tensors.count", I32, 1)])
    two = build([("w", [4], F32, bytes(range(16)))], [("split.no", U16, 1), ("split.count", U16, 2)])
    paths = [write(tmp_path / name, data) for name, data in zip(names, (one, two), strict=True)]
    with opened(*paths) as snapshot:
        tensor = snapshot.model.find(b"w")
        assert tensor.file == 1
        assert read(snapshot, 1, tensor.start, 16) == bytes(range(16))
        assert read(snapshot, 0, 0, len(one)) == one
        before = snapshot.fingerprint()
        assert len(snapshot.identities) == 2
    retimed(paths[1])
    with opened(*paths) as snapshot:
        assert snapshot.fingerprint() != before
        assert snapshot.modified_ns == max(path.stat().st_mtime_ns for path in paths)


def test_what_fails_to_open_leaves_no_file_open(tmp_path: Path) -> None:
    good, bad = write(tmp_path / "good.gguf", base()), write(tmp_path / "bad.gguf", b"no model")
    with pytest.raises(GGUFError):
        opened(bad)
    with pytest.raises(GGUFError):
        opened(good, bad)
    with pytest.raises(FileNotFoundError):
        opened(good, tmp_path / "missing.gguf")


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(write(tmp_path / "m.gguf", base()))
    for name in ("pipe", "link", "", "missing"):
        with pytest.raises(OSError, match=r".+"):
            open_regular_file(os.fsencode(tmp_path / name))
    fd = open_regular_file(os.fsencode(tmp_path / "m.gguf"))
    assert not os.get_inheritable(fd)
    os.close(fd)


def test_a_folder_that_becomes_a_link_leads_nowhere(tmp_path: Path) -> None:
    inside, outside = tmp_path / "volume" / "a" / "b", tmp_path / "outside"
    for folder in (inside, outside):
        folder.mkdir(parents=True)
        (folder / "m.gguf").write_bytes(base())
    path = os.fsencode(inside / "m.gguf")
    os.close(open_regular_file(path))
    n_open = len(open_fds())
    for replaced in (inside, inside.parent):
        replaced.rename(tmp_path / "away")
        replaced.symlink_to(outside if replaced is inside else tmp_path / "away")
        with pytest.raises(OSError):  # noqa: PT011 - what the system says of a link here differs
            open_regular_file(path)
        replaced.unlink()
        (tmp_path / "away").rename(replaced)
    os.close(open_regular_file(path))
    assert len(open_fds()) == n_open


def test_what_is_kept_is_made_once_goes_when_it_is_much_and_goes_with_the_files(tmp_path: Path) -> None:
    made: list[int] = []

    def make(number: int) -> list[int]:
        made.append(number)
        return [number]

    with opened(write(tmp_path / "m.gguf", base())) as snapshot:
        first = snapshot.kept(0, lambda: make(0))
        assert snapshot.kept(0, lambda: make(0)) is first
        for number in range(5000):
            assert snapshot.kept(number, lambda number=number: make(number)) == [number]  # type: ignore[misc]
        assert len(snapshot._kept) <= 1024
        assert snapshot.kept(0, lambda: make(0)) == [0]
        assert (made.count(0), made.count(7)) == (2, 1)
    assert snapshot._kept == {}
