"""How a party's columns become numbers: scikit-learn's transformers, fitted on the party's own training rows only.

    number     impute, mark what was missing, standardise
    date       years, season and weekday, then as a number
    category   rare values in one bucket, then one-hot, or a code for an embedding in the model

Every column is prepared alone, so a table needs the memory of its result and of one column.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.impute import SimpleImputer
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler
from torch import Tensor

from cvfl.data.tables.table import Kind, Table
from cvfl.errors import DataError
from cvfl.types import Section

MISSING = "(missing)"
_ROWS = 1 << 20
"""Rows that are transformed at a time."""


class Settings(Section):
    """How columns become numbers: one-hot or embedded categories, the share below which a value is rare, gaps."""

    categories: Literal["one-hot", "embedding"] = "one-hot"
    """A category becomes one column for each value, or a code for a vector that the model learns."""
    rare: float = Field(default=0.01, ge=0, lt=1)
    """Values of a category with less than this share of the rows go into one bucket."""
    impute: Literal["median", "mean", "zero"] = "median"
    """What fills the gaps of a column of numbers."""
    standardise: bool = True
    """Whether numbers are brought to mean 0 and deviation 1."""


class DateParts(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Dates as years since 1970, and the places of the day in the year and in the week on a circle."""

    def fit(self, dates: NDArray[np.datetime64], y: object = None) -> Self:
        """Nothing is learned."""
        self.n_features_in_ = 1
        return self

    def transform(self, dates: NDArray[np.datetime64]) -> NDArray[np.float64]:
        """Five numbers a date; a missing date has NaN in all of them."""
        missing = np.isnat(dates)
        days = np.where(missing, np.datetime64(0, "D"), dates.astype("datetime64[D]")).astype(np.float64)
        year, week = days / 365.2425, (days + 3) / 7  # day 0 was a Thursday
        circles = [turn(2 * np.pi * phase) for phase in (year, week) for turn in (np.sin, np.cos)]
        parts: NDArray[np.float64] = np.hstack([year, *circles])
        parts[missing[:, 0]] = np.nan
        return parts


@dataclass(frozen=True)
class Preparation:
    """Fitted transformers by column, in the order of the prepared columns; category codes come last."""

    kinds: dict[str, str]
    transformers: dict[str, Any]

    @property
    def categories(self) -> tuple[int, ...]:
        """How many codes each of the last columns has."""
        encoders = (t for t in self.transformers.values() if isinstance(t, OrdinalEncoder))
        return tuple(_codes(encoder) for encoder in encoders)

    @property
    def columns(self) -> tuple[str, ...]:
        """For every prepared column the name of the one that it comes from."""
        return tuple(name for name, fitted in self.transformers.items() for _ in range(_width(fitted)))

    def transform(self, table: Table, rows: NDArray[np.int64], dtype: torch.dtype = torch.float32) -> Tensor:
        """Rows of a table as they went, or would have gone, into training."""
        x, at = torch.empty(len(rows), len(self.columns), dtype=dtype), 0
        for name, transformer in self.transformers.items():
            values, width = _read(table, name), _width(transformer)
            for start in range(0, len(rows), _ROWS):
                some = slice(start, start + _ROWS)
                x[some, at : at + width] = _apply(transformer, values, rows[some], dtype)
            at += width
        return x

    def save(self, path: Path) -> None:
        """Write it without pickle; `load` refuses a file that holds anything else."""
        import skops.io  # noqa: PLC0415  slow to load, as it loads all of scikit-learn

        path.write_bytes(skops.io.dumps({"kinds": self.kinds, "transformers": self.transformers}))

    @classmethod
    def load(cls, path: Path) -> Preparation:
        """Read what `save` wrote."""
        import skops.io  # noqa: PLC0415

        trusted = ["numpy.dtype", f"{__name__}.DateParts"]
        try:
            return cls(**skops.io.load(path, trusted=trusted))
        except (OSError, BadZipFile, TypeError, ValueError, KeyError) as error:
            raise DataError(f"{path}: not a preparation ({type(error).__name__})") from None


