"""Statistics that come in batches are those of all weights at once."""

import math
import warnings
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from tensortap.cli import _stats
from tensortap.cli._stats import Difference, Histogram, Moments

Floats = NDArray[np.float32]
ANY = arrays(np.float32, st.integers(0, 60), elements=st.floats(width=32))
FINITE = arrays(np.float32, st.integers(1, 60), elements=st.floats(width=32, allow_nan=False, allow_infinity=False))


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_stats, "_CHUNK", 7)


def pieces(weights: Floats, at: int) -> tuple[Floats, Floats]:
    return weights[:at], weights[at:]


@given(ANY, st.integers(0, 60))
def test_moments_are_numpys(weights: Floats, at: int) -> None:
    moments = Moments()
    for piece in pieces(weights, at):
        moments.add(piece)
    found = moments.as_dict()
    assert found["weights"] == weights.size
    assert found["zeros"] == int((weights == 0).sum())
    assert found["nan"] == int(np.isnan(weights).sum())
    assert found["inf"] == int(np.isinf(weights).sum())
    finite = weights[np.isfinite(weights)].astype(np.float64)
    if not finite.size:
        assert all(math.isnan(found[name]) for name in ("min", "max", "mean", "std"))
        return
    scale = float(np.abs(finite).max())
    assert (found["min"], found["max"]) == (finite.min(), finite.max())
    assert found["mean"] == pytest.approx(finite.mean(), abs=1e-12 * scale)
    assert found["std"] == pytest.approx(finite.std(), abs=1e-7 * scale)


def test_the_deviation_survives_a_large_mean() -> None:
    weights = np.array([1e7, 1e7 + 1, 1e7 + 2] * 100, np.float32)
    moments = Moments()
    moments.add(weights)
    assert moments.std == pytest.approx(math.sqrt(2 / 3), rel=1e-9)


@given(ANY, st.integers(0, 60), st.integers(1, 20), st.sampled_from([8, 4096]))
def test_a_histogram_counts_every_finite_weight_once(weights: Floats, at: int, most: int, resolution: int) -> None:
    histogram = Histogram(resolution)
    for piece in pieces(weights, at):
        histogram.add(piece)
    bars = histogram.bars(most)
    finite = weights[np.isfinite(weights)].astype(np.float64)
    assert len(bars) <= most
    assert sum(count for _, _, count in bars) == finite.size
    for low, high, count in bars:
        assert count == int(((finite >= low) & (finite < high)).sum())
    for before, after in pairwise(bars):
        assert before[1] == after[0]
    if bars:
        assert bars[0][0] <= finite.min() < bars[0][1]
        assert bars[-1][0] <= finite.max() < bars[-1][1]


def test_a_histogram_is_as_fine_as_its_weights_need() -> None:
    histogram = Histogram()
    histogram.add(np.linspace(-1, 1, 4001).astype(np.float32))
    bars = histogram.bars(16)
    assert len(bars) == 16
    assert max(count for _, _, count in bars) < 300


@given(FINITE, FINITE)
def test_differences_are_numpys(first: Floats, second: Floats) -> None:
    size = min(len(first), len(second))
    first, second = first[:size], second[:size]
    difference = Difference()
    difference.add(first[: size // 2], second[: size // 2])
    difference.add(first[size // 2 :], second[size // 2 :])
    a, b = first.astype(np.float64), second.astype(np.float64)
    assert difference.n_weights == size
    assert difference.max_error == np.abs(a - b).max()
    assert difference.rmse == pytest.approx(np.sqrt(((a - b) ** 2).mean()), rel=1e-9)
    norms = np.sqrt((a * a).sum()) * np.sqrt((b * b).sum())
    if norms:
        assert difference.cosine == pytest.approx((a * b).sum() / norms, rel=1e-9, abs=1e-9)
        assert difference.relative == pytest.approx(np.sqrt(((a - b) ** 2).sum() / (a * a).sum()), rel=1e-9)
    assert -1 <= difference.cosine <= 1


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("first", "second", "max_error", "relative", "cosine"),
    [
        ([], [], 0, 0, 1),
        ([0, 0], [0, -0.0], 0, 0, 1),
        ([0, 0], [1, 0], 1, INF, 0),
        ([1, 0], [0, 0], 1, 1, 0),
        ([NAN, INF, -INF, 2], [NAN, INF, -INF, 2], 0, 0, 1),
        ([NAN, 2], [1, 2], INF, INF, 1),
        ([INF, 2], [-INF, 2], INF, INF, 1),
        ([3, 2], [3, NAN], INF, INF, 1),
        ([INF], [3], INF, INF, 1),
    ],
)
def test_nan_infinity_and_zero(
    first: list[float], second: list[float], max_error: float, relative: float, cosine: float
) -> None:
    difference = Difference()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        difference.add(np.array(first, np.float32), np.array(second, np.float32))
    assert (difference.max_error, difference.relative, difference.cosine) == (max_error, relative, cosine)
