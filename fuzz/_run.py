"""The command line: targets fuzzed in turn, a failure repeated, the corpus made small."""

import shlex
import sys
import tempfile
from pathlib import Path

import click

from fuzz._campaign import Statistics, fuzz, merge
from fuzz._limits import within_limits
from fuzz._targets import TARGETS, load

__all__ = ["main"]

_BUILD = Path("build/fuzz")
_COLUMNS = ("target", "inputs", "seconds", "inputs/s", "coverage", "new paths", "failures")


@click.command(name="python -m fuzz", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("names", nargs=-1, type=click.Choice(TARGETS), metavar="[TARGET]...")
@click.option("--seconds", type=click.IntRange(1), default=300, show_default=True, help="In all, for all targets.")
@click.option(
    "--corpus",
    type=click.Path(path_type=Path),
    default=_BUILD / "corpus",
    show_default=True,
    help="Where new inputs are kept, a folder for each target; those of fuzz/corpus are always used.",
)
@click.option("--seed", type=click.IntRange(1), help="Begin with this seed, not with one of the fuzzer's own.")
@click.option("--repeat", type=click.Path(path_type=Path, exists=True), help="Give this file to the one TARGET named.")
@click.option("--merge", "is_merging", is_flag=True, help="Fuzz nothing: put what is new in --corpus into fuzz/corpus.")
def main(
    names: tuple[str, ...], seconds: int, corpus: Path, seed: int | None, repeat: Path | None, *, is_merging: bool
) -> None:
    """Fuzz each TARGET, or all: header file selection range body path problem http.

    A table of what was done is printed at the end; the exit code is 1 if anything failed.
    """
    chosen = names or TARGETS
    if repeat is not None:
        if len(names) != 1:
            raise click.UsageError("--repeat needs one TARGET.")
        within_limits(load(names[0]).run, repeat.read_bytes())
        click.echo(f"{repeat} fails no more")
        return
    # What a target leaves behind when the fuzzer ends it goes with this folder.
    with tempfile.TemporaryDirectory(prefix="fuzz-") as scratch:
        if is_merging:
            for name in chosen:
                before, after = merge(name, corpus, Path(scratch))
                click.echo(f"{name}: {before} inputs make {after}")
            return
        done = [
            fuzz(name, max(1, seconds // len(chosen)), corpus, _BUILD / "found", seed, Path(scratch)) for name in chosen
        ]
    click.echo(_table(done))
    for one in done:
        for failure in one.failures:
            again = shlex.join((sys.executable, "-m", "fuzz", one.target, "--repeat", str(failure)))
            click.echo(f"{one.target} failed; again: {again}")
        if one.broken:
            click.echo(f"{one.target} ended without a result:\n{one.broken}")
    sys.exit(any(one.failures or one.broken for one in done))


def _table(done: list[Statistics]) -> str:
    rows: list[tuple[str, ...]] = [_COLUMNS]
    for one in done:
        speed = f"{one.inputs / one.seconds:.0f}" if one.seconds else "-"
        coverage = f"{one.coverage_at_start} → {one.coverage_at_end}"
        figures = (f"{one.inputs}", f"{one.seconds:.0f}", speed, coverage, f"{one.new_paths}", f"{len(one.failures)}")
        rows.append((one.target, *figures))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join((row[0].ljust(widths[0]), *cells[1:])))
    return "\n".join(lines)
