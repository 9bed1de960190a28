"""Wait in tests for what others bring about: a server, its log and metrics, other threads."""

import http.client
import json
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import httpx

__all__ = ["eventually"]

# What a server says, or does not, that is still starting.
_TOO_EARLY = (OSError, http.client.HTTPException, httpx.TransportError, json.JSONDecodeError)


def eventually(holds: Callable[[], Any], seconds: float = 30) -> Any:
    """What ``holds`` gives as soon as that is true; fails if it is not within the time, which no good run needs."""
    until = time.monotonic() + seconds
    while True:
        with suppress(*_TOO_EARLY):
            if found := holds():
                return found
        assert time.monotonic() < until, "it has not come to hold"
        time.sleep(0.02)
