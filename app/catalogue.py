"""The catalogue: from a model id to a snapshot, and the list of all models.

Files are told apart by stat alone: an open snapshot is used while the stat of its files stays what it was, and a
listed model is described anew only when it does not. A look at the volume holds for ``recheck_seconds``.
Every method may wait for the volume (a network mount may be slow): call them from a thread, except `Catalogue.recent`.
"""

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from app.errors import NotFound, Problem, Unavailable, Unreadable
from app.gguf import GGUFError, SplitError
from app.snapshot import FileIdentity, Snapshot
from app.summary import Summary, summarize
from app.volume import Found, Volume

__all__ = ["Catalogue", "Listed", "no_such_model"]

# Headers of open models may hold large vocabularies; past this, the models used longest ago are closed.
_MOST_HEADER_BYTES = 256 << 20

_VERBS = frozenset({b"metadata", b"tensors", b"data", b"safetensors"})

_P = TypeVar("_P", bound=Problem)


@dataclass(frozen=True, slots=True)
class Listed:
    """One line of the list of models: its summary, or the problem that keeps it from being read."""

    model_id: bytes
    files: int
    bytes: int
    summary: Summary | None
    problem: Problem | None


@dataclass(slots=True)
class _Entry:
    """What came of opening a model: a snapshot, held once, or the problem; good while the files stay what they were."""

    found: Found
    identities: tuple[FileIdentity, ...]
    outcome: Snapshot | Unreadable
    checked: float

    @property
    def header_bytes(self) -> int:
        return self.outcome.model.memory_bytes if isinstance(self.outcome, Snapshot) else 0

    def close(self) -> None:
        if isinstance(self.outcome, Snapshot):
            self.outcome.release()


class Catalogue:
    """The models of a volume.

    Parameters
    ----------
    volume
        Where they lie.
    most_open
        How many snapshots stay open between requests.
    recheck_seconds
        How long a look at the volume holds.
    on_gone
        Called with the key of a snapshot whose files were replaced or removed, so that its windows can be dropped.
    """

    def __init__(
        self, volume: Volume, *, most_open: int, recheck_seconds: float, on_gone: Callable[[bytes], None]
    ) -> None:
        self.volume = volume
        self._most_open = most_open
        self._recheck_seconds = recheck_seconds
        self._on_gone = on_gone
        self._lock = threading.Lock()
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self._opening: dict[bytes, threading.Lock] = {}
        self._listing = threading.Lock()
        self._listed: dict[bytes, tuple[tuple[bytes, ...], tuple[FileIdentity, ...], Listed]] = {}
        self._list: list[Listed] = []
        self._list_made = float("-inf")

    def recent(self, model_id: bytes) -> Snapshot | None:
        """The snapshot of a model that was checked a moment ago, held once for the caller; never waits."""
        with self._lock:
            entry = self._entries.get(model_id)
            if entry is None or time.monotonic() - entry.checked > self._recheck_seconds:
                return None
            if not isinstance(entry.outcome, Snapshot):
                return None
            self._entries.move_to_end(model_id)
            return entry.outcome.acquire()

    def snapshot(self, model_id: bytes) -> Snapshot:
        """The present snapshot of a model, held once for the caller, who must release it.

        Raises
        ------
        NotFound
            ``no-such-model``: nothing by that id, or nothing that may be seen.
        Unreadable
            ``unreadable-model`` or ``incomplete-split``, with the reason.
        Unavailable
            ``volume-error``: the volume does not answer.
        """
        with self._lock:
            opening = self._opening.setdefault(model_id, threading.Lock())
        # One thread opens a model; the others wait for it here and then find it open.
        with opening:
            try:
                return self.recent(model_id) or self._checked(model_id)
            finally:
                with self._lock:
                    self._opening.pop(model_id, None)

    def list(self) -> list[Listed]:
        """Every model on the volume, in the order of their folders and names; described anew only where files changed.

        Raises
        ------
        Unavailable
            ``volume-error``: the root cannot be listed.
        """
        with self._listing:
            if time.monotonic() - self._list_made > self._recheck_seconds:
                if not self.volume.readable():
                    raise Unavailable("volume-error", "the volume cannot be listed now. Is it mounted?")
                before, self._listed = self._listed, {}
                self._list = [self._describe(found, before) for found in self.volume.walk()]
                self._list_made = time.monotonic()
            return self._list

    def forget_gone(self) -> None:
        """Close the models whose files were replaced or removed, so that a deleted file's room on the disk is freed."""
        with self._lock:
            entries = list(self._entries.items())
        gone = [(model_id, entry) for model_id, entry in entries if _identities(entry.found) != entry.identities]
        for model_id, entry in gone:
            with self._lock:
                if self._entries.get(model_id) is not entry:
                    continue
                del self._entries[model_id]
            self._close(entry)

    def figures(self) -> dict[str, int]:
        """How many models are kept open, and how many bytes their headers hold."""
        with self._lock:
            snapshots = [entry for entry in self._entries.values() if isinstance(entry.outcome, Snapshot)]
            return {"open_models": len(snapshots), "header_bytes": sum(entry.header_bytes for entry in snapshots)}

    def close(self) -> None:
        """Let go of every snapshot."""
        with self._lock:
            entries = list(self._entries.values())
            self._entries.clear()
        for entry in entries:
            entry.close()

    def _checked(self, model_id: bytes) -> Snapshot:
        found = self.volume.find(model_id)
        identities = _identities(found)
        checked = time.monotonic()
        with self._lock:
            entry = self._entries.get(model_id)
            if entry is not None and found == entry.found and identities == entry.identities:
                entry.checked = checked
                self._entries.move_to_end(model_id)
                if isinstance(entry.outcome, Snapshot):
                    return entry.outcome.acquire()
                raise _copy(entry.outcome)
            self._entries.pop(model_id, None)
        if entry is not None:
            self._close(entry)
        if found is None:
            if not self.volume.readable():
                raise Unavailable("volume-error", "the volume cannot be listed now. Is it mounted?")
            raise no_such_model(model_id)
        try:
            snapshot = _opened(found)
        except Unreadable as problem:
            self._keep(model_id, _Entry(found, identities, _copy(problem), checked))
            raise
        try:
            snapshot.fingerprint()  # read here, in a thread, so that it is there when an ETag is asked for
        except BaseException:
            snapshot.release()
            raise
        self._keep(model_id, _Entry(found, snapshot.identities, snapshot.acquire(), checked))
        return snapshot

    def _close(self, entry: _Entry) -> None:
        """Let go of a model whose files are no longer what they were, and of its windows."""
        entry.close()
        if isinstance(entry.outcome, Snapshot):
            self._on_gone(entry.outcome.key)

    def _keep(self, model_id: bytes, entry: _Entry) -> None:
        """Keep an outcome as the latest used, and close those used longest ago that are too many or too large."""
        with self._lock:
            surplus = [previous] if (previous := self._entries.pop(model_id, None)) else []
            self._entries[model_id] = entry
            held = sum(kept.header_bytes for kept in self._entries.values())
            while len(self._entries) > 1 and (len(self._entries) > self._most_open or held > _MOST_HEADER_BYTES):
                _, oldest = self._entries.popitem(last=False)
                held -= oldest.header_bytes
                surplus.append(oldest)
        for old in surplus:
            old.close()

    def _describe(
        self, found: Found, before: dict[bytes, tuple[tuple[bytes, ...], tuple[FileIdentity, ...], Listed]]
    ) -> Listed:
        identities = _identities(found)
        known = before.get(found.model_id)
        if (
            known is not None
            and identities
            and known[:2] == (found.paths, identities)
            and not found.missing
            and not isinstance(known[2].problem, Unavailable)  # the file is what it was; the volume may answer now
        ):
            listed = known[2]
        else:
            size = sum(identity.size for identity in identities)
            summary, problem = None, None
            try:
                with _opened(found) as snapshot:
                    summary = summarize(snapshot.model)
            except Problem as error:
                problem = _copy(error)
            listed = Listed(found.model_id, len(found.paths), size, summary, problem)
        self._listed[found.model_id] = found.paths, identities, listed
        return listed


