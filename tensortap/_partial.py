r"""A file that comes in pieces, in any order and over several runs, until it is whole.

Beside ``model.safetensors`` lie ``model.safetensors.part``, of the full length from the start, and
``model.safetensors.part.json``, which says of which body it is and what of it is there:

    {"etag": "\"…\"", "length": 538085824, "pieces": [[first byte, byte after the last, CRC-32], …]}

The second is written by renaming after each piece, or, where it is so long that this takes a while, for a twentieth of
the time: a run that was killed loses what came after that, no more. What a power cut takes from the first is noticed:
pieces are read back and compared before they are trusted.
"""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Self

__all__ = ["PartialFile"]

_REST = 20  # times as long as a save took, until the next
_READ_BYTES = 1 << 20


class PartialFile:
    """What there is of a file, ``target``; its methods may be called from any thread. `PartialFile.open` makes one."""

    def __init__(self, target: Path, file: BinaryIO, etag: str, length: int) -> None:
        self.target = target
        self._file = file
        self._etag = etag
        self._length = length
        self._pieces: list[tuple[int, int, int]] = []
        self._lock = threading.Lock()
        self._saving = threading.Lock()
        self._rests_until = -math.inf

    @classmethod
    def open(cls, target: Path, etag: str, length: int) -> Self:
        """Go on with what is there of a body, or begin anew where nothing is, or something else.

        Raises
        ------
        BlockingIOError
            Another process writes to it.
        OSError
            The disk has no room for what is missing, or the file cannot be written.
        """
        file = _locked(_part(target))
        try:
            partial = cls(target, file, etag, length)
            partial._resume()
            missing = sum(stop - first for first, stop in partial.missing(length))
            if shutil.disk_usage(target.absolute().parent).free < missing:
                raise OSError(errno.ENOSPC, f"the disk has no room for the {missing} bytes to come", str(target))
        except BaseException:
            file.close()
            raise
        return partial

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
            self._file.close()
        os.replace(_part(self.target), self.target)
        _state(self.target).unlink(missing_ok=True)

    def close(self) -> None:
        """Leave it as it is, for another run; nothing after `finish`."""
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
