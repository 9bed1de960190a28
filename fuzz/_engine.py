"""One target under libFuzzer, in a process of its own: ``python -m fuzz._engine TARGET [arguments of libFuzzer]``.

libFuzzer ends the process: when its time is over, and with a failure, whose input it has then written down.
"""

import os
import sys
from collections.abc import Callable
from functools import partial

import atheris

from fuzz._limits import within_limits
from fuzz._targets import load

__all__ = ["main"]

# Where the branches are that guide the fuzzer: our own code, and what others have written that reads requests.
_TRACED = ("app", "decoders", "uvicorn", "werkzeug")


def main(name: str, arguments: list[str]) -> None:
    """Run the target called ``name`` until libFuzzer ends the process."""
    with atheris.instrument_imports(include=list(_TRACED)):
        target = load(name)
    mutators: dict[str, Callable[..., bytes]] = {}
    if target.mutated is not None and target.spliced is not None:
        mutated, spliced = target.mutated, target.spliced
        mutators["custom_mutator"] = lambda data, most, seed: mutated(bytes(data), most, seed, atheris.Mutate)
        mutators["custom_crossover"] = lambda one, two, most, seed: spliced(bytes(one), bytes(two), most, seed)
    # By the name that it is called by, libFuzzer runs itself once more where it merges.
    atheris.Setup(
        [os.environ.get("FUZZ_PROGRAM", sys.argv[0]), *arguments], partial(within_limits, target.run), **mutators
    )
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
