"""The command line: which benchmarks there are, and how they are run."""

import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import click

from bench import beside, cache, client, decoders, fleet, gather, load, memory, requests, scale, serve
from bench import open as opening
from bench._table import Machine, Table, write_table
from bench._targets import write_targets

__all__ = ["BENCHMARKS", "Benchmark", "main"]


@dataclass(frozen=True, slots=True)
class Benchmark:
    """What runs a benchmark, quickly or in full, and the programs that it needs."""

    run: Callable[[bool], Iterable[Table]]
    programs: tuple[str, ...] = ()


BENCHMARKS = {
    "decoders": Benchmark(decoders.run),
    "serve": Benchmark(serve.run, ("nginx",)),
    "requests": Benchmark(requests.run, ("wrk",)),
    "open": Benchmark(opening.run),
    "cache": Benchmark(cache.run),
    "scale": Benchmark(scale.run),
    "memory": Benchmark(memory.run),
    "gather": Benchmark(gather.run),
    "beside": Benchmark(beside.run),
    "load": Benchmark(load.run),
    "client": Benchmark(client.run),
    "fleet": Benchmark(fleet.run, ("nginx", "wrk")),
}


@click.command(name="python -m bench", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("names", nargs=-1, type=click.Choice(list(BENCHMARKS)), metavar="[NAME]...")
@click.option("--out", type=click.Path(path_type=Path), default=Path("bench/results"), help="Where tables are written.")
@click.option("--quick", is_flag=True, help="Less of everything: to see that it works, not for figures to keep.")
def main(names: tuple[str, ...], out: Path, quick: bool) -> None:
    """Run the benchmarks called NAME, or all: decoders serve requests open cache scale memory gather
    beside load client fleet.

    Each table is printed, and written as NAME.json, NAME.md and NAME.png; targets.md sums all of the folder up.
    """
    chosen = {name: BENCHMARKS[name] for name in names or BENCHMARKS}
    for name, benchmark in chosen.items():
        for program in benchmark.programs:
            if shutil.which(program) is None:
                raise click.ClickException(f"{name} needs {program}, which is not installed: `make bench` installs it")
    machine = Machine.here(quick=quick)
    for benchmark in chosen.values():
        for table in benchmark.run(quick):
            click.echo(table.text())
            write_table(table, machine, out)
    write_targets(out)