def prepare(
    table: Table,
    features: Sequence[str],
    rows: NDArray[np.int64],
    train: int,
    settings: Settings,
    dtype: torch.dtype = torch.float32,
) -> tuple[Preparation, Tensor]:
    """Fit on the first `train` of these rows and transform all of them."""
    embedded = settings.categories == "embedding"
    last = [name for name in features if embedded and table.kind(name) is Kind.CATEGORY]
    transformers = {}
    for name in [*(name for name in features if name not in last), *last]:
        values = _read(table, name)
        _check_varied(table, name, values)
        transformers[name] = _new(table.kind(name), settings).fit(values.of(rows[:train]))
    preparation = Preparation({name: str(table.kind(name)) for name in transformers}, transformers)
    return preparation, preparation.transform(table, rows, dtype)


@dataclass(frozen=True)
class _Column:
    """A column as scikit-learn takes it: n x 1 values, or codes into the few values that there are."""

    values: NDArray[Any]
    codes: NDArray[np.int32] | None = None

    def of(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """The values of these rows."""
        at = rows if self.codes is None else self.codes[rows]
        return self.values[at]


def _read(table: Table, name: str) -> _Column:
    match table.kind(name):
        case Kind.NUMBER:
            return _Column(table.numbers(name)[:, None])
        case Kind.DATE:
            return _Column(table.dates(name)[:, None])
        case Kind.CATEGORY:
            found = table.categories(name)  # code -1, the last value, is a missing one
            return _Column(np.array([*found.values, MISSING], dtype=object)[:, None], found.codes)


def _check_varied(table: Table, name: str, column: _Column) -> None:
    if column.codes is not None:
        used = np.unique(column.codes)
        if len(used) == 1:
            _refuse(table, name, column.values[used[0], 0])
        return
    known = column.values[column.values == column.values]
    if len(known) == 0:
        raise DataError(f"{table.name}: column {name!r} has no value at all; add it to exclude")
    if len(known) == len(column.values) and known.min() == known.max():
        _refuse(table, name, known[0])


def _refuse(table: Table, name: str, value: object) -> None:
    raise DataError(
        f"{table.name}: column {name!r} is constant ({value} in all {table.rows:,} rows); add it to exclude"
    )


def _new(kind: Kind, settings: Settings) -> Pipeline:
    match kind:
        case Kind.CATEGORY if settings.categories == "one-hot":
            return OneHotEncoder(
                min_frequency=settings.rare or None, handle_unknown="infrequent_if_exist", sparse_output=False
            )
        case Kind.CATEGORY:
            return OrdinalEncoder(
                min_frequency=settings.rare or None, handle_unknown="use_encoded_value", unknown_value=-1
            )
    fill = {"strategy": "constant", "fill_value": 0.0} if settings.impute == "zero" else {"strategy": settings.impute}
    steps = [SimpleImputer(add_indicator=True, keep_empty_features=True, **fill)]
    scale = [StandardScaler()] if settings.standardise else []
    return make_pipeline(*([DateParts()] if kind is Kind.DATE else []), *steps, *scale)


def _codes(encoder: OrdinalEncoder) -> int:
    """Values, with one for all rare ones, and one for what training never saw."""
    rare = encoder.infrequent_categories_[0] if encoder.min_frequency else None
    return len(encoder.categories_[0]) - (0 if rare is None else len(rare) - 1) + 1


def _width(transformer: Any) -> int:
    """How many prepared columns one becomes."""
    if isinstance(transformer, Pipeline):
        imputer = next(step for _, step in transformer.steps if isinstance(step, SimpleImputer))
        return int(imputer.n_features_in_ + len(imputer.indicator_.features_))
    return len(transformer.get_feature_names_out()) if isinstance(transformer, OneHotEncoder) else 1


def _apply(transformer: Any, column: _Column, rows: NDArray[np.int64], dtype: torch.dtype) -> Tensor:
    if column.codes is None:
        return torch.from_numpy(np.asarray(transformer.transform(column.values[rows]))).to(dtype)
    # The few values are transformed once, and the rows look them up.
    few = np.asarray(transformer.transform(column.values), dtype=np.float64)
    few += isinstance(transformer, OrdinalEncoder)  # what training never saw is code 0
    return torch.from_numpy(few).to(dtype)[torch.from_numpy(column.codes[rows].astype(np.int64))]
