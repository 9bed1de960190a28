r"""A file that comes in pieces, in any order and over several runs, until it is whole.

Beside ``model.safetensors`` lie ``model.safetensors.part``, of the full length from the start, and
``model.safetensors.part.json``, which says of which body it is and what of it is there:

    {"etag": "\"…\"", "length": 538085824, "pieces": [[first byte, byte after the last, CRC-32], …]}

The second is written by renaming after each piece, or, where it is so long that this takes a while, for a twentieth of
the time: a run that was killed loses what came after that, no more. What a power cut takes from the first is noticed:
pieces are read back and compared before they are trusted. It is there before the first has a byte, so a ``.part``
that has bytes and no ``.part.json`` is somebody else's, and left alone.
"""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import stat
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Self

__all__ = ["PartialFile", "refuse_folder", "remove_foreign_part"]

_REST = 20  # times as long as a save took, until the next
_READ_BYTES = 1 << 20


class PartialFile:
    """What there is of a file, ``target``, that is to have ``length`` bytes of the body of an ETag.

    Nothing is touched before `open`; `close` may be called whether it came to that or not. After `open`, the methods
    may be called from any thread.
    """

    _file: BinaryIO

    def __init__(self, target: Path, etag: str, length: int) -> None:
        self.target = target
        self._etag = etag
        self._length = length
        self._pieces: list[tuple[int, int, int]] = []
        self._lock = threading.Lock()
        self._saving = threading.Lock()
        self._rests_until = -math.inf

    def open(self) -> Self:
        """Go on with what is there of the body, or begin anew where nothing is, or what is of another; gives itself.

        Raises
        ------
        BlockingIOError
            Another process writes to it.
        FileExistsError
            A file lies in its place that no pull has made.
        OSError
            The disk has no room for what is missing, or the file cannot be written.
        """
        part = _part(self.target)
        file = _locked(part)
        try:
            if _is_foreign(os.fstat(file.fileno()), self.target):
                raise FileExistsError(
                    errno.EEXIST, "is there already, and no pull has made it: move it away", str(part)
                )
            self._file = file
            self._resume()
            missing = sum(stop - first for first, stop in self.missing(self._length))
            if shutil.disk_usage(self.target.absolute().parent).free < missing:
                raise OSError(errno.ENOSPC, f"the disk has no room for the {missing} bytes to come", str(self.target))
        except BaseException:
            file.close()
            raise
        return self

    def missing(self, piece_bytes: int) -> Iterator[tuple[int, int]]:
        """What is not there, in order, as intervals ``(first, stop)`` of at most ``piece_bytes`` bytes."""
        with self._lock:
            there = sorted((first, stop) for first, stop, _ in self._pieces)
        at = 0
        for first, stop in [*there, (self._length, self._length)]:
            for start in range(at, first, piece_bytes):
                yield start, min(start + piece_bytes, first)
            at = max(at, stop)

    def write(self, first: int, data: bytes | memoryview) -> None:
        """Put bytes in their place, and note that they are there; after `close`, nothing."""
        check = zlib.crc32(data)
        with self._lock:
            if self._file.closed:
                return
            self._file.seek(first)
            left = memoryview(data)
            while left:
                left = left[self._file.write(left) :]
            self._pieces.append((first, first + len(data), check))
        if time.monotonic() >= self._rests_until and self._saving.acquire(blocking=False):
            try:
                self._save()
            finally:
                self._saving.release()

    def read(self, first: int, n_bytes: int) -> bytes:
        """Bytes of it, as they are on the disk; fewer at its end."""
        with self._lock:
            self._file.seek(first)
            pieces = []
            while n_bytes and (piece := self._file.read(min(n_bytes, _READ_BYTES))):
                pieces.append(piece)
                n_bytes -= len(piece)
            return b"".join(pieces)

    def finish(self) -> None:
        """Make it durable, and give it its name, in place of a file that has it."""
        with self._lock:
            os.fsync(self._file.fileno())
            if sys.platform == "win32":  # which renames no open file
                self._file.close()
            # The lock lasts until the name is another: who gets it after that finds so, and begins a file of its own.
            os.replace(_part(self.target), self.target)
            try:
                _state(self.target).unlink(missing_ok=True)
                _sync_folder(self.target.absolute().parent)
            finally:
                self._file.close()

    def close(self) -> None:
        """Leave it as it is, for another run; nothing after `finish`, and where it was not opened."""
        if not hasattr(self, "_file"):
            return
        with self._lock:
            is_open = not self._file.closed
            self._file.close()
        if is_open:
            with self._saving:
                self._save()

    def _resume(self) -> None:
        """Take over those pieces of an earlier run that are of this body and still what they were."""
        state = _loaded(_state(self.target))
        if state.get("etag") == self._etag and state.get("length") == self._length == _size(self._file):
            self._pieces = [piece for piece in _pieces(state.get("pieces"), self._length) if self._is_sound(*piece)]
            return
        self._file.truncate(0)
        self._save()  # before it has bytes, which are nobody's without
        self._file.truncate(self._length)

    def _is_sound(self, first: int, stop: int, check: int) -> bool:
        found, at = 0, first
        self._file.seek(first)
        while at < stop:
            piece = self._file.read(min(stop - at, _READ_BYTES))
            if not piece:
                return False
            found, at = zlib.crc32(piece, found), at + len(piece)
        return found == check

    def _save(self) -> None:
        began = time.monotonic()
        with self._lock:
            pieces = sorted(self._pieces)
        state = _state(self.target)
        fresh = state.with_name(f"{state.name}.{os.getpid()}")
        try:
            fresh.write_text(json.dumps({"etag": self._etag, "length": self._length, "pieces": pieces}), "utf-8")
            os.replace(fresh, state)
        finally:
            fresh.unlink(missing_ok=True)
        now = time.monotonic()
        self._rests_until = now + _REST * (now - began)