def no_such_model(model_id: bytes) -> NotFound:
    """The answer to an id that names no model, or none that whoever asks may see: the two must not differ."""
    detail = "no model of that id lies on the volume; /v1/models lists all."
    if not _VERBS.isdisjoint(model_id.split(b"/")):
        detail += " An id ends at /-/, as in /v1/models/demo/-/tensors."
    return NotFound("no-such-model", detail)


def _identities(found: Found | None) -> tuple[FileIdentity, ...]:
    """The identities of a model's files now; none if one has just gone."""
    try:
        return tuple(FileIdentity.of(os.stat(path)) for path in found.paths) if found else ()
    except OSError:
        return ()


def _copy(problem: _P) -> _P:
    """The same problem without the frames and causes that it came through.

    What is kept is never what is raised: keeping it keeps nothing else alive, and threads do not share it.
    """
    return type(problem)(problem.slug, problem.detail, status=problem.status, **problem.fields)


def _opened(found: Found) -> Snapshot:
    """A new snapshot of a model's files, or the problem that says why there is none."""
    if found.missing:
        names = ", ".join(os.path.basename(name).decode("utf-8", "replace") for name in found.missing)
        raise Unreadable(
            "incomplete-split",
            f"parts of the split set are missing: {names}. Add them; until then each part opens by its own file name.",
        )
    try:
        return Snapshot.open(found.model_id, found.paths)
    except GGUFError as error:
        slug = "incomplete-split" if isinstance(error, SplitError) else "unreadable-model"
        notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))  # which part of a split set
        raise Unreadable(slug, f"{error}{notes}", offset=error.offset) from error
    except PermissionError as error:
        raise Unreadable("unreadable-model", "the service has no permission to read the file.") from error
    except FileNotFoundError as error:
        raise no_such_model(found.model_id) from error
    except OSError as error:
        raise Unavailable("volume-error", f"opening the file failed: {error.strerror or error}. Try again.") from error
