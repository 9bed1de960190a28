"""The volume: which models lie below the root, under which ids, and in which files. Looks at names and stat only.

A model id is the path below the root without ``.gguf`` and, for a split set, without ``-0000N-of-0000M``. Ids,
names and paths are bytes: what the file system has, whatever its encoding.
"""

import errno
import logging
import os
import stat
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from app.errors import Unavailable, exhausted
from app.gguf import part_name, split_name

__all__ = ["Found", "Volume", "is_absence", "volume_error"]

_log = logging.getLogger("tensortap")
_SUFFIX = b".gguf"
_NAMED_MISSING = 8
_LONGEST_ID = 4096  # PATH_MAX: nothing longer can be a path
_NO_NAMES = (b"", b".", b"..")  # what no part of an id can be: a file called ".gguf" is no model
# What the system says of a path where nothing is, or can be. Anything else says nothing of what is there.
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL})


@dataclass(frozen=True, slots=True)
class Found:
    """A model's place: its id and real paths, in the order of the parts; ``missing`` names absent parts."""

    model_id: bytes
    paths: tuple[bytes, ...]
    missing: tuple[bytes, ...] = ()


def is_absence(error: OSError) -> bool:
    """Whether an error of a path says that nothing is there, and not that the volume could not tell."""
    return error.errno in _ABSENT


def volume_error(error: OSError, what: str) -> Unavailable:
    """The answer where the volume could not tell: ``volume-error``, or ``overloaded`` where the system is exhausted."""
    return exhausted(error) or Unavailable("volume-error", f"{what} failed: {error.strerror or error}. Try again.")


