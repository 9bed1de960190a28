"""The cache on the disk: bytes of bodies in a folder that several processes share. Needs diskcache.

A body is cut into regions of 1 MiB. A record of a region lists the segments of it that are here, as JSON; each segment
is a record of its own, with a checksum before it. diskcache keeps records in SQLite and in files, and evicts; nothing
that it reads is unpickled, and no file is touched whose name is not of its making.
"""

from __future__ import annotations

import json
import re
import sqlite3
import threading
import warnings
import zlib
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

import diskcache

from ._segments import Piece

__all__ = ["DiskSegments"]

T = TypeVar("T")
Jobs = SimpleQueue[Callable[[], object] | None]  # None is the last

_REGION = 1 << 20
_MOST_SEGMENTS = 512  # of a region: its list is read and written whole
_LOCKED_SECONDS = 0.5  # how long to wait for another process that writes; the service is never much further away
_CHECK_BYTES = 4
_FILE = re.compile(r"[0-9a-f]{2}/[0-9a-f]{2}/[0-9a-f]{28}\.val")


class _PlainDisk(diskcache.Disk):  # type: ignore[misc] # it has no types
    """Records of bytes alone: what another program has put there is not unpickled, and leads to no other file."""

    def get(self, key: Any, raw: Any) -> Any:
        if not raw:
            raise ValueError("a key that is no text")
        return super().get(key, True)

    def fetch(self, mode: int, filename: str | None, value: Any, read: bool) -> Any:
        if mode not in (diskcache.core.MODE_RAW, diskcache.core.MODE_BINARY):
            raise ValueError("a record that is no bytes")
        if filename is not None and not _FILE.fullmatch(filename):
            raise ValueError("a record in a file of another name")
        return super().fetch(mode, filename, value, read)

    def remove(self, file_path: str) -> None:
        if _FILE.fullmatch(file_path):
            super().remove(file_path)


