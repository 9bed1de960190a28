"""Snapshots: one open state of a model, from which a request reads from start to end."""

import hashlib
import os
import stat
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from app.errors import Unavailable
from app.gguf import Model, open_model

__all__ = ["FileIdentity", "Snapshot", "open_regular_file"]

_SAMPLED_PAGES = 16
_PAGE_BYTES = 4096
_MOST_KEPT = 1024
# A folder to go on from. Linux does not ask for permission to list it then.
_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def _two_ticks() -> float:
    """Seconds after which a file that is changed again has another mtime: the system's clock for files stands still
    for 1 to 10 ms at a time.
    """
    try:
        return 2 * time.clock_getres(5)  # Linux: CLOCK_REALTIME_COARSE
    except OSError:
        return 0.02


_SETTLING_SECONDS = _two_ticks()
_MOST_LOOKS = 5  # one that is written all the time is seen to change in what is read of it

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """What tells one state of a file from another: a change of any of these makes a new snapshot."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> Self:
        """The identity in the result of a stat call."""
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def open_regular_file(path: bytes) -> int:
    """A descriptor to read ``path``, an absolute path that leads over no link to a regular file; raises OSError.

    Where the path is what links were resolved to, a link in it was put there since, and may lead anywhere. Never waits
    for a FIFO's writer or a device, and the descriptor does not reach child processes.
    """
    *folders, name = path.split(b"/")
    at = os.open(b"/", _FOLDER)
    try:
        for folder in filter(None, folders):
            below = os.open(folder, _FOLDER, dir_fd=at)
            os.close(at)
            at = below
        fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
    finally:
        os.close(at)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError("not a regular file")
    except BaseException:
        os.close(fd)
        raise
    return fd


def _settled(fds: Sequence[int]) -> tuple[FileIdentity, ...]:
    """The identities of files from which on every change shows in them.

    What is read in the same tick as a write may be of before, between or after, and later nothing would tell.
    """
    identities = tuple(FileIdentity.of(os.fstat(fd)) for fd in fds)
    for _ in range(_MOST_LOOKS):
        # A time to come may be another machine's of just now.
        if time.time() - max(identity.mtime_ns for identity in identities) / 1e9 > _SETTLING_SECONDS:
            break
        time.sleep(_SETTLING_SECONDS)
        before, identities = identities, tuple(FileIdentity.of(os.fstat(fd)) for fd in fds)
        if identities == before:
            break
    return identities


class Snapshot:
    """A model's open files, their identities, its parsed headers and the fingerprint of its content.

    The descriptors are closed when the last holder lets go: whoever reads holds the snapshot by ``acquire`` and
    ``release``, or as a context manager. The one who opened it holds it once.
    """

    def __init__(self, model_id: bytes, fds: Sequence[int], model: Model, identities: tuple[FileIdentity, ...]) -> None:
        self.model_id = model_id
        self.model = model
        self.identities = identities
        # When the model was last modified: the latest mtime of its files, in nanoseconds since 1970.
        self.modified_ns = max(identity.mtime_ns for identity in identities)
        # A short value that stands for the identities in cache keys: hashed once, compared fast.
        self.key = hashlib.blake2b(repr(identities).encode(), digest_size=16).digest()
        self._fds = tuple(fds)
        self._holders = 1
        self._lock = threading.Lock()
        self._fingerprint: bytes | None = None
        self._kept: dict[Hashable, Any] = {}

    @classmethod
    def open(cls, model_id: bytes, paths: Sequence[bytes]) -> Self:
        """Open the files of one model, all the parts of a split set in order; raises OSError or GGUFError.

        Waits for a few milliseconds where a file was written just now, so that its next change shows.
        """
        fds: list[int] = []
        try:
            for path in paths:
                fds.append(open_regular_file(path))  # noqa: PERF401 - what is open so far must be closed on failure
            identities = _settled(fds)
            return cls(model_id, fds, open_model(fds), identities)
        except BaseException:
            for fd in fds:
                os.close(fd)
            raise

    def acquire(self) -> Self:
        """Hold the snapshot once more; the caller must know that it is held."""
        with self._lock:
            self._holders += 1
        return self

    def release(self) -> None:
        """Let go once; the last one to do so closes the files."""
        with self._lock:
            self._holders -= 1
            closing = self._holders == 0
        if closing:
            self._kept = {}  # it may hold what refers to this snapshot
            for fd in self._fds:
                os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def kept(self, key: Hashable, make: Callable[[], _T]) -> _T:
        """A small value that nobody changes and that follows from the snapshot and ``key`` alone: made once, then kept.

        It goes with the snapshot. When there are too many, all go, and those that are asked for are made again.
        """
        value: _T | None = self._kept.get(key)
        if value is None:
            value = make()
            if len(self._kept) >= _MOST_KEPT:
                self._kept = {}
            self._kept[key] = value
        return value

    def read(self, file: int, start: int, buffer: NDArray[Any]) -> None:
        """Fill ``buffer`` with the bytes of file number ``file`` from byte ``start``.

        Raises
        ------
        Unavailable
            ``volume-error``: the read failed, or the file is no longer what was opened. What was read before stays
            good; of the buffer's content nothing may be used then.
        """
        fd = self._fds[file]
        view = buffer.view(np.uint8).data
        size, done = view.nbytes, 0
        try:
            while done < size:
                count = os.preadv(fd, [view[done:]], start + done)
                if count == 0:
                    break
                done += count
            status = os.fstat(fd)
        except OSError as error:
            raise Unavailable(
                "volume-error", f"reading {size} bytes at byte {start} failed: {error.strerror or error}. Try again."
            ) from error
        opened = self.identities[file]
        # Not ctime: renaming another file over this one touches it, and this one's readers may finish.
        if done < size or (status.st_size, status.st_mtime_ns) != (opened.size, opened.mtime_ns):
            raise Unavailable(
                "volume-error", "the model's file was changed while it was read. Ask again for the new one."
            )

    def fingerprint(self) -> bytes:
        """16 bytes that stand for the content: sizes, times, the headers and 16 pages spread over each file's data.

        The same for every process that sees the same files, wherever it runs. Read once, then kept.
        """
        if self._fingerprint is None:
            digest = hashlib.blake2b(digest_size=16)
            for file, (identity, header) in enumerate(zip(self.identities, self.model.headers, strict=True)):
                digest.update(f"{identity.size} {identity.mtime_ns} {header.data_start}\n".encode())
                data_start = min(header.data_start, identity.size)
                pages = [(0, data_start)]
                data_bytes = identity.size - data_start
                last = max(0, data_bytes - _PAGE_BYTES)
                pages += (
                    (data_start + offset, min(_PAGE_BYTES, data_bytes - offset))
                    for offset in sorted({last * page // (_SAMPLED_PAGES - 1) for page in range(_SAMPLED_PAGES)})
                )
                for start, size in pages:
                    page = np.empty(size, np.uint8)
                    self.read(file, start, page)
                    digest.update(page.data)
            self._fingerprint = digest.digest()
        return self._fingerprint
