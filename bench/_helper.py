"""Helper processes of a benchmark: each does one thing until it is told to end, and then says what it saw.

A helper is a module that is run as a program. It calls `help_with` with what to do; `Helper` is its other end.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

__all__ = ["Helper", "help_with"]

_READY = "ready"
_END_SECONDS = 150.0


class Helper:
    """The process of a module of `bench`; a context manager that ends it."""

    def __init__(self, module: str, *arguments: object) -> None:
        command = [sys.executable, "-m", f"bench.{module}", *map(str, arguments)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def wait_until_it_begins(self) -> None:
        """Wait until it has loaded what it needs; once. Raises RuntimeError if it does not come to that."""
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != _READY:
            raise RuntimeError("a helper did not begin; its message is above")

    @property
    def is_over(self) -> bool:
        """Whether it has ended by itself."""
        return self._process.poll() is not None

    def end(self) -> Any:
        """Tell it to end, and give what it saw. Raises RuntimeError if it fails, or does not end within minutes."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        # Not communicate(): what it saw may have been read into the buffer with its first line.
        late = threading.Timer(_END_SECONDS, process.kill)
        late.start()
        try:
            shown = process.stdout.read()
            code = process.wait()
        finally:
            late.cancel()
        if code:
            raise RuntimeError(f"a helper ended with {code}; its message is above")
        return json.loads(shown)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if not self.is_over:
            self._process.kill()
        with suppress(BrokenPipeError):
            self._process.__exit__(kind, error, at)


def help_with(work: Callable[[threading.Event], object], *, niceness: int) -> None:
    """Do ``work``, which should end soon when the event is set, and print what it gives as JSON.

    ``niceness`` is how much the process stands back for others; it is not changed where that is not allowed.
    """
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, niceness)
    over = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    print(_READY, flush=True)
    print(json.dumps(work(over)), flush=True)
