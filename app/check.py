"""``check``: open files as the service would, decode every window of every tensor, and say what is in them."""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import click
import numpy as np

from app.buffers import Buffers
from app.errors import Problem
from app.gguf import GGUFError, Tensor, part_name, split_name
from app.names import text
from app.snapshot import Snapshot
from app.windows import WINDOW_WEIGHTS, source

__all__ = ["TensorReport", "check_files", "check_tensor"]


@dataclass(slots=True)
class TensorReport:
    """What decoding a tensor showed: its least and largest finite value (None if none), NaNs, infinities, a fault."""

    tensor: Tensor
    least: float | None = None
    largest: float | None = None
    nans: int = 0
    infinities: int = 0
    fault: str | None = None


def check_files(paths: Sequence[str]) -> bool:
    """Check each file, print a table of each, and give whether all were without fault.

    A file of a split set stands for the set when all of its parts lie beside it.
    """
    good = True
    checked: set[tuple[bytes, ...]] = set()
    for path in paths:
        parts = _parts(os.fsencode(path))
        if parts not in checked:
            checked.add(parts)
            good &= _check_model(parts)
    return good


def check_tensor(snapshot: Snapshot, tensor: Tensor, on_decoded: Callable[[int], None]) -> TensorReport:
    """Decode every window of a tensor and report; a fault is reported, not raised.

    ``on_decoded`` is called with the number of weights of each window.
    """
    report = TensorReport(tensor)
    if tensor.fault is not None:
        report.fault = f"{tensor.fault.slug}: {tensor.fault.detail}"
        return report
    windows = source(snapshot, tensor, "decoded")
    buffers = Buffers(WINDOW_WEIGHTS, keep=1)
    for window in range(-(-tensor.n_weights // WINDOW_WEIGHTS)):
        try:
            weights = windows.read(window, buffers)
        except Problem as problem:
            report.fault = f"{problem.slug}: {problem.detail}"
            return report
        on_decoded(weights.size)
        finite = weights[np.isfinite(weights)]
        nans = int(np.isnan(weights).sum())
        report.nans += nans
        report.infinities += weights.size - finite.size - nans
        if finite.size:
            least, largest = float(finite.min()), float(finite.max())
            report.least = least if report.least is None else min(report.least, least)
            report.largest = largest if report.largest is None else max(report.largest, largest)
    return report


def _parts(path: bytes) -> tuple[bytes, ...]:
    """The file, or the whole split set that it is a part of, if that is there."""
    folder, name = os.path.split(path)
    part = split_name(name)
    if part is None:
        return (path,)
    every = tuple(os.path.join(folder, part_name(part.stem, number, part.count)) for number in range(1, part.count + 1))
    return every if all(map(os.path.exists, every)) else (path,)


def _check_model(paths: tuple[bytes, ...]) -> bool:
    shown = ", ".join(_printable(path) for path in paths)
    try:
        # Links are the caller's own here: they are followed.
        snapshot = Snapshot.open(b"", [os.path.realpath(path) for path in paths])
    except (GGUFError, OSError) as error:
        reason = error.strerror or str(error) if isinstance(error, OSError) else str(error)
        if os.path.isdir(paths[0]):
            reason = "a folder: give its files, as FOLDER/*.gguf"
        notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))  # which part of a split set
        click.echo(f"{shown}: {reason}{notes}", err=True)
        return False
    with snapshot:
        tensors = snapshot.model.tensors
        with click.progressbar(
            length=sum(tensor.n_weights for tensor in tensors if tensor.readable),
            label=_printable(paths[0]),
            file=sys.stderr,
        ) as bar:
            reports = [check_tensor(snapshot, tensor, bar.update) for tensor in tensors]
        faults = sum(report.fault is not None for report in reports)
        click.echo(f"{shown}: {len(tensors)} tensors, {faults} faulty")
        _print_table(reports)
        for warning in snapshot.model.warnings:
            click.echo(f"warning: {warning}")
        click.echo()
    return faults == 0


def _print_table(reports: Sequence[TensorReport]) -> None:
    rows: list[tuple[str, ...]] = [("tensor", "type", "shape", "bytes", "min", "max", "NaN", "inf", "fault")]
    for report in reports:
        tensor = report.tensor
        rows.append(
            (
                _printable(tensor.name),
                tensor.type_name or str(tensor.type_id),
                "x".join(map(str, tensor.shape)) or "scalar",
                "?" if tensor.n_bytes is None else str(tensor.n_bytes),
                _value(report.least),
                _value(report.largest),
                str(report.nans),
                str(report.infinities),
                report.fault or "",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    for row in rows:
        cells = [
            cell.rjust(width) if column >= 3 else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row[:-1], widths, strict=True))
        ]
        click.echo("  ".join([*cells, row[-1]]).rstrip())


def _printable(name: bytes) -> str:
    """A name for a line of a terminal: what would move its cursor or colour its text is U+FFFD."""
    return "".join(char if char.isprintable() else "\ufffd" for char in text(name))


def _value(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"