class DiskSegments:
    """As `tensortap._segments.Segments`, in a folder; its methods may be called from any thread.

    It never fails: where the folder cannot be used, it warns once and is empty from then on.
    """

    def __init__(self, folder: str, budget: int, url: str) -> None:
        self.budget = budget
        self._folder = folder
        self._url = url
        self._is_broken = False
        self._lock = threading.Lock()
        # One thread with one connection to the database, so that it can be closed. No executor: those share a lock,
        # which whoever the garbage collector interrupts may hold when it comes to `let_go`.
        self._jobs: Jobs | None = None
        self._thread: threading.Thread | None = None
        self._records: Any = None

    def cover(self, key: tuple[str, str, str], start: int, stop: int) -> list[Piece]:
        """The interval in pieces, in order: ``(start, stop, bytes)``, with None for what is not here."""
        return self._safely(lambda: self._cover(self._name(key), start, stop), [(start, stop, None)])

    def insert(self, key: tuple[str, str, str], start: int, data: bytes) -> None:
        """Keep some bytes; what is here already of the interval stays."""
        self._safely(lambda: self._insert(self._name(key), start, data), None)

    def close(self) -> None:
        """Close the database; another use opens it again."""
        with self._lock:  # until it is closed: nobody opens it meanwhile
            self.let_go()
            if self._thread is not None:
                self._thread.join()
                self._thread = None

    def let_go(self) -> None:
        """Have the database closed, and neither wait for it nor for any lock: for the garbage collector."""
        jobs, self._jobs = self._jobs, None
        if jobs is not None:
            jobs.put(self._close)
            jobs.put(None)

    def after_fork(self) -> None:
        """In a child: the thread and the connection are the parent's."""
        self._lock = threading.Lock()
        self._jobs = self._thread = self._records = None

    def _safely(self, work: Callable[[], T], otherwise: T) -> T:
        if self._is_broken:
            return otherwise
        done = SimpleQueue[T | Exception]()

        def job() -> None:
            try:
                done.put(self._opened(work))
            except Exception as error:
                done.put(error)

        try:
            with self._lock:
                if self._jobs is None:
                    jobs: Jobs = SimpleQueue()
                    self._thread = threading.Thread(target=_serve, args=(jobs,), name="tensortap-disk", daemon=True)
                    self._thread.start()
                    self._jobs = jobs
                self._jobs.put(job)
            result = done.get()
            if isinstance(result, Exception):
                raise result
            return result
        except diskcache.Timeout:
            return otherwise  # another process is at it
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                return otherwise
            self._give_up(error)
        except Exception as error:
            self._give_up(error)
        return otherwise

    def _give_up(self, error: Exception) -> None:
        with self._lock:
            was_broken, self._is_broken = self._is_broken, True
        if not was_broken:
            warnings.warn(
                f"the cache in {self._folder} cannot be used, so weights come from the service "
                f"({type(error).__name__}: {error}). If that stays so, remove the folder.",
                RuntimeWarning,
                stacklevel=2,
            )

    def _opened(self, work: Callable[[], T]) -> T:
        if self._records is None:
            Path(self._folder).mkdir(mode=0o700, parents=True, exist_ok=True)
            self._records = _records(self._folder, self.budget)
        return work()

    def _close(self) -> None:
        if self._records is not None:
            self._records.close()
            self._records = None

    def _name(self, key: tuple[str, str, str]) -> str:
        return blake2b(json.dumps([self._url, *key]).encode(), digest_size=20).hexdigest()

    def _cover(self, name: str, start: int, stop: int) -> list[Piece]:
        found: list[Piece] = []
        at = start
        for region in range(start // _REGION, -(-stop // _REGION)):
            for first, last in self._listed(name, region):
                begin, end = max(first, at), min(last, stop)
                if begin >= end:
                    continue
                data = self._segment(name, first, last)
                if data is None:
                    continue
                if begin > at:
                    found.append((at, begin, None))
                found.append((begin, end, memoryview(data)[begin - first : end - first]))
                at = end
        if at < stop:
            found.append((at, stop, None))
        return found

    def _insert(self, name: str, start: int, data: bytes) -> None:
        stop = start + len(data)
        for region in range(start // _REGION, -(-stop // _REGION)):
            begin, end = max(start, region * _REGION), min(stop, (region + 1) * _REGION)
            with self._records.transact():
                here = [one for one in self._listed(name, region) if f"{name}:s{one[0]}" in self._records]
                fresh = _without(begin, end, here)
                if not fresh or len(here) + len(fresh) > _MOST_SEGMENTS:
                    continue
                for first, last in fresh:
                    piece = data[first - start : last - start]
                    record = f"{name}:s{first}"
                    self._records.set(record, _check(record, piece) + piece)
                listed = json.dumps(sorted([*here, *fresh])).encode()
                self._records.set(f"{name}:r{region}", listed)

    def _listed(self, name: str, region: int) -> list[tuple[int, int]]:
        """The segments of a region in order, as its record lists them; those that make no sense are left out."""
        try:
            intervals = json.loads(self._records.get(f"{name}:r{region}", b"[]"))
            pairs = [(int(first), int(last)) for first, last in intervals]
        except (ValueError, TypeError, RecursionError):
            return []
        at, sound = region * _REGION, []
        for first, last in pairs:
            if at <= first < last <= (region + 1) * _REGION:
                sound.append((first, last))
                at = last
        return sound

    def _segment(self, name: str, first: int, last: int) -> bytes | None:
        """A segment's bytes; None if they are gone, or are not what was stored."""
        record = f"{name}:s{first}"
        found = self._records.get(record)
        if not isinstance(found, bytes) or len(found) != _CHECK_BYTES + last - first:
            return None
        data = found[_CHECK_BYTES:]
        return data if found[:_CHECK_BYTES] == _check(record, data) else None


def _serve(jobs: Jobs) -> None:
    """What the thread does. While it waits it refers to nothing but the queue, so that the rest can be collected."""
    while (job := jobs.get()) is not None:
        job()
        del job


def _records(folder: str, budget: int) -> Any:
    records = diskcache.Cache.__new__(diskcache.Cache)
    try:
        # Evicting by when it was stored, not used: then a read writes nothing, and waits for nobody who does.
        records.__init__(
            folder,
            timeout=_LOCKED_SECONDS,
            disk=_PlainDisk,
            size_limit=budget,
            eviction_policy="least-recently-stored",
        )
    except BaseException:
        records.close()  # the connection to what is no database
        raise
    return records


def _check(record: str, data: bytes) -> bytes:
    return zlib.crc32(data, zlib.crc32(record.encode())).to_bytes(_CHECK_BYTES, "little")


def _without(start: int, stop: int, taken: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """What is left of an interval without others, which are in order."""
    left: list[tuple[int, int]] = []
    for first, last in taken:
        if start < first < stop:
            left.append((start, first))
        if last > start:
            start = max(start, min(last, stop)) if first < stop else start
    if start < stop:
        left.append((start, stop))
    return left
