"""Buckets that rest on enough people: neighbours are merged until they do."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cvfl.runs.analysis import FEW, Bucket, Confusion

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def cuts(people: NDArray[Any], least: float = FEW) -> Ints:
    """Where to cut a row of buckets, of which `people` is how many are in all up to each, so that each has enough.

    The last cut is the last bucket; too few people at the end go with those before them.
    """
    found: list[int] = []
    at = 0.0
    while (place := int(np.searchsorted(people, at + least))) < len(people):
        found.append(place)
        at = float(people[place])
    return np.array([*found[:-1], len(people) - 1], dtype=np.int64)


def grouped(values: NDArray[Any], ends: Ints) -> Floats:
    """The sums of values between the cuts."""
    return np.diff(np.cumsum(values)[ends], prepend=0.0)


def evenly(order: Ints, most: int = 10) -> list[Ints]:
    """Rows in their order, in groups of the same size with enough people each."""
    return np.array_split(order, max(1, min(most, len(order) // FEW)))


def binned(p: Floats, y: NDArray[Any], bins: int = 10, least: float = FEW) -> tuple[Bucket, ...]:
    """Predicted and actual shares of people with about the same probability, in bins of equal width."""
    at = np.searchsorted(np.linspace(0, 1, bins + 1)[1:-1], p)
    people = np.bincount(at, minlength=bins)
    ends = cuts(np.cumsum(people), least)
    sums = [grouped(np.bincount(at, of, bins), ends) for of in (np.ones(len(p)), p, y)]
    return tuple(
        Bucket(people=int(n), predicted=predicted / n, actual=actual / n)
        for n, predicted, actual in zip(*sums, strict=True)
        if n
    )


def hidden(counts: NDArray[Any]) -> Confusion:
    """Counts without those of few people, which the others must not tell either."""
    shown = coarse(counts)
    return tuple(
        tuple(int(n) if exact >= FEW else None for n, exact in zip(*rows, strict=True))
        for rows in zip(shown, counts, strict=True)
    )


def coarse(counts: NDArray[Any]) -> Floats:
    """The counts of a confusion matrix as decisions are judged by them: as they are, if none is of few people.

    Else all are rounded to multiples of `FEW`: totals are known, and what is computed from exact counts would tell the
    ones that are hidden.
    """
    exact = counts.astype(np.float64)
    return exact if (counts >= FEW).all() else FEW * np.round(exact / FEW)
