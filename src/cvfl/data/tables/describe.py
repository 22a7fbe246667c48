"""What a person wants to know of a column before it is used."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cvfl.data.tables.kinds import Kind
from cvfl.data.tables.prepare import Settings
from cvfl.data.tables.table import Table

_ENOUGH = 10  # rows; fewer can be in order by chance


@dataclass(frozen=True)
class Column:
    """A column as it is; `example` is its range, or the commonest of its categories.

    `counting` is whether its values number the rows, `sentinel` a number in it that seems to mean a missing one, and
    `rare` the share of rows with a category that is rarer than preparations take by itself, with `odd` as an example.
    """

    name: str
    kind: Kind
    rows: int
    missing: int
    distinct: int
    example: str
    counting: bool = False
    sentinel: str = ""
    rare: float = 0.0
    odd: str = ""

    @property
    def missing_share(self) -> float:
        """Missing values as a share of all rows."""
        return self.missing / self.rows


def describe(table: Table, name: str) -> Column:
    """Kind, missing and distinct values of a column."""
    match kind := table.kind(name):
        case Kind.CATEGORY:
            return _category(table, name)
        case Kind.NUMBER:
            values = table.numbers(name)
            found, counts = np.unique(values[~np.isnan(values)], return_counts=True)
            column = _ranged(name, kind, table.rows, found, counts)
            indexed = re.fullmatch(r"Unnamed: [0-9]+|column[0-9]+|index", name) is not None
            return replace(column, counting=_counts(values, indexed), sentinel=_sentinel(found, counts))
        case Kind.DATE:
            dates = table.dates(name)
            return _ranged(name, kind, table.rows, *np.unique(dates[~np.isnat(dates)], return_counts=True))


def _category(table: Table, name: str) -> Column:
    codes, values = table.categories(name)
    counts = np.bincount(codes + 1, minlength=len(values) + 1)
    common = [_short(values[code]) for code in np.argsort(-counts[1:], kind="stable")[:3]]
    example = ", ".join(common) + (", …" if len(values) > 3 else "")
    few = (counts[1:] > 0) & (counts[1:] < Settings().rare * table.rows)
    odd = _short(values[int(few.argmax())]) if few.any() else ""
    share = float(counts[1:][few].sum() / table.rows)
    return Column(name, Kind.CATEGORY, table.rows, int(counts[0]), len(values), example, rare=share, odd=odd)


def _ranged(name: str, kind: Kind, rows: int, found: NDArray[Any], counts: NDArray[np.int64]) -> Column:
    """A column of numbers or dates, of which these were found, each so often."""
    ends = dict.fromkeys(_spelled(value) for value in (*found[:1], *found[-1:]))
    return Column(name, kind, rows, rows - int(counts.sum()), len(found), " to ".join(ends))


def _counts(values: NDArray[np.float64], indexed: bool) -> bool:
    """Whether values are 0, 1, 2, ... or 1, 2, 3, ...; in a column named as an index whether they go up at all."""
    if indexed:
        return len(values) > 1 and bool((np.diff(values) >= 1).all() and (values == np.round(values)).all())
    return len(values) >= _ENOUGH and values[0] in (0, 1) and bool((np.diff(values) == 1).all())


def _sentinel(found: NDArray[np.float64], counts: NDArray[np.int64]) -> str:
    """A repeated number of nines, such as -999, that is alone below zero or far from all others."""
    if len(found) < 3:
        return ""
    for at, rest in ((0, found[1:]), (-1, found[:-1])):
        text, repeated = f"{found[at]:.15g}", counts[at] > 1
        alone = found[at] < 0 <= rest[0]
        far = min(abs(found[at] - rest[0]), abs(found[at] - rest[-1])) > rest[-1] - rest[0]
        if repeated and (alone or far) and re.fullmatch(r"-99+|999+", text):
            return text
    return ""


def _spelled(value: np.float64 | np.datetime64) -> str:
    return f"{value:.7g}" if isinstance(value, np.floating) else str(value).removesuffix("T00:00:00")


def _short(text: str) -> str:
    """A value as it fits into a table of columns."""
    text = " ".join(text.split())
    return text if len(text) <= 30 else f"{text[:29]}…"
