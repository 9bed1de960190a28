"""API keys: who may read which models.

Keys are written one to a line, each followed by the globs of the model ids it may read, with blanks between; a key
without globs may read every model, and a line that begins with ``#`` is a comment:

    # the team
    pxHa2uC4tk7WmW3z
    # partners
    Vb8nK1qYzT5dRf0s public/* demo

A request gives its key as ``Authorization: Bearer KEY`` (RFC 6750) or as ``X-API-Key: KEY``.
"""

import asyncio
import hashlib
import hmac
import logging
import os
import re
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import translate
from pathlib import Path

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.errors import Problem
from app.limits import PROBES
from app.problems import problem_response
from app.settings import Settings
from app.threads import Threads

__all__ = ["Authenticate", "Grant", "Keys", "KeysError", "grant_of"]

_log = logging.getLogger("tensortap")
_VISIBLE = re.compile(rb"[!-~]+")  # what a header can carry, without blanks
_BEARER = re.compile(rb"bearer +([!-~]+) *", re.IGNORECASE)
_LARGEST_FILE = 1 << 20
_CHECK_SECONDS = 1.0
_PATIENCE_SECONDS = 0.5
_ALIAS_SUFFIX = b".gguf"
_VARY = "Authorization, X-API-Key"


class KeysError(ValueError):
    """Keys that cannot be used: ``place`` is the variable or the file, ``line`` the number of the line if it is one.

    Its text names no key.
    """

    def __init__(self, place: str, line: int | None, reason: str) -> None:
        super().__init__(f"{place}{'' if line is None else f', line {line}'}: {reason}")
        self.place = place
        self.line = line


class _NotRead(KeysError):
    """The file cannot be read now, which says nothing of what is in it."""


@dataclass(frozen=True, slots=True)
class Grant:
    """What a request may read: models whose ids match one of ``globs``; None means all models."""

    globs: tuple[re.Pattern[bytes], ...] | None

    @classmethod
    def of(cls, globs: list[bytes]) -> "Grant":
        """The grant of fnmatch-style globs (``*``, ``?``, ``[abc]``), in which ``*`` also matches ``/``."""
        # Ids are bytes: matched as latin-1, a character stands for a byte.
        return cls(tuple(re.compile(translate(glob.decode("latin-1")).encode("latin-1")) for glob in globs))

    def allows(self, model_id: bytes) -> bool:
        """Whether the model of that id may be read."""
        return self.globs is None or any(glob.match(model_id) for glob in self.globs)

    def may_mean_allowed(self, name: bytes) -> bool:
        """Whether ``name``, an id or a file name, can lead to a model that may be read; nothing is looked up."""
        return self.allows(name) or (name.endswith(_ALIAS_SUFFIX) and self.allows(name.removesuffix(_ALIAS_SUFFIX)))


_EVERYTHING = Grant(None)
_NOTHING = Grant(())


def grant_of(scope: Scope) -> Grant:
    """The grant that `Authenticate` has given to a request."""
    grant: Grant = scope["state"]["grant"]
    return grant


class Keys:
    """The keys that are valid now: from a text, from a file that is read again when it changes, or from both.

    Parameters
    ----------
    text
        Lines of keys as bytes; ``;`` separates lines, too.
    file
        A file of such lines (there, only line breaks separate).

    Raises
    ------
    KeysError
        The file cannot be read, a line is bad, a key is given twice, or one of the two holds no key.
    """

    def __init__(self, text: bytes | None = None, file: Path | None = None) -> None:
        # Kept and compared as keyed hashes: neither the length nor the beginning of a key shows in how long that takes.
        self._salt = secrets.token_bytes(32)
        self._text = text
        self._file = file
        self._identity: object = None
        self._complaint = ""
        self._checked = time.monotonic()
        self._grants: list[tuple[bytes, Grant]] = self._read()

    @classmethod
    def of(cls, settings: Settings) -> "Keys | None":
        """The keys that the settings name, or None if they name none; raises `KeysError`."""
        secret = settings.api_keys
        if secret is None and settings.api_keys_file is None:
            return None
        text = None if secret is None else secret.get_secret_value().encode("utf-8", "surrogateescape")
        return cls(text, settings.api_keys_file)

    @property
    def has_file(self) -> bool:
        """Whether there is a file, which may change."""
        return self._file is not None

    def match(self, key: bytes) -> Grant | None:
        """The grant of a key, or None for one that is not valid; takes as long for either."""
        digest = self._digest(key)
        found = None
        for known, grant in self._grants:
            if hmac.compare_digest(known, digest):
                found = grant
        return found

    def due(self) -> bool:
        """Whether it is time for `reload`: true for one caller a second, if there is a file."""
        now = time.monotonic()
        if self._file is None or now - self._checked < _CHECK_SECONDS:
            return False
        self._checked = now
        return True

    def reload(self) -> None:
        """Read the file again if it has changed; what cannot be used is logged once and changes nothing."""
        try:
            identity: object = _identity(os.stat(self._file)) if self._file is not None else None
        except OSError as error:
            identity = error.errno
        if identity == self._identity:
            return
        try:
            self._grants = self._read()
        except KeysError as error:
            # One that was not read is not known, and is read again until it is.
            self._identity = None if isinstance(error, _NotRead) else identity
            if not isinstance(error, _NotRead) or str(error) != self._complaint:
                _log.warning("the API keys stay what they were: %s", error)
            self._complaint = str(error)
        else:
            self._complaint = ""
            _log.info("read the API keys again: %d are valid", len(self._grants))

    def _read(self) -> list[tuple[bytes, Grant]]:
        grants: dict[bytes, Grant] = {}
        if self._text is not None:
            self._add(grants, "TENSORTAP_API_KEYS", self._text.replace(b";", b"\n"))
        if self._file is not None:
            place = f"the key file {str(self._file)!r}"
            try:
                with self._file.open("rb") as file:
                    identity = _identity(os.fstat(file.fileno()))
                    content = file.read(_LARGEST_FILE + 1)
                    changed = _identity(os.fstat(file.fileno())) != identity
            except OSError as error:
                raise _NotRead(place, None, f"it cannot be read: {error.strerror or error}.") from None
            if changed:
                raise _NotRead(place, None, "it was changed while it was read.")
            if len(content) > _LARGEST_FILE:
                raise KeysError(place, None, f"it is over the limit of {_LARGEST_FILE} bytes.")
            self._add(grants, place, content)
            self._identity = identity
        return list(grants.items())

    def _add(self, grants: dict[bytes, Grant], place: str, content: bytes) -> None:
        before = len(grants)
        for number, key, globs in _lines(content):
            if not _VISIBLE.fullmatch(key):
                raise KeysError(place, number, "the key has a character that is not visible ASCII: no header holds it.")
            digest = self._digest(key)
            if digest in grants:
                raise KeysError(place, number, "the key is given twice: put all of its globs on one line.")
            grants[digest] = Grant.of(globs) if globs else _EVERYTHING
        if len(grants) == before:
            raise KeysError(place, None, "it holds no key; unset it to serve without keys.")

    def _digest(self, key: bytes) -> bytes:
        return hashlib.blake2b(key, key=self._salt, digest_size=32).digest()


