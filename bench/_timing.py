"""How things are timed: the sides take turns, several rounds, and the best of each counts, since noise only adds."""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

__all__ = ["alternate", "best", "geometric_mean", "seconds"]

Measured = TypeVar("Measured")


def seconds(work: Callable[[], object]) -> float:
    """How long one run of ``work`` takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def alternate(sides: Mapping[str, Callable[[], Measured]], rounds: int) -> dict[str, list[Measured]]:
    """What each side measures in ``rounds`` rounds; every other round goes backwards, so that none is always first."""
    measured: dict[str, list[Measured]] = {name: [] for name in sides}
    names = list(sides)
    for turn in range(rounds):
        for name in names if turn % 2 == 0 else reversed(names):
            measured[name].append(sides[name]())
    return measured


def best(sides: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The least seconds that one run of each side took."""
    timed = {name: lambda work=work: seconds(work) for name, work in sides.items()}
    return {name: min(times) for name, times in alternate(timed, rounds).items()}


def geometric_mean(ratios: Iterable[float]) -> float:
    """The geometric mean of positive numbers, at least one."""
    logarithms = [math.log(ratio) for ratio in ratios]
    return math.exp(sum(logarithms) / len(logarithms))
