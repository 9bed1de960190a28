"""Runs of libFuzzer: a target fuzzed for a while, its corpus made small; and what libFuzzer says of it, as figures."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from fuzz._limits import MOST_BYTES
from fuzz._targets import load

__all__ = ["CORPUS", "Statistics", "figures", "fuzz", "merge"]

CORPUS = Path(__file__).parent / "corpus"
"""The inputs that are kept in the repository, a folder for each target."""

_HANGS_SECONDS = 20
_MOST_KEPT_BYTES = 4 << 10
_SHOWN_LINES = 40
# "#123	INITED cov: 45 ft: 67 corp: …": how many branches were seen, whenever something new was.
_COVERAGE = re.compile(r"^#\d+\s+([A-Z]+|pulse)\s+cov: (\d+)", re.MULTILINE)
_FIGURE = re.compile(r"^stat::(\w+):\s+(\d+)", re.MULTILINE)


@dataclass(slots=True)
class Statistics:
    """What was done with a target.

    ``coverage_at_start`` is how many branches the corpus reaches, ``coverage_at_end`` how many it does with what was
    found; ``new_paths`` is how many inputs that took. ``failures`` are the files of inputs that failed; ``broken`` is
    the end of the output of a fuzzer that ended without a failure and without an end.
    """

    target: str
    seconds: float = 0.0
    inputs: int = 0
    coverage_at_start: int = 0
    coverage_at_end: int = 0
    new_paths: int = 0
    failures: list[Path] = field(default_factory=list)
    broken: str = ""


def fuzz(name: str, seconds: int, corpus: Path, found: Path, seed: int | None, scratch: Path) -> Statistics:
    """Fuzz a target.

    Parameters
    ----------
    seconds : for how long, after the corpus has been run
    corpus : where inputs that reach something new are kept, in a folder of the target's name
    found : where inputs that fail are kept, likewise
    seed : where the fuzzer begins; None for a place of its own
    scratch : a folder for what needs not be kept
    """
    for folder in (corpus / name, found / name):
        folder.mkdir(parents=True, exist_ok=True)
    before = set((found / name).iterdir())
    arguments = [
        f"-max_total_time={seconds}",
        f"-max_len={MOST_BYTES}",
        f"-timeout={_HANGS_SECONDS}",
        f"-artifact_prefix={found / name}/",
        "-print_final_stats=1",
        *([f"-seed={seed}"] if seed else []),
        *_dictionary(name, scratch),
    ]
    began = time.monotonic()
    output = _libfuzzer(name, arguments, [corpus / name, CORPUS / name, _seeds(name, scratch)], scratch)
    statistics = figures(name, output)
    statistics.seconds = time.monotonic() - began
    statistics.failures = sorted(set((found / name).iterdir()) - before)
    if not statistics.failures and "\nDone " not in output:
        statistics.broken = "\n".join(output.splitlines()[-_SHOWN_LINES:])
    elif statistics.failures:
        print("\n".join(output.splitlines()[-_SHOWN_LINES:]), file=sys.stderr)
    return statistics


def figures(name: str, output: str) -> Statistics:
    """What libFuzzer's output says, as figures."""
    coverage = [int(branches) for _, branches in _COVERAGE.findall(output)]
    at_start = [int(branches) for event, branches in _COVERAGE.findall(output) if event == "INITED"]
    final = {figure: int(value) for figure, value in _FIGURE.findall(output)}
    return Statistics(
        name,
        inputs=final.get("number_of_executed_units", 0),
        coverage_at_start=at_start[0] if at_start else 0,
        coverage_at_end=coverage[-1] if coverage else 0,
        new_paths=final.get("new_units_added", 0),
    )


def merge(name: str, corpus: Path, scratch: Path) -> tuple[int, int]:
    """Put into the repository's corpus the fewest small inputs that reach what it, ``corpus`` and the seeds reach.

    Small is up to 4 KiB: what is larger is soon made of these again. Inputs that failed once (``found-NAME``) stay.
    Gives how many inputs there were and how many there are.
    """
    kept, merged, control = CORPUS / name, scratch / f"merged-{name}", scratch / f"merge-{name}"
    small = scratch / f"small-{name}"
    for folder in (merged, small):
        folder.mkdir()
    for number, source in enumerate((kept, corpus / name, _seeds(name, scratch))):
        for path in source.glob("*"):
            if path.stat().st_size <= _MOST_KEPT_BYTES:
                shutil.copyfile(path, small / f"{number}-{path.name}")
    before = len(list(small.iterdir()))
    arguments = ["-set_cover_merge=1", f"-merge_control_file={control}", f"-max_len={MOST_BYTES}"]
    _libfuzzer(name, arguments, [merged, small], scratch)
    for path in kept.glob("*"):
        if not path.name.startswith("found-"):
            path.unlink()
    kept.mkdir(parents=True, exist_ok=True)
    for path in merged.iterdir():
        content = path.read_bytes()
        (kept / hashlib.blake2b(content, digest_size=8).hexdigest()).write_bytes(content)
    return before, len(list(kept.iterdir()))


def _libfuzzer(name: str, arguments: list[str], folders: list[Path], scratch: Path) -> str:
    """Run libFuzzer, and give what it printed."""
    # To merge, it runs itself once more, by the name that it was called by.
    program = scratch / f"fuzz-{name}"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m fuzz._engine {name} "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    there = [str(folder) for folder in folders if folder.is_dir()]
    environment = {**os.environ, "TMPDIR": str(scratch), "FUZZ_PROGRAM": str(program)}
    command = [str(program), *arguments, *there]
    run = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    return run.stdout.decode("utf-8", "replace")


def _seeds(name: str, scratch: Path) -> Path:
    folder = scratch / f"seeds-{name}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for number, seed in enumerate(load(name).seeds()):
        (folder / f"{number}").write_bytes(seed)
    return folder


def _dictionary(name: str, scratch: Path) -> list[str]:
    words = load(name).words
    if not words:
        return []
    path = scratch / f"words-{name}"
    lines = ('"' + "".join(f"\\x{byte:02x}" for byte in word) + '"\n' for word in words)
    path.write_text("".join(lines), encoding="ascii")
    return [f"-dict={path}"]
