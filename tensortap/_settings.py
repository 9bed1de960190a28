"""What both clients are told, checked and kept, also across a pickle and a fork."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any
from weakref import WeakSet

import httpx

from ._cache import Cache
from ._http import shown_url
from ._read import Decode, Reader

__all__ = ["Settings"]

# A Q4_K tensor of 2^26 weights from loopback: 0.19 s (median of 9); 0.24 s with half of it, 0.21 s with twice.
_PART_BYTES = 8 << 20
_CACHE_BYTES = 64 << 20
_DISK_BYTES = 4 << 30


def _version() -> str:
    try:
        return version("tensortap")
    except PackageNotFoundError:  # a copy of the folder
        return "0"


class Settings:
    """What both clients are told.

    Parameters
    ----------
    url
        Of the service, like ``http://host:8000``; a path is put before those of the service.
    api_key
        Sent as ``Authorization: Bearer``.
    cache_bytes
        What was moved is kept in memory, up to this many bytes, and not moved again.
    disk_cache
        A folder where it is kept, too, for other processes and later runs; needs diskcache. Whoever may write there
        decides what weights are read from there.
    disk_bytes
        About how many bytes that folder may take.
    decode
        Where weights are decoded: ``"client"`` moves the stored blocks, ``"server"`` float32, ``"auto"`` what is less.
    max_connections
        Requests at a time, however many reads there are. What a progress function reads must come by another client.
    part_bytes
        About how many bytes each of those moves.
    timeout
        Seconds for a connection to be made and for the next bytes of an answer to come; None waits for ever.
    retries
        How often in a row a request may fail, without a byte in between, before its error is raised.
    headers
        Sent with every request.

    Raises
    ------
    ValueError
        A setting is none that can be.
    ImportError
        ``disk_cache`` is given, and diskcache is not installed.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        cache_bytes: int = _CACHE_BYTES,
        disk_cache: str | os.PathLike[str] | None = None,
        disk_bytes: int = _DISK_BYTES,
        decode: Decode = "auto",
        max_connections: int = 8,
        part_bytes: int = _PART_BYTES,
        timeout: float | None = 30.0,
        retries: int = 5,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        if decode not in ("auto", "client", "server"):
            raise ValueError(f"decode is 'auto', 'client' or 'server', not {decode!r}")
        if max_connections < 1 or part_bytes < 1 or retries < 0 or cache_bytes < 0 or disk_bytes < 1:
            raise ValueError(
                "max_connections, part_bytes and disk_bytes are at least 1, retries and cache_bytes at least 0"
            )
        if api_key is not None and not (api_key.isascii() and api_key.isprintable() and api_key.strip()):
            raise ValueError("an API key is printable ASCII")
        base = _checked(url)
        self.url = shown_url(base)
        self._settings: dict[str, Any] = {
            "api_key": api_key,
            "cache_bytes": cache_bytes,
            "disk_cache": None if disk_cache is None else os.fspath(disk_cache),
            "disk_bytes": disk_bytes,
            "decode": decode,
            "max_connections": max_connections,
            "part_bytes": part_bytes,
            "timeout": timeout,
            "retries": retries,
            "headers": None if headers is None else dict(headers),
        }
        self._base = base
        self._cache = Cache.of(self.url, cache_bytes, self._settings["disk_cache"], disk_bytes)
        self._reader = Reader(decode, part_bytes, self._cache, max_connections)
        sent = {"User-Agent": f"tensortap/{_version()}", **(headers or {})}
        if api_key is not None:
            sent["Authorization"] = f"Bearer {api_key}"
        self._http_settings: dict[str, Any] = {
            "base_url": base,
            "headers": httpx.Headers(sent),
            "timeout": timeout,
            "limits": httpx.Limits(max_connections=None, max_keepalive_connections=max_connections),
        }
        self._runner: Any = None
        self._lock = threading.Lock()
        _alive.add(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (type(self), str(self._base), self._settings)

    def _after_fork(self) -> None:
        """In a child: its parent's connections are not its own, and locks may be held by threads that are not here."""
        _inherited.append(self._runner)
        self._runner = None
        self._lock = threading.Lock()
        self._reader.after_fork()
        if self._cache is not None:
            self._cache.after_fork()


_alive: WeakSet[Settings] = WeakSet()
_inherited: list[Any] = []  # never used, and never collected: that would say goodbye on the parent's connections


def _after_fork() -> None:
    for settings in list(_alive):
        settings._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _again(kind: type[Settings], url: str, settings: dict[str, Any]) -> Settings:
    return kind(url, **settings)


def _checked(url: str) -> httpx.URL:
    """The URL of a service; raises ValueError for what can be none."""
    try:
        found = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ValueError(f"{url!r} is no URL: {error}") from None
    fits = found.scheme in ("http", "https") and found.host and (found.port is None or 0 < found.port < 1 << 16)
    if not fits or found.query or found.fragment:
        raise ValueError(f"the URL of a service is like http://host:8000, not {url!r}")
    return found
