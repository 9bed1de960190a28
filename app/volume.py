"""The volume: which models lie below the root, under which ids, and in which files. Looks at names and stat only.

A model id is the path below the root without ``.gguf`` and, for a split set, without ``-0000N-of-0000M``. Ids,
names and paths are bytes: what the file system has, whatever its encoding.
"""

import os
import stat
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from app.gguf import part_name, split_name

__all__ = ["Found", "Volume"]

_SUFFIX = b".gguf"
_NAMED_MISSING = 8
_LONGEST_ID = 4096  # PATH_MAX: nothing longer can be a path
_NO_NAMES = (b"", b".", b"..")  # what no part of an id can be: a file called ".gguf" is no model


@dataclass(frozen=True, slots=True)
class Found:
    """A model's place: its id and real paths, in the order of the parts; ``missing`` names absent parts."""

    model_id: bytes
    paths: tuple[bytes, ...]
    missing: tuple[bytes, ...] = ()


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

    @property
    def root(self) -> bytes:
        """The real path of the folder now: where the root is a link, it may be switched while the service runs."""
        return os.path.realpath(self._path)

    def readable(self) -> bool:
        """Whether the root is a folder that can be listed now."""
        try:
            with os.scandir(self.root):
                return True
        except OSError:
            return False

    def find(self, model_id: bytes) -> Found | None:
        """The place of one model by its id or by a real file name below the root, or None; looks at one folder.

        A file is preferred to a split set of the same id. A part's own file name gives that part alone.
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
        except OSError:
            return None
        parts = [name for name in siblings if (part := split_name(name)) and part.stem == stem]
        real_files = {name: real for name in parts if (real := self._real_file(root, os.path.join(folder, name)))}
        best = _best_set(real_files, stem)
        return _found_set(model_id, stem, *best, real_files) if best else None

    def walk(self) -> Iterator[Found]:
        """Every model at any depth, folder by folder in the order of names; folders that cannot be listed are skipped.

        Links to folders inside the root are not followed: their models are found where they lie.
        """
        seen: set[tuple[int, int]] = set()
        root = self.root
        folders = [root]
        while folders:
            folder = folders.pop()
            try:
                with os.scandir(folder) as entries:
                    listed = sorted(entries, key=lambda entry: entry.name)
                status = os.stat(folder)
            except OSError:
                continue
            if (status.st_dev, status.st_ino) in seen:  # by way of links, where those may lead anywhere
                continue
            seen.add((status.st_dev, status.st_ino))
            below = [entry.path for entry in listed if self._is_followed_folder(entry)]
            folders += reversed(below)
            yield from self._models_in(root, folder, [entry for entry in listed if _is_model_name(entry.name)])

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
            if (real := entry.path if entry.is_file(follow_symlinks=False) else self._real_file(root, entry.path))
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
        """The real path of a regular file that may be served, else None."""
        try:
            real = os.path.realpath(path, strict=True)
            if not stat.S_ISREG(os.stat(real).st_mode):
                return None
        except OSError:
            return None
        inside = real.startswith(root.rstrip(b"/") + b"/")
        return real if inside or self._outside_symlinks else None


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