def _lines(content: bytes) -> Iterator[tuple[int, bytes, list[bytes]]]:
    """The number, the key and the globs of each line that has a key."""
    for number, line in enumerate(content.split(b"\n"), 1):
        words = line.split()
        if words and not words[0].startswith(b"#"):
            yield number, words[0], words[1:]


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


class Authenticate:
    """ASGI middleware that puts a `Grant` at ``scope["state"]["grant"]``, or answers 401 to who gives no valid key.

    Where keys are asked for, answers are marked as private, since they differ by key. A file of keys is looked at in a
    thread of its own; where that takes long, the keys are what they were meanwhile.

    Parameters
    ----------
    keys
        The valid keys; None gives every request every model.
    metrics_open
        Whether ``/metrics`` needs no key.
    """

    def __init__(self, app: ASGIApp, *, keys: Keys | None, metrics_open: bool) -> None:
        self._app = app
        self._keys = keys
        self._looks = None if keys is None or not keys.has_file else Threads(1, "keys", most_waiting=1)
        self._look: asyncio.Future[None] | None = None
        self._open = PROBES | {"/metrics"} if metrics_open else PROBES

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with its grant, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        if self._keys is None:
            state["grant"] = _EVERYTHING
            await self._app(scope, receive, send)
        elif scope["path"] in self._open:
            state["grant"] = _NOTHING
            await self._app(scope, receive, send)
        else:
            if self._keys.due():
                await self._look_again(self._keys)
            given = _given_keys(scope)
            grants = [grant for key in given if (grant := self._keys.match(key)) is not None]
            if grants:
                state["grant"] = grants[0]
                await self._app(scope, receive, _private(send))
            else:
                await problem_response(_refusal(given), {"WWW-Authenticate": "Bearer"})(scope, receive, send)

    async def _look_again(self, keys: Keys) -> None:
        if self._looks is None or (self._look is not None and not self._look.done()):
            return
        look = self._look = asyncio.wrap_future(self._looks.submit(keys.reload))
        await asyncio.wait((look,), timeout=_PATIENCE_SECONDS)
        if look.done():
            look.result()


def _given_keys(scope: Scope) -> list[bytes]:
    """What the headers have as keys; another scheme of Authorization may be a proxy's business."""
    keys: list[bytes] = []
    for name, value in scope["headers"]:
        if name == b"authorization" and (bearer := _BEARER.fullmatch(value)):
            keys.append(bearer[1])
        elif name == b"x-api-key":
            keys.append(value.strip())
    return keys


def _refusal(given: list[bytes]) -> Problem:
    how = "send it as 'Authorization: Bearer KEY' or as 'X-API-Key: KEY'."
    detail = "the API key is not valid" if given else "this service needs an API key"
    return Problem("unauthorized", f"{detail}: {how}", status=401)


def _private(send: Send) -> Send:
    """A ``send`` that marks the answer as one for the holder of a key: no shared cache may give it to another."""

    async def send_private(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers["Vary"] = ", ".join([*headers.getlist("Vary"), _VARY])
            rules = [rule.strip() for rule in headers.get("Cache-Control", "").split(",")]
            kept = [rule for rule in rules if rule and rule.lower() not in ("public", "private")]
            if "no-store" not in kept:
                headers["Cache-Control"] = ", ".join(["private", *kept])
        await send(message)

    return send_private
