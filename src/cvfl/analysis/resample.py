"""Intervals by the bootstrap: rows are drawn again, with replacement, from a named stream."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from cvfl.rng import stream
from cvfl.runs.analysis import Estimate

RESAMPLE = "resample"
TIMES = 200
INTERVAL = (2.5, 97.5)
Floats = NDArray[np.float64]


def interval(figures: Callable[[Floats], Floats], rows: int, seed: int) -> tuple[Floats, Floats]:
    """Between what figures of rows, each of which counts so often, lie when rows are drawn again."""
    drawn = stream(seed, RESAMPLE)
    counts = (np.bincount((drawn.words(rows) % np.uint64(rows)).astype(np.int64), minlength=rows) for _ in range(TIMES))
    found = np.array([figures(count.astype(np.float64)) for count in counts])
    return between(found)


def between(found: Floats) -> tuple[Floats, Floats]:
    """The interval of each column, without what is not defined."""
    known = np.where(np.isnan(found).all(0), 0.0, found)  # a column of nothing but NaN has no interval
    low, high = np.nanpercentile(known, INTERVAL, axis=0)
    return low, high


def estimates(values: Floats, low: Floats, high: Floats) -> list[Estimate]:
    """Figures with their intervals."""
    return [
        Estimate(value=float(value), low=float(a), high=float(b)) for value, a, b in zip(values, low, high, strict=True)
    ]


def widened(one: Estimate, value: float) -> Estimate:
    """The estimate with another value, and an interval that has it."""
    return Estimate(value=value, low=min(one.low, value), high=max(one.high, value))