class Volume:
    """The folder that is served.

    Parameters
    ----------
    root
        The folder; it may be absent for a while, as on a network mount, and then holds nothing.
    outside_symlinks
        Also follow symbolic links that lead out of the root.
    """

    def __init__(self, root: Path, *, outside_symlinks: bool = False) -> None:
        self._path = os.fsencode(os.path.abspath(root))
        self._outside_symlinks = outside_symlinks
        self._skipped: dict[bytes, int | None] = {}

    @property
    def root(self) -> bytes:
        """The real path of the folder now: where the root is a link, it may be switched while the service runs."""
        return os.path.realpath(self._path)

    def check(self) -> None:
        """Return if the root is a folder that can be listed now.

        Raises
        ------
        Unavailable
            ``volume-error``, or ``overloaded`` where the system is exhausted.
        """
        try:
            with os.scandir(self.root):
                pass
        except OSError as error:
            raise exhausted(error) or Unavailable(
                "volume-error", f"the volume cannot be listed now: {error.strerror or error}. Is it mounted?"
            ) from error

    def readable(self) -> bool:
        """Whether the root is a folder that can be listed now."""
        try:
            self.check()
        except Unavailable:
            return False
        return True

    def find(self, model_id: bytes) -> Found | None:
        """The place of one model by its id or by a real file name below the root, or None; looks at one folder.

        A file is preferred to a split set of the same id. A part's own file name gives that part alone.

        Raises
        ------
        Unavailable
            ``volume-error`` or ``overloaded``: the volume does not tell what is there.
        """
        names = model_id.split(b"/")
        if len(model_id) > _LONGEST_ID or b"\0" in model_id or any(name in _NO_NAMES for name in names):
            return None
        root = self.root
        path = os.path.join(root, model_id)
        if real := self._real_file(root, path + _SUFFIX):
            return Found(model_id, (real,))
        if _is_model_name(names[-1]) and (real := self._real_file(root, path)):
            return Found(model_id[: -len(_SUFFIX)], (real,))
        folder, stem = os.path.split(path)
        try:
            siblings = [name for name in os.listdir(folder) if name.startswith(stem + b"-")]
        except OSError as error:
            if is_absence(error) or not self._is_inside(root, os.path.realpath(folder)):
                return None
            raise volume_error(error, "listing the folder") from error
        parts = [name for name in siblings if (part := split_name(name)) and part.stem == stem]
        real_files = {name: real for name in parts if (real := self._real_file(root, os.path.join(folder, name)))}
        best = _best_set(real_files, stem)
        return _found_set(model_id, stem, *best, real_files) if best else None

    def walk(self) -> Iterator[Found]:
        """Every model at any depth, folder by folder in the order of names.

        Links to folders inside the root are not followed: their models are found where they lie. A folder below the
        root that cannot be listed is skipped, which is logged when it begins.

        Raises
        ------
        Unavailable
            ``volume-error``: the root cannot be listed. ``overloaded``: the system is exhausted.
        """
        self.check()
        seen: set[tuple[int, int]] = set()
        skipped: dict[bytes, int | None] = {}
        root = self.root
        folders = [root]
        while folders:
            folder = folders.pop()
            try:
                with os.scandir(folder) as entries:
                    listed = sorted(entries, key=lambda entry: entry.name)
                status = os.stat(folder)
            except OSError as error:
                if folder == root or exhausted(error):
                    raise volume_error(error, "listing the volume") from error
                if not is_absence(error):
                    skipped[folder] = error.errno
                    if self._skipped.get(folder) != error.errno:
                        _log.warning("a folder is left out of the list: %s: %s", os.fsdecode(folder), error.strerror)
                continue
            if (status.st_dev, status.st_ino) in seen:  # by way of links, where those may lead anywhere
                continue
            seen.add((status.st_dev, status.st_ino))
            below = [entry.path for entry in listed if self._is_followed_folder(entry)]
            folders += reversed(below)
            yield from self._models_in(root, folder, [entry for entry in listed if _is_model_name(entry.name)])
        self._skipped = skipped

    def _is_followed_folder(self, entry: os.DirEntry[bytes]) -> bool:
        try:
            return entry.is_dir(follow_symlinks=self._outside_symlinks)
        except OSError:
            return False

    def _models_in(self, root: bytes, folder: bytes, entries: list[os.DirEntry[bytes]]) -> list[Found]:
        prefix = folder[len(root) :].lstrip(b"/") + b"/" if folder != root else b""
        # The kind of an entry comes with the listing: a network mount is asked nothing more about plain files.
        real_files = {
            entry.name: real
            for entry in entries
            if (real := entry.path if _is_plain_file(entry) else self._linked_file(root, entry.path))
        }
        plain = set(real_files)
        sets: dict[bytes, list[bytes]] = defaultdict(list)
        for name in real_files:
            if (part := split_name(name)) and part.stem not in _NO_NAMES:
                sets[part.stem].append(name)
        found: list[Found] = []
        for stem, parts in sets.items():
            best = None if stem + _SUFFIX in real_files else _best_set(parts, stem)
            if best:
                found.append(_found_set(prefix + stem, stem, *best, real_files))
                plain.difference_update(part_name(stem, number, best[0]) for number in best[1])
        found += (Found(prefix + name[: -len(_SUFFIX)], (real_files[name],)) for name in plain)
        return sorted(found, key=lambda one: one.model_id)

    def _real_file(self, root: bytes, path: bytes) -> bytes | None:
        """The real path of a regular file that may be served, else None; raises Unavailable where nobody can tell."""
        try:
            real = os.path.realpath(path, strict=True)
            if not self._is_inside(root, real):
                return None
            return real if stat.S_ISREG(os.stat(real).st_mode) else None
        except OSError as error:
            # Of a place outside nothing is told, be it there or not.
            if is_absence(error) or not self._is_inside(root, os.fsencode(error.filename or path)):
                return None
            raise volume_error(error, "looking for the file") from error

    def _linked_file(self, root: bytes, path: bytes) -> bytes | None:
        """As `_real_file`, for a list: a link that cannot be followed is left out of it."""
        try:
            return self._real_file(root, path)
        except Unavailable as error:
            if error.slug == "overloaded":
                raise
            return None

    def _is_inside(self, root: bytes, real: bytes) -> bool:
        return self._outside_symlinks or real == root or real.startswith(root.rstrip(b"/") + b"/")


def _is_model_name(name: bytes) -> bool:
    return name.endswith(_SUFFIX) and name[: -len(_SUFFIX)] not in _NO_NAMES


def _found_set(model_id: bytes, stem: bytes, count: int, present: set[int], real_files: dict[bytes, bytes]) -> Found:
    paths = tuple(real_files[part_name(stem, number, count)] for number in sorted(present))
    # A name may promise 99,999 parts: a few missing ones are enough to tell.
    absent = (number for number in range(1, count + 1) if number not in present)
    return Found(model_id, paths, tuple(part_name(stem, number, count) for number in islice(absent, _NAMED_MISSING)))


def _best_set(names: Iterable[bytes], stem: bytes) -> tuple[int, set[int]] | None:
    """Of the sets that ``names`` hold for ``stem``, one that is whole, else any: its count and its part numbers."""
    sets: dict[int, set[int]] = defaultdict(set)
    for name in names:
        part = split_name(name)
        if part and part.stem == stem:
            sets[part.count].add(part.number)
    if not sets:
        return None
    return min(sets.items(), key=lambda item: (len(item[1]) < item[0], item[0]))


def _is_plain_file(entry: os.DirEntry[bytes]) -> bool:
    """Whether an entry is a regular file and no link. Some file systems must be asked, and may fail for this one."""
    try:
        return entry.is_file(follow_symlinks=False)
    except OSError as error:
        if problem := exhausted(error):
            raise problem from error
        return False
