"""Whether time grows in a straight line: of one cold stream with its size, and of cold streams with their number.

Tensors are Q8_0 in files of holes, so that 4 GiB decoded take no room on the disk; each stream has a tensor of its own.
"""

import math
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from bench import _timing
from bench._files import DATA, write_holes
from bench._receivers import Receivers
from bench._servers import tensortap
from bench._table import Plot, Series, Table, Target

__all__ = ["run", "straight_line"]

_MIB = 1 << 20
_STREAMS = (1, 2, 4, 8, 16, 32)
_CACHE_BYTES = _MIB // 2  # less than one window: nothing is ever kept
_OFF_THE_LINE = 0.15


def run(quick: bool) -> Iterator[Table]:
    """Seconds against decoded size, 1 MiB to 4 GiB, and against concurrent streams, 1 to 32; how far off a line."""
    with Receivers(max(_STREAMS)) as receivers:
        yield _sizes(receivers, quick)
        yield _streams(receivers, quick)


def _sizes(receivers: Receivers, quick: bool) -> Table:
    sizes = [4**power for power in range(5 if quick else 7)]
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            write_holes(Path(folder) / f"m{size}.gguf", size * _MIB // 4)
        with tensortap(Path(folder), cache_bytes=_CACHE_BYTES) as server:
            seconds = []
            for size in sizes:
                path = DATA.format(model=f"m{size}", tensor="w")
                receivers.read(server.port, [path])  # the file is in the page cache from now on
                rounds = 3 if quick else min(15, max(3, 1024 // size))
                reads = _timing.alternate({"": partial(receivers.read, server.port, [path])}, rounds)[""]
                seconds.append(min(read.seconds for read in reads))
    line = straight_line(sizes, seconds)
    exponent = math.log(seconds[-1] / seconds[2]) / math.log(sizes[-1] / sizes[2])
    return Table(
        "scale",
        "one cold stream (Q8_0): time against decoded size",
        ["MiB", "milliseconds", "line", "off the line", "GB/s"],
        [
            [size, took * 1e3, fitted * 1e3, took / fitted - 1, size * _MIB / took / 1e9]
            for size, took, fitted in zip(sizes, seconds, line, strict=True)
        ],
        [_beside_line(seconds, line, sizes, "milliseconds", "MiB of float32")],
        [_straight(seconds, line)],
        [f"exponent from {sizes[2]} MiB on: {exponent:.3f}; {_HOW_FITTED}"],
    )


def _streams(receivers: Receivers, quick: bool) -> Table:
    size = (8 if quick else 64) * _MIB
    names = [f"w{number}" for number in range(max(_STREAMS))]
    paths = [DATA.format(model="m", tensor=name) for name in names]
    with tempfile.TemporaryDirectory() as folder:
        write_holes(Path(folder) / "m.gguf", size // 4, names)
        with tensortap(Path(folder), cache_bytes=_CACHE_BYTES) as server:
            receivers.read(server.port, paths)
            sides = {f"{streams}": partial(receivers.read, server.port, paths[:streams]) for streams in _STREAMS}
            reads = _timing.alternate(sides, 2 if quick else 5)
    seconds = [min(read.seconds for read in reads[side]) for side in sides]
    line = straight_line(_STREAMS, seconds)
    per_mib = [took * 1e6 / (streams * size / _MIB) for streams, took in zip(_STREAMS, seconds, strict=True)]
    return Table(
        "scale-streams",
        f"cold streams (Q8_0) of {size // _MIB} MiB each at once: time against their number",
        ["streams", "milliseconds", "line", "off the line", "µs per MiB"],
        [
            [streams, took * 1e3, fitted * 1e3, took / fitted - 1, each]
            for streams, took, fitted, each in zip(_STREAMS, seconds, line, per_mib, strict=True)
        ],
        [
            _beside_line(seconds, line, _STREAMS, "milliseconds until the last is done", "streams"),
            Plot([Series("measured", per_mib)], _STREAMS, "µs per MiB of float32", "streams", kind="lines", log_x=True),
        ],
        [_straight(seconds, line)],
        [_HOW_FITTED],
    )


_HOW_FITTED = "the line is the straight one with the least squares of relative deviations"


def straight_line(places: Sequence[float], seconds: Sequence[float]) -> list[float]:
    """The straight line a + b x that lies nearest, deviations being relative; a is not below zero."""
    times = np.array(seconds)
    terms = np.stack([np.ones(len(places)), np.array(places, np.float64)], axis=1)
    (start, slope), *_ = np.linalg.lstsq(terms / times[:, None], np.ones(len(times)), rcond=None)
    if start < 0:
        start, slope = 0.0, float(np.mean(terms[:, 1] / times) / np.mean((terms[:, 1] / times) ** 2))
    return [float(start + slope * place) for place in places]


def _beside_line(
    seconds: Sequence[float], line: Sequence[float], x: Sequence[float], y_label: str, x_label: str
) -> Plot:
    measured = Series("measured", [took * 1e3 for took in seconds])
    straight = Series("straight line", [fitted * 1e3 for fitted in line], ceiling=True)
    return Plot([measured, straight], x, y_label, x_label, kind="lines", log_x=True, log_y=True)


def _straight(seconds: Sequence[float], line: Sequence[float]) -> Target:
    off = max(abs(took / fitted - 1) for took, fitted in zip(seconds, line, strict=True))
    return Target("farthest from a straight line, relative", off, _OFF_THE_LINE, "at most")
