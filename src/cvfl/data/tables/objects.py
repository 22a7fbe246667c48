"""Rows of Python objects, from a database or a spreadsheet, as text together with the kinds that the values had.

Values become text, in one spelling each, because the type of a column is known only at its end: a driver hands out
Python objects, the first thousands of them may be missing, and SQLite lets a column change its type from row to row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime
from decimal import Decimal
from math import isnan
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa

from cvfl.data.tables.kinds import EXACT, Declared, Kind
from cvfl.data.tables.spill import Report, Spill

VALUES_AT_A_TIME = 50_000
"""Python objects in a batch of rows, of some 60 bytes each."""


def spill_objects(
    columns: Sequence[str], batches: Iterable[Sequence[Sequence[Any]]], name: str, to: Path, report: Report | None
) -> Declared:
    """Copy batches of rows into a Parquet file as text, and say of which kinds the columns were."""
    seen: list[set[type]] = [set() for _ in columns]
    with Spill(name, to, columns, report) as spill:
        for rows in batches:
            arrays = []
            for j, types in enumerate(seen):
                values = [row[j] for row in rows]
                met = set(map(type, values))
                spell = {kind: _SPELLINGS[_known(kind)] for kind in met}
                arrays.append(pa.array([spell[type(value)](value) for value in values], pa.string()))
                types.update(met)
            spill.add(pa.RecordBatch.from_arrays(arrays, schema=spill.schema))
    return _declared(dict(zip(columns, seen, strict=True)))


def _declared(columns: dict[str, set[type]]) -> Declared:
    """The kinds that follow from the types of the values; text and mixtures are for the table to find out."""
    kinds, refused = {}, {}
    for name, types in columns.items():
        known = {_known(kind) for kind in types} - {type(None)}
        if object in known:
            refused[name] = min(kind.__name__ for kind in types if _known(kind) is object)
        elif known and known <= {bool, int, float, Decimal}:
            kinds[name] = Kind.NUMBER
        elif known and known <= {date, datetime}:
            kinds[name] = Kind.DATE
    return Declared(kinds, refused)


def _known(kind: type) -> type:
    """The type with a spelling that this one is or comes from; `object` for what cannot be read."""
    return next(base for base in kind.__mro__ if base in _SPELLINGS)


def _float(value: float) -> str | None:
    return None if isnan(value) else str(int(value)) if value.is_integer() and abs(value) < EXACT else repr(value)


def _decimal(value: Decimal) -> str | None:
    if value.is_nan():
        return None
    whole = value.is_finite() and value == value.to_integral_value() and value.adjusted() < 50
    return str(int(value)) if whole else str(value)


_SPELLINGS: dict[type, Callable[[Any], str | None]] = {
    type(None): lambda _: None,
    str: str,
    UUID: str,
    bool: lambda value: str(int(value)),
    int: str,
    float: _float,
    Decimal: _decimal,
    date: date.isoformat,
    datetime: datetime.isoformat,
    object: lambda _: "",
}
