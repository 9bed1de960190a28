"""Every decoder beside gguf-py, beside ggml's C and beside a plain copy of memory, in one thread.

Three ways: *cold*, where the call allocates its result, as gguf-py does; *warm*, into a buffer that was written
before, as ggml does; and *by windows*, as the service calls it: 2^18 weights at a time into one small buffer.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench._blocks import random_blocks
from bench._peers import ggml_decoder, gguf_decoder
from bench._table import Plot, Series, Table, Target
from bench._timing import best, geometric_mean
from decoders import GGMLType, dequantize, info

__all__ = ["run"]

_WINDOW = 1 << 18
_TWICE_AS_FAST_AS_C = ("F16", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S")


@dataclass(frozen=True, slots=True)
class _Row:
    """GB/s of float32 by side; a peer that has no such decoder is not there."""

    name: str
    speed: dict[str, float]

    def ratio(self, side: str, peer: str) -> float | None:
        return self.speed[side] / self.speed[peer] if peer in self.speed else None


def run(quick: bool) -> Iterator[Table]:
    """GB/s of float32 written for every format, and the ratios to gguf-py and to ggml's C."""
    n_weights, rounds = (1 << 20, 3) if quick else (1 << 24, 5)
    out = np.zeros(n_weights, np.float32)
    copy = _measured("copy", _copies(out), n_weights, rounds)
    rows = [
        _measured(type_.name, _decodes(type_, n_weights, out), n_weights, rounds)
        for type_ in GGMLType
        if info(type_).decodable
    ]
    yield _whole(copy, rows, n_weights)
    yield _by_windows(copy, rows)


def _measured(name: str, sides: dict[str, Callable[[], object]], n_weights: int, rounds: int) -> _Row:
    return _Row(name, {side: n_weights * 4 / least / 1e9 for side, least in best(sides, rounds).items()})


def _copies(out: NDArray[np.float32]) -> dict[str, Callable[[], object]]:
    source = np.ones_like(out)
    window = out[:_WINDOW]
    pieces = [source[start : start + _WINDOW] for start in range(0, out.size, _WINDOW)]

    def by_windows() -> None:
        for piece in pieces:
            np.copyto(window, piece)

    return {
        "cold": source.copy,
        "warm": lambda: np.copyto(out, source),
        "windows": by_windows,
    }


def _decodes(type_: GGMLType, n_weights: int, out: NDArray[np.float32]) -> dict[str, Callable[[], object]]:
    data = random_blocks(type_, n_weights)
    window = out[:_WINDOW]
    step = data.size * _WINDOW // n_weights
    pieces = [data[start : start + step] for start in range(0, data.size, step)]
    sides: dict[str, Callable[[], object]] = {
        "cold": lambda: dequantize(data, type_),
        "warm": lambda: dequantize(data, type_, out=out),
        "windows": lambda: [dequantize(piece, type_, out=window) for piece in pieces],
    }
    in_python, in_c = gguf_decoder(type_), ggml_decoder(type_)
    if in_python is not None:
        sides["gguf-py"] = lambda: in_python(data)
    if in_c is not None:
        sides["ggml"] = lambda: in_c(data, out)
        sides["ggml windows"] = lambda: [in_c(piece, window) for piece in pieces]
    return sides


def _whole(copy: _Row, rows: list[_Row], n_weights: int) -> Table:
    to_python = {row.name: ratio for row in rows if (ratio := row.ratio("warm", "gguf-py"))}
    to_python_cold = {row.name: ratio for row in rows if (ratio := row.ratio("cold", "gguf-py"))}
    to_c = {row.name: ratio for row in rows if (ratio := row.ratio("warm", "ggml"))}
    slowest = min(to_python, key=lambda name: to_python[name])
    slowest_cold = min(to_python_cold, key=lambda name: to_python_cold[name])
    least = min(_TWICE_AS_FAST_AS_C, key=lambda name: to_c[name])
    faster = [name for name, ratio in to_c.items() if ratio > 1]
    return Table(
        "decoders",
        f"decoding {n_weights:,} weights in one thread, GB/s of float32 written",
        ["format", "gguf-py", "cold", "/ gguf-py", "warm", "/ gguf-py", "ggml C", "warm / C", "of a copy"],
        [
            [
                *(row.name, row.speed.get("gguf-py"), row.speed["cold"], row.ratio("cold", "gguf-py")),
                *(row.speed["warm"], row.ratio("warm", "gguf-py")),
                *(row.speed.get("ggml"), row.ratio("warm", "ggml")),
                row.speed["warm"] / copy.speed["warm"],
            ]
            for row in [copy, *rows]
        ],
        [
            _plot(rows, {"tensortap": "cold", "gguf-py": "gguf-py"}, copy, "cold", "a result that the call allocates"),
            _plot(rows, {"tensortap": "warm", "ggml C": "ggml"}, copy, "warm", "into a buffer written before"),
        ],
        [
            Target(f"warm, least ratio to gguf-py ({slowest})", to_python[slowest], 2),
            Target("warm, geometric mean of the ratios to gguf-py", geometric_mean(to_python.values()), 6),
            Target(f"cold, least ratio to gguf-py ({slowest_cold})", to_python_cold[slowest_cold], 2),
            Target("cold, geometric mean of the ratios to gguf-py", geometric_mean(to_python_cold.values()), 6),
            Target(f"formats faster than ggml's C ({', '.join(faster) or 'none'})", len(faster), 8),
            Target(f"least ratio to C among {', '.join(_TWICE_AS_FAST_AS_C)} ({least})", to_c[least], 2),
            Target("geometric mean of the ratios to ggml's C", geometric_mean(to_c.values()), 0.5),
        ],
        [
            "gguf-py's F32 is a view of the file and is left out; formats without a figure have no decoder there.",
            "cold: the call allocates its result, as gguf-py's must; warm: into a buffer used before, C's the same.",
        ],
    )


def _by_windows(copy: _Row, rows: list[_Row]) -> Table:
    ratios = [ratio for row in rows if (ratio := row.ratio("windows", "ggml windows"))]
    return Table(
        "decoders-window",
        "decoding one window (2^18 weights) per call into one buffer, one thread, GB/s of float32 written",
        ["format", "tensortap", "ggml C", "ratio", "of a copy"],
        [
            [
                *(row.name, row.speed["windows"], row.speed.get("ggml windows"), row.ratio("windows", "ggml windows")),
                row.speed["windows"] / copy.speed["windows"],
            ]
            for row in [copy, *rows]
        ],
        [_plot(rows, {"tensortap": "windows", "ggml C": "ggml windows"}, copy, "windows", "")],
        notes=[f"geometric mean of the ratios to ggml's C: {geometric_mean(ratios):.2f}"],
    )


def _plot(rows: list[_Row], sides: dict[str, str], copy: _Row, ceiling: str, title: str) -> Plot:
    shown = [row for row in rows if all(side in row.speed for side in sides.values())]
    series = [Series(label, [row.speed[side] for row in shown]) for label, side in sides.items()]
    bound = Series("copy of memory", [copy.speed[ceiling]] * len(shown), ceiling=True)
    return Plot([*series, bound], [row.name for row in shown], "GB/s of float32", title=title, log_y=True)
