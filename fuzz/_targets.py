"""The targets: modules of this package, loaded when wanted, since the fuzzer traces only what it sees loaded."""

import importlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

__all__ = ["TARGETS", "Target", "load"]

TARGETS = ("header", "file", "selection", "range", "body", "path", "problem", "http")
"""The names of all targets, in the order in which they are run."""

Mutate = Callable[[bytes, int, int, Callable[[bytes, int], bytes]], bytes]
Splice = Callable[[bytes, bytes, int, int], bytes]


class Target(NamedTuple):
    """What a target's module has.

    Attributes
    ----------
    run : takes an input, and raises where something does not hold
    seeds : inputs to begin with
    words : what the fuzzer puts into inputs, of a target whose inputs are text
    mutated : makes an input of another, given its bytes, a largest size, a seed, and a mutation without a thought; for
        a format that the fuzzer's own mutations would only break
    spliced : makes an input of two (given both, a largest size and a seed); together with ``mutated``
    """

    run: Callable[[bytes], None]
    seeds: Callable[[], Sequence[bytes]]
    words: tuple[bytes, ...]
    mutated: Mutate | None
    spliced: Splice | None


def load(name: str) -> Target:
    """Load the module of a target; raises ImportError for a name that has none."""
    module = importlib.import_module(f"fuzz.{name}")
    optional = (getattr(module, name, None) for name in ("mutated", "spliced"))
    return Target(module.run, module.seeds, getattr(module, "WORDS", ()), *optional)
