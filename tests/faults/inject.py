"""``python -m tests.faults.inject CONTROL serve …``: the service on a system some of whose calls fail, by rules.

CONTROL is a JSON file, a list of rules. It is looked at before each call, so a fault comes, stays and goes while the
service runs. The first rule that fits a call decides; a rule has

- ``call``: one of `CALLS`, or a list of them;
- ``path``: what the path of the call must contain (that of its descriptor for calls that take one);
- ``from``: the first byte for which reads fail: they come back short before it, and fail from it on;
- ``error``: an errno like ``EIO``, ``MemoryError``, or ``thread`` for what the system says of threads;
- ``after``: how many calls go well before;
- ``seconds``: how long the call takes, before it fails or does what it does; less where the rule is taken away. The
  log says ``CALL hangs`` when it begins;
- ``most``: the most bytes that a read gives;
- ``at``: what the clock says (seconds since 1970), or ``shift``: how wrong it is.

Worker processes, which are started afresh, keep the system that they have.
"""

import errno
import json
import mmap
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

__all__ = ["CALLS", "install"]

CALLS = (
    *("open", "stat", "lstat", "fstat", "scandir", "listdir", "preadv", "pipe", "dup"),
    *("mmap", "thread", "time", "time_ns", "empty", "dequantize", "vmsplice"),
)

Rule = dict[str, Any]

_stat, _readlink, _sleep = os.stat, os.readlink, time.sleep
_LOOK_SECONDS = 0.02


class _Rules:
    """The rules of the control file, as it is now."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._state: object = None
        self._rules: list[Rule] = []
        self._counts: dict[int, int] = {}

    def fitting(self, call: str, subject: Any) -> Rule | None:
        """The rule for a call on a path or descriptor, if there is one."""
        try:
            self._look()
        except OSError:  # replaced just now, or no descriptor for it
            return None
        for number, rule in enumerate(self._rules):
            calls = rule["call"]
            if call != calls and call not in calls:
                continue
            if "path" in rule and rule["path"] not in _path_of(subject):
                continue
            count = self._counts[number] = self._counts.get(number, 0) + 1
            if count > rule.get("after", 0):
                return rule
        return None

    def fail(self, call: str, rule: Rule) -> None:
        """Do to a call what a rule for it says."""
        if "seconds" in rule:
            self._hang(call, rule)
        _fail(rule)

    def _hang(self, call: str, rule: Rule) -> None:
        sys.stderr.write(f"{call} hangs\n")
        sys.stderr.flush()
        until = time.monotonic() + rule["seconds"]
        while rule in self._rules and time.monotonic() < until:
            _sleep(_LOOK_SECONDS)
            with suppress(OSError):
                self._look()

    def _look(self) -> None:
        status = _stat(self._path)
        if (state := (status.st_ino, status.st_mtime_ns)) != self._state:
            with open(self._path, encoding="utf-8") as file:
                self._rules = json.load(file)
            self._state, self._counts = state, {}


def _path_of(subject: Any) -> str:
    if isinstance(subject, int):
        try:
            return _readlink(f"/proc/self/fd/{subject}")
        except OSError:
            return ""
    return os.fsdecode(subject) if isinstance(subject, str | bytes | os.PathLike) else ""


def _fail(rule: Rule) -> None:
    kind = rule.get("error")
    if kind == "MemoryError":
        raise MemoryError
    if kind == "thread":
        raise RuntimeError("can't start new thread")
    if kind is not None:
        number = getattr(errno, kind)
        raise OSError(number, os.strerror(number))


def install(control: str) -> None:
    """Put what keeps the rules in the place of the system's calls."""
    rules = _Rules(control)

    def wrap(call: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            if rule := rules.fitting(call, arguments[0] if arguments else None):
                rules.fail(call, rule)
            return function(*arguments, **named)

        return wrapped

    for name in ("open", "stat", "lstat", "fstat", "scandir", "listdir", "pipe", "dup"):
        setattr(os, name, wrap(name, getattr(os, name)))

    preadv = os.preadv

    def read(fd: int, buffers: Any, at: int, flags: int = 0, /) -> int:
        rule = rules.fitting("preadv", fd)
        if rule is None:
            return preadv(fd, buffers, at, flags)
        most = rule.get("most", sys.maxsize)
        if "from" in rule:
            most = min(most, max(0, rule["from"] - at))
        if most == 0 or "from" not in rule:
            rules.fail("preadv", rule)
        (buffer,) = buffers
        return preadv(fd, [memoryview(buffer)[: max(1, most)]], at, flags)

    os.preadv = read

    class Mapping(mmap.mmap):
        def __new__(cls, *arguments: Any, **named: Any) -> "Mapping":
            if rule := rules.fitting("mmap", None):
                rules.fail("mmap", rule)
            return super().__new__(cls, *arguments, **named)

    mmap.mmap = Mapping  # type: ignore[misc]

    start = threading.Thread.start

    def start_thread(self: threading.Thread) -> None:
        if rule := rules.fitting("thread", None):
            rules.fail("thread", rule)
        start(self)

    threading.Thread.start = start_thread  # type: ignore[method-assign]

    now = time.time

    def clock() -> float:
        rule = rules.fitting("time", None)
        if rule is None:
            return now()
        return float(rule["at"]) if "at" in rule else now() + float(rule["shift"])

    time.time = clock
    time.time_ns = lambda: int(clock() * 1e9)

    import numpy as np  # after the clock and the calls: whatever else is imported sees those

    import decoders

    setattr(np, "empty", wrap("empty", np.empty))  # noqa: B010 - declared as final
    decoders.dequantize = wrap("dequantize", decoders.dequantize)

    import app.splice

    vmsplice = app.splice._call
    assert vmsplice is not None

    def splice(*arguments: Any) -> int:
        if rule := rules.fitting("vmsplice", None):
            import ctypes

            ctypes.set_errno(getattr(errno, rule["error"]))
            return -1
        return int(vmsplice(*arguments))

    app.splice._call = splice  # type: ignore[assignment]


if __name__ == "__main__":
    install(sys.argv.pop(1))
    signal.signal(signal.SIGUSR1, lambda *_: None)  # one that interrupts calls, and does nothing
    signal.siginterrupt(signal.SIGUSR1, True)

    from app.cli import main

    main(prog_name="python -m app")
