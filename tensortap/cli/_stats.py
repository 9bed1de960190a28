"""Statistics of weights that come in batches, in memory that does not grow with them; all sums are float64."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

__all__ = ["Difference", "Histogram", "Moments"]

_CHUNK = 1 << 14  # weights at a time: their float64 copies stay in the core's cache (5 ns a weight; with 1 << 18, 13)


def _chunks(*arrays: NDArray[np.float32]) -> Iterator[tuple[NDArray[np.float32], ...]]:
    for first in range(0, arrays[0].size, _CHUNK):
        yield tuple(array.reshape(-1)[first : first + _CHUNK] for array in arrays)


def _dot(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    # BLAS would share this little among all cores and wait for them: 175 ns a weight in place of 5.
    return float(np.einsum("i,i->", first, second))


class Moments:
    """How many weights, zeros, NaNs and infinities there are, and min, max, mean and std of the finite ones.

    Means and squares are merged as by Chan, Golub and LeVeque (1979), which loses nothing where the mean is large.
    ``std`` divides by the number, as numpy's.
    """

    def __init__(self) -> None:
        self.n_weights = self.zeros = self.nans = self.infinities = 0
        self.min, self.max = math.inf, -math.inf
        self.mean = 0.0
        self._n_finite = 0
        self._squares = 0.0

    @property
    def std(self) -> float:
        """The standard deviation; NaN if no weight is finite."""
        return math.sqrt(self._squares / self._n_finite) if self._n_finite else math.nan

    def add(self, weights: NDArray[np.float32]) -> None:
        """Count some more."""
        for (chunk,) in _chunks(weights):
            self._add(chunk)

    def as_dict(self) -> dict[str, int | float]:
        """All of it by name; NaN for what no finite weight has."""
        has = self._n_finite > 0
        return {
            "weights": self.n_weights,
            "min": self.min if has else math.nan,
            "max": self.max if has else math.nan,
            "mean": self.mean if has else math.nan,
            "std": self.std,
            "zeros": self.zeros,
            "nan": self.nans,
            "inf": self.infinities,
        }

    def _add(self, chunk: NDArray[np.float32]) -> None:
        self.n_weights += chunk.size
        self.zeros += chunk.size - int(np.count_nonzero(chunk))
        finite = np.isfinite(chunk)
        if not finite.all():
            nans = int(np.isnan(chunk).sum())
            self.nans += nans
            self.infinities += chunk.size - int(np.count_nonzero(finite)) - nans
            chunk = chunk[finite]
        if not chunk.size:
            return
        values = chunk.astype(np.float64)
        n, mean = values.size, float(values.mean())
        apart = values - mean
        total = self._n_finite + n
        shift = mean - self.mean
        self._squares += _dot(apart, apart) + shift * shift * (self._n_finite * n / total)
        self.mean += shift * n / total
        self._n_finite = total
        self.min, self.max = min(self.min, float(chunk.min())), max(self.max, float(chunk.max()))


class Histogram:
    """Counts of finite weights, without knowing their range before.

    Bins are ``2**power`` wide and begin at multiples of that. Where the weights need more than ``most`` of them, they
    are made twice as wide, each the union of two: counts are exact whatever comes.
    """

    def __init__(self, most: int = 4096) -> None:
        self._most = most
        self._power: int | None = None
        self._first = 0
        self._counts = np.zeros(0, np.int64)

    def add(self, weights: NDArray[np.float32]) -> None:
        """Count some more."""
        for (chunk,) in _chunks(weights):
            finite = chunk[np.isfinite(chunk)]
            if finite.size:
                self._add(finite.astype(np.float64))

    def bars(self, most: int) -> list[tuple[float, float, int]]:
        """At most ``most`` equal intervals ``(from, up to, count)`` from the smallest weight to the largest."""
        if self._power is None:
            return []
        used = np.flatnonzero(self._counts)
        first, last = int(used[0]), int(used[-1]) + 1
        group = -(-(last - first) // most)
        width = math.ldexp(1.0, self._power)
        return [
            (
                (self._first + at) * width,
                (self._first + at + group) * width,
                int(self._counts[at : min(at + group, last)].sum()),
            )
            for at in range(first, last, group)
        ]

    def _add(self, values: NDArray[np.float64]) -> None:
        low, high = float(values.min()), float(values.max())
        largest = max(abs(low), abs(high))
        if self._power is None:
            # As fine as the range needs it, and not finer than float32 has digits.
            span = max((high - low) / self._most, largest * 2.0**-24, 2.0**-149)
            self._power = math.frexp(span)[1] - 1
            self._first = math.floor(math.ldexp(low, -self._power))
        while not self._holds(low, high):
            self._double()
        places = np.floor(np.ldexp(values, -self._power)).astype(np.int64)
        first = min(self._first, int(places.min()))
        counts = np.bincount(places - first, minlength=self._first + len(self._counts) - first)
        counts[self._first - first : self._first - first + len(self._counts)] += self._counts
        self._first, self._counts = first, counts

    def _holds(self, low: float, high: float) -> bool:
        assert self._power is not None  # noqa: S101 - set before
        first = min(self._first, math.floor(math.ldexp(low, -self._power)))
        last = max(self._first + len(self._counts) - 1, math.floor(math.ldexp(high, -self._power)))
        return last - first < self._most

    def _double(self) -> None:
        assert self._power is not None  # noqa: S101 - set before
        counts = self._counts
        if self._first % 2:
            counts = np.concatenate(([0], counts))
        if len(counts) % 2:
            counts = np.concatenate((counts, [0]))
        self._counts = counts.reshape(-1, 2).sum(axis=1)
        self._first //= 2
        self._power += 1


class Difference:
    """How far two arrays are apart.

    Equal values are no difference, equal infinities and two NaNs included. A NaN or an infinity that the other has not
    is an infinite one, and takes no part in the cosine.

    Attributes
    ----------
    max_error
        The largest absolute difference.
    n_weights
        Of each.
    """

    def __init__(self) -> None:
        self.max_error = 0.0
        self.n_weights = 0
        self._squares = self._aa = self._bb = self._ab = 0.0

    @property
    def rmse(self) -> float:
        """The root of the mean of the squared differences."""
        return math.sqrt(self._squares / self.n_weights) if self.n_weights else 0.0

    @property
    def relative(self) -> float:
        """The RMSE in units of the first's root mean square; infinite where that is zero and the second's is not."""
        if self._squares == 0:
            return 0.0
        return math.sqrt(self._squares / self._aa) if self._aa else math.inf

    @property
    def cosine(self) -> float:
        """Of the angle between both: 1 where both are zero, 0 where one is."""
        if not self._aa or not self._bb:
            return 1.0 if self._aa == self._bb else 0.0
        return min(1.0, max(-1.0, self._ab / (math.sqrt(self._aa) * math.sqrt(self._bb))))

    def add(self, first: NDArray[np.float32], second: NDArray[np.float32]) -> None:
        """Compare some more; both are of one size."""
        for one, other in _chunks(first, second):
            self._add(one, other)

    def _add(self, first: NDArray[np.float32], second: NDArray[np.float32]) -> None:
        self.n_weights += first.size
        a, b = first.astype(np.float64), second.astype(np.float64)
        aa, bb = _dot(a, a), _dot(b, b)
        if not math.isfinite(aa + bb):  # no square of a float32 overflows a float64
            finite = np.isfinite(a) & np.isfinite(b)
            if not (finite | (a == b) | (np.isnan(a) & np.isnan(b))).all():
                self.max_error = self._squares = math.inf
            a, b = a[finite], b[finite]
            aa, bb = _dot(a, a), _dot(b, b)
        apart = a - b
        self.max_error = max(self.max_error, float(apart.max(initial=0)), -float(apart.min(initial=0)))
        self._squares += _dot(apart, apart)
        self._aa += aa
        self._bb += bb
        self._ab += _dot(a, b)
