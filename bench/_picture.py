"""The picture of a table: bars or lines, one panel for each of its plots."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from bench._table import Machine, Plot, Table

__all__ = ["draw"]

# Okabe and Ito's colours, which people with any kind of colour vision can tell apart.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999999")
_CEILING = "#555555"
_HEIGHT, _WIDEST = 4.6, 15.0  # inches
_LETTERS_PER_INCH = 13
_MOST_TICKS = 12
_STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
}


def draw(table: Table, machine: Machine, path: Path) -> None:
    """Draw a table's plots, side by side or, where that is too wide, one below the other, and write them as a PNG."""
    widths = [_width(plot) for plot in table.plots]
    side_by_side = sum(widths) <= _WIDEST
    size = (sum(widths), _HEIGHT) if side_by_side else (max(widths), _HEIGHT * len(widths) * 0.85)
    grid = {"ncols": len(widths), "width_ratios": widths} if side_by_side else {"nrows": len(widths)}
    same_scale = len({plot.y_label for plot in table.plots}) == 1
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=size, dpi=110, layout="constrained")
        panels = list(figure.subplots(squeeze=False, sharey=same_scale, **grid).flat)
        for panel, plot in zip(panels, table.plots, strict=True):
            (_draw_bars if plot.kind == "bars" else _draw_lines)(panel, plot)
            _scale(panel, table.plots if same_scale else [plot])
            panel.set_ylabel(plot.y_label)
            panel.set_xlabel(plot.x_label)
            panel.set_title(plot.title, fontsize=10, loc="left")
        _explain(figure, panels, table.plots)
        title = textwrap.wrap(table.title, int(size[0] * _LETTERS_PER_INCH))
        where = f"{machine.cpu}, {machine.cores} cores, {machine.date[:10]}"
        figure.suptitle("\n".join([*title, where]), fontsize=10)
        figure.savefig(path)


def _width(plot: Plot) -> float:
    """Inches: so many that every bar can be told from the next."""
    n_bars = len(plot.x) * sum(not series.ceiling for series in plot.series) if plot.kind == "bars" else 0
    return min(_WIDEST, max(6.5 if plot.kind == "lines" else 4.8, 2.5 + 0.13 * n_bars + 0.1 * len(plot.x)))


def _draw_bars(panel: Any, plot: Plot) -> None:
    bars = [series for series in plot.series if not series.ceiling]
    width = 0.8 / len(bars)
    for number, series in enumerate(bars):
        places = [at + (number - (len(bars) - 1) / 2) * width for at in range(len(plot.x))]
        panel.bar(places, _heights(series.values), width, label=series.label, color=_COLOURS[number % len(_COLOURS)])
    for series in plot.series:
        if series.ceiling:
            places = [edge for at in range(len(plot.x)) for edge in (at - 0.5, at + 0.5)]
            heights = [height for height in _heights(series.values) for _ in range(2)]
            panel.plot(places, heights, linestyle="--", linewidth=1.2, color=_CEILING, label=series.label)
    labels = [str(name) for name in plot.x]
    crowded = len(labels) * max(map(len, labels)) > 60
    panel.set_xticks(range(len(labels)), labels)
    if crowded:
        panel.tick_params("x", rotation=35)
        for label in panel.get_xticklabels():
            label.set(ha="right", rotation_mode="anchor")
    panel.set_xlim(-0.6, len(labels) - 0.4)


def _draw_lines(panel: Any, plot: Plot) -> None:
    colours = iter(_COLOURS * 2)
    for series in plot.series:
        style: dict[str, Any] = (
            {"linestyle": "--", "color": _CEILING} if series.ceiling else {"marker": "o", "color": next(colours)}
        )
        panel.plot(plot.x, _heights(series.values), label=series.label, linewidth=1.4, markersize=4, **style)
    if plot.log_x:
        panel.set_xscale("log", base=2)
    if len(plot.x) <= _MOST_TICKS:
        panel.set_xticks(plot.x, [f"{place:g}" for place in plot.x if not isinstance(place, str)])
        panel.xaxis.set_minor_locator(NullLocator())


def _scale(panel: Any, plots: Sequence[Plot]) -> None:
    """The y axis: so that everything in these plots is on it, and the lowest bar, too."""
    heights = [height for plot in plots for series in plot.series for height in series.values if height is not None]
    if plots[0].log_y:
        panel.set_yscale("log")
        panel.set_ylim(min(heights) / 1.5, max(heights) * 1.2)
        panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        panel.yaxis.set_minor_locator(NullLocator())
    else:
        panel.set_ylim(0, max(heights) * 1.05)


def _explain(figure: Figure, panels: Sequence[Any], plots: Sequence[Plot]) -> None:
    """A legend: one for all panels if they show the same."""
    labels = {tuple(series.label for series in plot.series) for plot in plots}
    if len(labels) == 1:
        if len(plots[0].series) > 1:
            handles, names = panels[0].get_legend_handles_labels()
            figure.legend(handles, names, frameon=False, ncols=min(5, len(names)), loc="outside lower center")
        return
    for panel, plot in zip(panels, plots, strict=True):
        if len(plot.series) > 1:
            panel.legend(frameon=False, ncols=len(plot.series), loc="lower right", bbox_to_anchor=(1, 1), borderpad=0)


def _heights(values: Sequence[float | None]) -> list[float]:
    return [float("nan") if value is None else value for value in values]
