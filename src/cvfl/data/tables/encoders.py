"""How one column becomes numbers: what was learned from training rows, as plain values that a file can hold.

    number     gaps filled ──▶ marked, if training had any ──▶ scaled
    date       years, season and weekday ──▶ as a number
    category   rare values in one bucket ──▶ one-hot, or a code for an embedding in the model

A further scaler is a class with `fit` and `apply`, and a name in `Scaler`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Annotated, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field

from cvfl.lazy import lazy
from cvfl.types import Section

preprocessing, special = lazy("sklearn.preprocessing"), lazy("scipy.special")

Impute = Literal["median", "mean", "zero"]
Floats = NDArray[np.float64]

_PIECES = 32
"""One piece of a scale is the most that a single value takes."""
_KNOTS = 128
"""Most values of a column whose scores are kept; those between them are read off a line."""
_EDGE = 0.001
"""How far from the ends of the scale the first and the last value stay: a normal score of 3.1."""


class Fitted(Section):
    """What was learned of a column; infinite values survive a file, too."""

    model_config = ConfigDict(ser_json_inf_nan="constants")


class Standard(Fitted):
    """Brings columns to mean 0 and deviation 1."""

    name: Literal["standard"] = "standard"
    mean: tuple[float, ...]
    scale: tuple[float, ...]

    @classmethod
    def fit(cls, x: Floats) -> Self:
        """Learn from an n x k array without gaps."""
        fitted = preprocessing.StandardScaler().fit(x)
        return cls(mean=tuple(fitted.mean_.tolist()), scale=tuple(fitted.scale_.tolist()))

    def apply(self, x: Floats) -> Floats:
        """The same columns, scaled."""
        scaled: Floats = (x - np.array(self.mean)) / np.array(self.scale)
        return scaled


class Quantile(Fitted):
    """Brings every column to normal scores by the places of its values in training: tails and odd scales are gone.

    A value's place is the share of rows below it, but no single value counts for more than 1 / 32 of the scale: of a
    column that is mostly 0 the other values are told apart, too, and few values stand at even distances. Between the
    knots a score is read off a line; beyond them it stays.
    """

    name: Literal["quantile"] = "quantile"
    knots: tuple[tuple[float, ...], ...]
    scores: tuple[tuple[float, ...], ...]

    @classmethod
    def fit(cls, x: Floats) -> Self:
        """Learn from an n x k array without gaps."""
        knots, scores = zip(*(_knots(column) for column in x.T), strict=True)
        return cls(knots=knots, scores=scores)

    def apply(self, x: Floats) -> Floats:
        """The same columns as normal scores."""
        columns = zip(x.T, self.knots, self.scores, strict=True)
        return np.stack([np.interp(column, knots, scores) for column, knots, scores in columns], axis=1)


Scaler = Annotated[Standard | Quantile, Field(discriminator="name")]


def _knots(column: Floats) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Values of a column and their normal scores, enough of them to draw lines between."""
    values, counts = np.unique(column, return_counts=True)
    weights = _capped(counts / counts.sum(), 1 / _PIECES)
    places = np.cumsum(weights) - weights / 2
    if len(values) > _KNOTS:
        chosen = np.searchsorted(places, np.linspace(places[0], places[-1], _KNOTS))
        values, places = (all[np.unique(chosen)] for all in (values, places))
    return tuple(values.tolist()), tuple(special.ndtri(places.clip(_EDGE, 1 - _EDGE)).tolist())


def _capped(weights: Floats, most: float) -> Floats:
    """Shares of a whole, none above `most`; what is taken from the large ones goes to the others in proportion."""
    if len(weights) * most <= 1:
        return np.full(len(weights), 1 / len(weights))
    large = np.zeros(len(weights), dtype=bool)
    while (over := weights > most * (1 + 1e-9)).any():
        large |= over
        rest = 1 - most * large.sum()
        weights = np.where(large, most, weights * rest / weights[~large].sum())
    return weights


class _Numbers(Fitted):
    """Columns of numbers whose gaps come together: each has its filling, and all have one mark."""

    fill: tuple[float, ...]
    gap: bool
    scaler: Scaler | None = None

    @classmethod
    def _fit(cls, x: Floats, impute: Impute, scaler: type[Standard | Quantile] | None) -> Self:
        gaps = np.isnan(x).any(1)
        known = x[~gaps]
        fill = _middle(known, impute) if len(known) else np.zeros(x.shape[1])
        unscaled = cls(fill=tuple(fill.tolist()), gap=bool(gaps.any()))
        return unscaled.model_copy(update={"scaler": scaler and scaler.fit(unscaled._encode(x))})

    @property
    def width(self) -> int:
        """How many numbers one value becomes."""
        return len(self.fill) + self.gap

    def _encode(self, x: Floats) -> Floats:
        gaps = np.isnan(x)
        filled = np.where(gaps, self.fill, x)
        marked = np.hstack([filled, gaps[:, :1]]) if self.gap else filled
        return self.scaler.apply(marked) if self.scaler else marked


