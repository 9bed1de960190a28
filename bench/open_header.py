"""How long opening a file takes beside gguf-py's GGUFReader: ``python bench/open_header.py FILE…``.

The two take turns, several rounds; the best of each counts, since noise only ever adds.
"""

import os
import sys
import time
from collections.abc import Callable

import gguf

from app.gguf import open_model

ROUNDS = 7


def seconds(work: Callable[[], object]) -> float:
    """How long one run of ``work`` takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def ours(path: str) -> None:
    """Open as the service does: header parsed, arrays indexed."""
    fd = os.open(path, os.O_RDONLY)
    try:
        open_model([fd])
    finally:
        os.close(fd)


def compare(path: str) -> str:
    """A line of figures for one file."""
    rounds = [(seconds(lambda: ours(path)), seconds(lambda: gguf.GGUFReader(path))) for _ in range(ROUNDS)]
    mine, theirs = (min(column) for column in zip(*rounds, strict=True))
    return f"{os.path.basename(path)}: {mine * 1e3:.1f} ms, GGUFReader {theirs * 1e3:.1f} ms: 1/{theirs / mine:.0f}"


if __name__ == "__main__":
    for file in sys.argv[1:]:
        print(compare(file))
