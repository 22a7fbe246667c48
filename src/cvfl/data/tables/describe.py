"""What a person wants to know of a column before it is used."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cvfl.data.tables.kinds import Kind
from cvfl.data.tables.table import Table


@dataclass(frozen=True)
class Column:
    """A column as it is; `example` is its range, or the commonest of its categories."""

    name: str
    kind: Kind
    rows: int
    missing: int
    distinct: int
    example: str

    @property
    def missing_share(self) -> float:
        """Missing values as a share of all rows."""
        return self.missing / self.rows


def describe(table: Table, name: str) -> Column:
    """Kind, missing and distinct values of a column."""
    match kind := table.kind(name):
        case Kind.CATEGORY:
            found = table.categories(name)
            counts = np.bincount(found.codes + 1, minlength=len(found.values) + 1)
            common = [_short(found.values[code]) for code in np.argsort(-counts[1:], kind="stable")[:3]]
            example = ", ".join(common) + (", …" if len(found.values) > 3 else "")
            return Column(name, kind, table.rows, int(counts[0]), len(found.values), example)
        case Kind.NUMBER:
            return _ranged(name, kind, table.numbers(name))
        case Kind.DATE:
            return _ranged(name, kind, table.dates(name))


def _ranged(name: str, kind: Kind, values: NDArray[np.float64] | NDArray[np.datetime64]) -> Column:
    present = values[~np.isnan(values)]
    distinct = np.unique(present)
    ends = dict.fromkeys(_spelled(value) for value in (*distinct[:1], *distinct[-1:]))
    return Column(name, kind, len(values), len(values) - len(present), len(distinct), " to ".join(ends))


def _spelled(value: np.float64 | np.datetime64) -> str:
    return f"{value:.7g}" if isinstance(value, np.floating) else str(value).removesuffix("T00:00:00")


def _short(text: str) -> str:
    """A value as it fits into a table of columns."""
    text = " ".join(text.split())
    return text if len(text) <= 30 else f"{text[:29]}…"