class Number(_Numbers):
    """A number, standardised or as it is."""

    encoder: Literal["number"] = "number"

    @classmethod
    def fit(cls, values: Floats, impute: Impute, scaler: type[Standard | Quantile] | None) -> Self:
        """Learn from numbers, NaN where one is missing."""
        return cls._fit(values[:, None], impute, scaler)

    def encode(self, values: Floats) -> Floats:
        """A row a number."""
        return self._encode(values[:, None])


class Date(_Numbers):
    """A date as five numbers."""

    encoder: Literal["date"] = "date"

    @classmethod
    def fit(cls, values: NDArray[np.datetime64], impute: Impute, scaler: type[Standard | Quantile] | None) -> Self:
        """Learn from dates, NaT where one is missing."""
        return cls._fit(date_parts(values), impute, scaler)

    def encode(self, values: NDArray[np.datetime64]) -> Floats:
        """A row a date."""
        return self._encode(date_parts(values))


class _Category(Fitted):
    """Values of a category that training had: those with a place of their own, and those in the bucket."""

    values: tuple[str, ...]
    rare: tuple[str, ...]

    @classmethod
    def fit(cls, names: Iterable[str], counts: Iterable[int], share: float) -> Self:
        """Learn from how often each value is there; those below a share of all are rare."""
        seen = Counter[str]()
        for name, count in zip(names, counts, strict=True):
            seen[name] += count
        least = share * seen.total()
        often = tuple(sorted(name for name, count in seen.items() if count >= least))
        return cls(values=often, rare=tuple(sorted(seen.keys() - set(often))))

    def _places(self, names: Sequence[str], unseen: int) -> NDArray[np.int64]:
        places = dict.fromkeys(self.rare, len(self.values)) | {name: i for i, name in enumerate(self.values)}
        return np.array([places.get(name, unseen) for name in names], dtype=np.int64)


class OneHot(_Category):
    """One column for each value, and one for the bucket, where what training never saw belongs, too."""

    encoder: Literal["one-hot"] = "one-hot"

    @property
    def width(self) -> int:
        """How many numbers one value becomes."""
        return len(self.values) + bool(self.rare)

    def encode(self, names: Sequence[str]) -> Floats:
        """A row a name; without a bucket what training never saw is all zeros."""
        hot = np.zeros((len(names), len(self.values) + 1))
        hot[np.arange(len(names)), self._places(names, unseen=len(self.values))] = 1
        return hot[:, : self.width]


class Code(_Category):
    """A whole number for each value, one for the bucket, and 0 for what training never saw."""

    encoder: Literal["code"] = "code"

    @property
    def width(self) -> int:
        """How many numbers one value becomes."""
        return 1

    @property
    def codes(self) -> int:
        """How many different numbers there are."""
        return len(self.values) + bool(self.rare) + 1

    def encode(self, names: Sequence[str]) -> Floats:
        """A row a name."""
        return (self._places(names, unseen=-1) + 1).astype(np.float64)[:, None]


Encoder = Annotated[Number | Date | OneHot | Code, Field(discriminator="encoder")]


def date_parts(dates: NDArray[np.datetime64]) -> Floats:
    """Years since 1970, and the places of the day in the year and in the week on a circle; NaN of a missing date."""
    missing = np.isnat(dates)
    days = np.where(missing, np.datetime64(0, "D"), dates.astype("datetime64[D]")).astype(np.float64)
    year, week = days / 365.2425, (days + 3) / 7  # day 0 was a Thursday
    circles = [turn(2 * np.pi * phase) for phase in (year, week) for turn in (np.sin, np.cos)]
    parts: Floats = np.stack([year, *circles], axis=1).astype(np.float64)
    parts[missing] = np.nan
    return parts


def _middle(known: Floats, impute: Impute) -> Floats:
    """What fills the gaps of each column."""
    match impute:
        case "median":
            middle: Floats = np.asarray(np.median(known, axis=0))
        case "mean":
            middle = np.asarray(known.mean(axis=0))
        case "zero":
            middle = np.zeros(known.shape[1])
    return middle
