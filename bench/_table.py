"""The table that a benchmark gives: figures, what they should be, and the machine; as text, JSON and Markdown."""

import json
import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Literal

__all__ = ["Machine", "Plot", "Series", "Table", "Target", "write_table"]

Cell = str | int | float | None
_DISTRIBUTIONS = ("numpy", "gguf", "libggml-python", "fastapi", "starlette", "uvicorn", "uvloop", "httptools", "httpx")
_PROGRAMS = {"nginx": "-v", "wrk": "-v"}


@dataclass(frozen=True, slots=True)
class Target:
    """What a figure should be: ``measured`` at least or at most ``bound``."""

    text: str
    measured: float
    bound: float
    kind: Literal["at least", "at most"] = "at least"

    @property
    def reached(self) -> bool:
        """Whether the figure is what it should be."""
        return self.measured >= self.bound if self.kind == "at least" else self.measured <= self.bound

    def __str__(self) -> str:
        verdict = "reached" if self.reached else "not reached"
        return f"{self.text}: {_shown(self.measured)}, {self.kind} {_shown(self.bound)} wanted: {verdict}"


@dataclass(frozen=True, slots=True)
class Series:
    """What is drawn in one colour: a height for each place on the x axis, None where there is none.

    A ``ceiling`` is drawn as a dashed line: a bound or a straight line beside which the others are seen.
    """

    label: str
    values: Sequence[float | None]
    ceiling: bool = False


@dataclass(frozen=True, slots=True)
class Plot:
    """One panel of a table's picture: bars over named places, or lines over numbers."""

    series: Sequence[Series]
    x: Sequence[str | float]
    y_label: str
    x_label: str = ""
    title: str = ""
    kind: Literal["bars", "lines"] = "bars"
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """The figures of a benchmark. ``name`` is that of its files; notes say what the figures do not."""

    name: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    plots: Sequence[Plot]
    targets: Sequence[Target] = ()
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"table {self.name}: {len(self.columns)} columns, but a row of {len(row)}: {row}")

    def text(self) -> str:
        """The table for a terminal."""
        lines = [list(self.columns), *([_shown(cell) for cell in row] for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        shown = ["  ".join(_aligned(row, widths)).rstrip() for row in lines]
        return "\n".join([f"{self.name}: {self.title}", *shown, *self._remarks()]) + "\n"

    def markdown(self, machine: "Machine") -> str:
        """The table as Markdown, with its picture and the machine."""
        lines = [
            f"# {self.name}: {self.title}",
            "",
            f"![{self.name}]({self.name}.png)",
            "",
            _markdown_row(self.columns),
            _markdown_row(["---", *["---:"] * (len(self.columns) - 1)]),
            *(_markdown_row([_shown(cell) for cell in row]) for row in self.rows),
            "",
            *(f"- {_escaped(remark)}" for remark in self._remarks()),
            "",
            _escaped(str(machine)),
        ]
        return "\n".join(lines) + "\n"

    def json(self, machine: "Machine") -> str:
        """The table as JSON: cells unrounded, each target with whether it is reached."""
        document = {
            "name": self.name,
            "title": self.title,
            "machine": asdict(machine),
            "columns": list(self.columns),
            "rows": [list(row) for row in self.rows],
            "targets": [{**asdict(target), "reached": target.reached} for target in self.targets],
            "notes": list(self.notes),
        }
        return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    def _remarks(self) -> list[str]:
        return [*map(str, self.targets), *self.notes]


@dataclass(frozen=True, slots=True)
class Machine:
    """Where and when figures were measured, and with which versions."""

    date: str
    cpu: str
    cores: int
    memory_gib: float
    system: str
    python: str
    quick: bool
    versions: dict[str, str] = field(default_factory=dict)

    @classmethod
    def here(cls, *, quick: bool) -> "Machine":
        """The machine that runs this, now. ``quick``: the figures are of a short run."""
        versions = {name: version(name) for name in _DISTRIBUTIONS}
        versions |= {name: _program_version(name, flag) for name, flag in _PROGRAMS.items() if shutil.which(name)}
        return cls(
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            cpu=_cpu(),
            cores=len(os.sched_getaffinity(0)),
            memory_gib=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30), 1),
            system=f"{platform.system()} {platform.release()}",
            python=platform.python_version(),
            quick=quick,
            versions=versions,
        )

    def __str__(self) -> str:
        versions = ", ".join(f"{name} {number}" for name, number in self.versions.items())
        return (
            f"{self.cpu}, {self.cores} cores, {self.memory_gib} GiB, {self.system}, Python {self.python}, {versions}; "
            f"{self.date}{', a quick run' if self.quick else ''}."
        )


def write_table(table: Table, machine: Machine, folder: Path) -> None:
    """Write NAME.json, NAME.md and NAME.png into ``folder``, which is made if need be."""
    from bench._picture import draw  # matplotlib is needed by this alone

    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{table.name}.json").write_text(table.json(machine), encoding="utf-8")
    (folder / f"{table.name}.md").write_text(table.markdown(machine), encoding="utf-8")
    draw(table, machine, folder / f"{table.name}.png")


def _shown(cell: Cell) -> str:
    """A cell for people: three digits that count, and a dash for nothing."""
    if cell is None:
        return "-"
    if not isinstance(cell, float):
        return str(cell)
    return f"{cell:.0f}" if abs(cell) >= 100 else f"{cell:#.3g}"


def _aligned(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    first, *others = zip(row, widths, strict=True)
    return [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]


def _escaped(text: str) -> str:
    """Text that Markdown takes for itself: a name like IQ2_XXS is no emphasis, and a bar ends no cell."""
    return "".join(f"\\{char}" if char in "\\`*_|<>" else char for char in text)


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(_escaped, cells))} |"


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _program_version(name: str, flag: str) -> str:
    """What a program says of itself: nginx and wrk print it as the first line, after their name."""
    result = subprocess.run([name, flag], capture_output=True, text=True, check=False)
    words = (result.stdout or result.stderr).splitlines()[0].replace("/", " ").split()
    return next(word for word in words if any(char.isdigit() for char in word))
