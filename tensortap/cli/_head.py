"""``tensortap head``: the first rows of a tensor, and what its weights are like."""

from __future__ import annotations

import sys
from collections.abc import Iterable

import click
from rich.console import Console

from .._client import Client
from ._output import bar, name_fields, number, print_json, print_pairs, print_table
from ._select import Floats, Selection, as_matrix
from ._service import asks, json_option
from ._stats import Histogram, Moments

__all__ = ["head"]

_BARS = 16
_BAR_WIDTH = 40

_JSON = """\b
--json: {"model", "name", "type", "shape", "rows", "values": [[…]], "statistics": {"weights", "min", "max", "mean",
         "std", "zeros", "nan", "inf"}, "histogram": [{"from", "to", "count"}]}, where rows says of how many rows
         the statistics are; NaN and infinities are texts.
"""


@click.command(epilog=_JSON)
@asks("MODEL", "TENSOR")
@click.option("-n", "--rows", "n_rows", type=click.IntRange(1), default=8, show_default=True, help="How many rows.")
@click.option(
    "--columns", type=click.IntRange(1), default=8, show_default=True, help="How many weights of each are shown."
)
@click.option("--all", "is_all", is_flag=True, help="Statistics of all rows, which are read one batch after the other.")
@json_option
def head(tap: Client, model_id: str, name: str, n_rows: int, columns: int, is_all: bool, as_json: bool) -> None:
    """Show the first rows of a tensor, statistics and a histogram.

    Statistics are of the first rows, or of all with --all; min, max, mean, std and the histogram leave out NaN and
    infinities.
    """
    model = tap[model_id]
    tensor = model[name]
    matrix = as_matrix(tensor)
    first = range(min(n_rows, tensor.n_rows))
    values: Floats = matrix[: len(first), :columns]
    moments, histogram = Moments(), Histogram()
    seen = range(tensor.n_rows) if is_all else first
    selection = Selection(matrix, [seen, range(matrix.shape[1])])
    with bar(name) as tell:
        for batch in selection.batches():
            moments.add(batch)
            histogram.add(batch)
            tell(moments.n_weights * 4, selection.n_weights * 4)
    bars = histogram.bars(_BARS)
    if as_json:
        print_json(
            {
                **name_fields("model", model.id),
                **name_fields("name", name),
                "type": tensor._line.type_name,
                "shape": tensor.shape,
                "rows": len(seen),
                "values": values.tolist(),
                "statistics": moments.as_dict(),
                "histogram": [{"from": low, "to": high, "count": count} for low, high, count in bars],
            }
        )
        return
    _print_rows(values)
    click.echo(f"\nof {_many(len(seen), 'row')} out of {tensor.n_rows:,}, of {matrix.shape[1]:,} weights each")
    figures = moments.as_dict()
    print_pairs((label, f"{value:,}" if isinstance(value, int) else number(value)) for label, value in figures.items())
    if bars:
        click.echo()
        _print_bars(bars)


def _print_rows(values: Floats) -> None:
    names = [str(column) for column in range(values.shape[1])]
    rows = ([str(place), *map(number, row)] for place, row in enumerate(values.tolist()))
    print_table(("row", *names), rows, right=range(values.shape[1] + 1))


def _print_bars(bars: list[tuple[float, float, int]]) -> None:
    most = max(count for _, _, count in bars)
    edges = _aligned(number(edge) for edge in (bars[0][0], *(high for _, high, _ in bars)))
    counts = _aligned(f"{count:,}" for _, _, count in bars)
    block = "█" if _can_print("█") else "#"
    width = min(_BAR_WIDTH, Console(file=sys.stdout).width - 2 * len(edges[0]) - len(counts[0]) - 8)
    for place, (_, _, count) in enumerate(bars):
        drawn = block * max(int(count > 0), round(count / most * max(1, width)))
        click.echo(f"{edges[place]} to {edges[place + 1]}  {counts[place]}  {drawn}".rstrip())


def _aligned(texts: Iterable[str]) -> list[str]:
    cells = list(texts)
    width = max(map(len, cells))
    return [cell.rjust(width) for cell in cells]


def _can_print(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' if count != 1 else ''}"