def refuse_folder(target: Path) -> None:
    """Raise IsADirectoryError where a folder has the name that a file is to get: renaming would notice at the end."""
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))


def remove_foreign_part(target: Path) -> None:
    """Remove the regular file, if there is one, that no pull has made and that is in the way of one to ``target``."""
    part = _part(target)
    with suppress(FileNotFoundError):
        found = part.stat()
        if stat.S_ISREG(found.st_mode) and _is_foreign(found, target):
            part.unlink()


def _is_foreign(part: os.stat_result, target: Path) -> bool:
    """Whether what is in the place of the part is none; where nothing is in it, nothing is lost."""
    return not stat.S_ISREG(part.st_mode) or (part.st_size > 0 and not _state(target).exists())


def _sync_folder(folder: Path) -> None:
    """Make the names in a folder durable, where the system has that."""
    if sys.platform != "win32":
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(opened)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems sync no folders
                raise
        finally:
            os.close(opened)


def _part(target: Path) -> Path:
    return target.with_name(f"{target.name}.part")


def _state(target: Path) -> Path:
    return target.with_name(f"{target.name}.part.json")


def _locked(path: Path) -> BinaryIO:
    """The file at a path, made if there is none, with a lock that ends with the process."""
    while True:
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o666), "r+b", buffering=0)
        try:
            _lock(file, path)
            if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                return file
        except FileNotFoundError:
            pass  # as where another file is there by now: who had the lock has finished, and given it its name
        except BaseException:
            file.close()
            raise
        file.close()


def _lock(file: BinaryIO, path: Path) -> None:
    if sys.platform != "win32":
        import fcntl

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BlockingIOError(errno.EWOULDBLOCK, "another process is pulling into it", str(path)) from None


def _size(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size


def _loaded(path: Path) -> dict[str, Any]:
    """A state that was saved; empty for none, and for what is none."""
    try:
        state = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}


def _pieces(listed: Any, length: int) -> Iterator[tuple[int, int, int]]:
    """The pieces of a state, without what is none."""
    for piece in listed if isinstance(listed, list) else ():
        match piece:
            case [int(first), int(stop), int(check)] if 0 <= first < stop <= length:
                yield first, stop, check
