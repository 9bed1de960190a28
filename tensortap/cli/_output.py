"""What is printed: tables for people, JSON for scripts, bars where somebody watches.

On a terminal, tables are coloured and folded to its width; elsewhere they are aligned text, in whole lines, without
colours. Names come from files that anybody may have made: what is not printable in them is escaped, so that no name
can command a terminal, and none is taken for markup.
"""

from __future__ import annotations

import base64
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table
from rich.text import Text

__all__ = ["Tell", "bar", "name_fields", "number", "plain", "print_json", "print_pairs", "print_table", "shown", "size"]

Tell = Callable[[int, int], object]


def shown(text: str) -> str:
    """A text as one printable line: escapes stand for everything else."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def name_fields(field: str, name: str) -> dict[str, str]:
    """A name for JSON: as text, and, where it is no UTF-8, its bytes in ``…_base64``, as the service has it."""
    raw = name.encode("utf-8", "surrogateescape")
    text = raw.decode("utf-8", "replace")
    return {field: text} if text == name else {field: text, f"{field}_base64": base64.b64encode(raw).decode()}


def plain(value: Any) -> Any:
    """A value for JSON: NaN and infinities as texts, bytes as their text and base64."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, bytes):
        return {"text": value.decode("utf-8", "replace"), "base64": base64.b64encode(value).decode()}
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def print_json(document: dict[str, Any]) -> None:
    """Print an object as one line of JSON, in ASCII."""
    click.echo(json.dumps(plain(document), allow_nan=False))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[int] = ()) -> None:
    """Print a table; the columns of the places in ``right`` are numbers."""
    texts = [[shown(cell) for cell in row] for row in rows]
    console = Console(file=sys.stdout)
    if console.is_terminal:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for place, column in enumerate(columns):
            table.add_column(column, justify="right" if place in right else "left", overflow="fold")
        for row in texts:
            table.add_row(*map(Text, row))
        console.print(table)
        return
    texts.insert(0, list(columns))
    widths = [max(map(len, cells)) for cells in zip(*texts, strict=True)]
    for row in texts:
        cells = (
            cell.rjust(width) if place in right else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        click.echo("  ".join(cells).rstrip())


def print_pairs(pairs: Iterable[tuple[str, object]]) -> None:
    """Print what things are, one a line."""
    lines = [(label, shown(str(value))) for label, value in pairs]
    width = max(len(label) for label, _ in lines)
    for label, value in lines:
        click.echo(f"{label.ljust(width)}  {value}")


def size(n_bytes: int | None) -> str:
    """A number of bytes as people read it."""
    if n_bytes is None:
        return "?"
    if n_bytes < 1024:
        return f"{n_bytes} B"
    power = min(5, (n_bytes.bit_length() - 1) // 10)
    return f"{n_bytes / 1024**power:.1f} {'KMGTP'[power - 1]}iB"


def number(value: float) -> str:
    """A figure in six digits."""
    return f"{value:.6g}"


@contextmanager
def bar(what: str) -> Iterator[Tell]:
    """A bar on standard error, where somebody watches: a function of the bytes that are there and the bytes of all."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _, __: None
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(binary_units=True))
    with Progress(*columns, TransferSpeedColumn(), TimeRemainingColumn(), console=console) as bars:
        task = None

        def tell(done: int, total: int) -> None:
            nonlocal task
            if task is None:  # what was there before counts for no speed
                task = bars.add_task(shown(what), total=total, completed=done)
            bars.update(task, completed=done)

        yield tell
