"""A quantity: how far predictions are from what is true, in the label's own units."""

from __future__ import annotations

import numpy as np

from cvfl.analysis.buckets import cuts, evenly, grouped
from cvfl.analysis.resample import Floats, estimates, interval
from cvfl.runs.analysis import FEW, Bar, Bucket, Quantity

BARS = 20


def quantity(y: Floats, predicted: Floats, seed: int) -> Quantity:
    """All figures of labels and predictions."""
    residual = y - predicted

    def figures(counts: Floats) -> Floats:
        n, squared = counts.sum(), (counts * residual**2).sum()
        spread = (counts * (y - (counts * y).sum() / n) ** 2).sum()
        return np.array(
            [np.sqrt(squared / n), (counts * abs(residual)).sum() / n, 1 - squared / spread if spread else np.nan]
        )

    rmse, mae, r2 = estimates(figures(np.ones(len(y))), *interval(figures, len(y), seed))
    return Quantity(rmse=rmse, mae=mae, r2=r2, residuals=residuals(residual), fit=fit(y, predicted))


def fit(y: Floats, predicted: Floats) -> tuple[Bucket, ...]:
    """Means of people who were predicted about the same, from the lowest tenth to the highest."""
    return tuple(
        Bucket(people=len(rows), predicted=float(predicted[rows].mean()), actual=float(y[rows].mean()))
        for rows in evenly(np.argsort(predicted, kind="stable"))
    )


def residuals(residual: Floats, least: float = FEW) -> tuple[Bar, ...]:
    """A histogram; it ends where few people are beyond, who are counted in its first and its last bar."""
    share = min(0.25, max(0.01, FEW / len(residual)))
    low, high = np.quantile(residual, (share, 1 - share))
    if not low < high:
        return ()
    edges = np.linspace(low, high, BARS + 1)
    people, _ = np.histogram(np.clip(residual, low, high), edges)
    ends = cuts(np.cumsum(people), least)
    starts = np.concatenate([[0], ends[:-1] + 1])
    return tuple(
        Bar(start=float(edges[start]), end=float(edges[end + 1]), people=int(n))
        for start, end, n in zip(starts, ends, grouped(people, ends), strict=True)
    )
