"""The catalogue: from a model id to a snapshot, and the list of all models.

Files are told apart by stat alone: an open snapshot is used while the stat of its files stays what it was, and a
listed model is described anew only when it does not. A look at the volume holds for ``recheck_seconds``.
Every method may wait for the volume (a network mount may be slow): call them from a thread, except `Catalogue.recent`,
`Catalogue.latest` and `Catalogue.age`.
"""

import math
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from app.errors import NotFound, Problem, Unavailable, Unreadable, exhausted
from app.gguf import GGUFError, SplitError
from app.snapshot import FileIdentity, Snapshot
from app.summary import Summary, summarize
from app.volume import Found, Volume, is_absence, volume_error

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


class _NoPermission(Unreadable):
    """The file cannot be opened by this process, which says nothing of what is in it."""


@dataclass(slots=True)
class _Entry:
    """What came of opening a model: a snapshot, held once, or the problem; good while the files stay what they were."""

    found: Found
    identities: tuple[FileIdentity, ...]
    outcome: Snapshot | Unreadable
    checked: float

    @property
    def snapshot(self) -> Snapshot | None:
        return self.outcome if isinstance(self.outcome, Snapshot) else None

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

    def latest(self, model_id: bytes) -> Snapshot | None:
        """The snapshot of a model as it was when the volume last told, held once for the caller; never waits."""
        with self._lock:
            entry = self._entries.get(model_id)
            return entry.snapshot.acquire() if entry is not None and entry.snapshot is not None else None

    def age(self, model_id: bytes) -> float:
        """Seconds since the volume last told of a model that is open; infinite for another. Never waits."""
        with self._lock:
            entry = self._entries.get(model_id)
            return math.inf if entry is None else time.monotonic() - entry.checked

    def snapshot(self, model_id: bytes) -> Snapshot:
        """The present snapshot of a model, held once for the caller, who must release it.

        Raises
        ------
        NotFound
            ``no-such-model``: nothing by that id, or nothing that may be seen.
        Unreadable
            ``unreadable-model`` or ``incomplete-split``, with the reason.
        Unavailable
            ``volume-error``: the volume does not answer. ``overloaded``: the system is exhausted. What is open stays.
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
            ``volume-error``: the root cannot be listed. ``overloaded``: the system is exhausted.
        """
        with self._listing:
            if time.monotonic() - self._list_made > self._recheck_seconds:
                found = list(self.volume.walk())
                described = {one.model_id: self._described(one) for one in found}
                self._listed = described
                self._list = [listed for _, _, listed in described.values()]
                self._list_made = time.monotonic()
            return self._list

    def forget_gone(self) -> None:
        """Close the models whose files were replaced or removed, so that a deleted file's room on the disk is freed.

        Not while the root is away: then nobody knows.
        """
        if not self.volume.readable():
            return
        with self._lock:
            entries = list(self._entries.items())
        for model_id, entry in entries:
            try:
                if _identities(entry.found) == entry.identities:
                    continue
            except Unavailable:  # nobody knows
                continue
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
        if not identities:
            self.volume.check()  # where the root is away, what is open stays so
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
            raise no_such_model(model_id)
        try:
            snapshot = _opened(found)
        except Unreadable as problem:
            if not _may_pass(problem):
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

    def _described(self, found: Found) -> tuple[tuple[bytes, ...], tuple[FileIdentity, ...], Listed]:
        summary: Summary | None = None
        problem: Problem | None = None
        identities: tuple[FileIdentity, ...] = ()
        try:
            identities = _identities(found)
            known = self._listed.get(found.model_id)
            if (
                known is not None
                and identities
                and known[:2] == (found.paths, identities)
                and not found.missing
                and not _may_pass(known[2].problem)
            ):
                return known
            with _opened(found) as snapshot:
                summary = summarize(snapshot.model)
        except Problem as error:
            problem = _copy(error)
        except MemoryError as error:
            problem = exhausted(error)
        size = sum(identity.size for identity in identities)
        return found.paths, identities, Listed(found.model_id, len(found.paths), size, summary, problem)


def no_such_model(model_id: bytes) -> NotFound:
    """The answer to an id that names no model, or none that whoever asks may see: the two must not differ."""
    detail = "no model of that id lies on the volume; /v1/models lists all."
    if not _VERBS.isdisjoint(model_id.split(b"/")):
        detail += " An id ends at /-/, as in /v1/models/demo/-/tensors."
    return NotFound("no-such-model", detail)


def _identities(found: Found | None) -> tuple[FileIdentity, ...]:
    """The identities of a model's files now; none if one has just gone. Raises Unavailable where nobody can tell."""
    try:
        return tuple(FileIdentity.of(os.stat(path)) for path in found.paths) if found else ()
    except OSError as error:
        if is_absence(error):
            return ()
        raise volume_error(error, "looking at the file") from error


def _may_pass(problem: Problem | None) -> bool:
    """Whether a problem may go while the files stay what they are: it is not kept."""
    return isinstance(problem, Unavailable | _NoPermission)


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
        raise _NoPermission("unreadable-model", "the service has no permission to read the file.") from error
    except FileNotFoundError as error:
        raise no_such_model(found.model_id) from error
    except OSError as error:
        raise volume_error(error, "opening the file") from error
    except MemoryError as error:
        detail = "there is no memory for the model's header now. Try again in a moment."
        raise Unavailable("overloaded", detail) from error
