"""Progress of long reads: told to a function, or shown as a bar where rich is installed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

__all__ = ["Progress", "progress_of"]

Progress: TypeAlias = "bool | Callable[[int, int], object]"
"""True for a bar; or a function that is called with the bytes that are there, and the bytes of all."""


@contextmanager
def progress_of(progress: Progress, what: str, total: int) -> Iterator[Callable[[int], object]]:
    """What to call with the number of bytes of each piece that came, from any thread."""
    if progress is False:
        yield lambda _: None
    elif progress is True:
        try:
            from rich import progress as rich
            from rich.console import Console
        except ImportError:
            raise ImportError("a progress bar needs rich: pip install 'tensortap[cli]', or give a function.") from None
        columns = (
            rich.TextColumn("{task.description}", markup=False),
            rich.BarColumn(),
            rich.DownloadColumn(),
            rich.TransferSpeedColumn(),
            rich.TimeRemainingColumn(),
        )
        # Standard output may be where the weights go.
        with rich.Progress(*columns, console=Console(stderr=True)) as bars:
            task = bars.add_task(_printable(what), total=total)
            yield lambda n_bytes: bars.advance(task, n_bytes)
    else:
        done, lock = 0, threading.Lock()

        def tell(n_bytes: int) -> None:
            nonlocal done
            with lock:  # so that the numbers never go back
                done += n_bytes
                progress(done, total)

        yield tell


def _printable(text: str) -> str:
    """A name for a terminal: what is no character to see, and might command it, is escaped."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text)
