"""The label holder's column: classes or numbers, and which loss fits them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from cvfl.data.tables.table import Categories, Kind, Table
from cvfl.errors import DataError, suggest
from cvfl.protocol import Loss, Units

MAX_NUMBERED_CLASSES = 20
"""A label of whole numbers is a class up to this many different ones, and a quantity beyond."""


@dataclass(frozen=True)
class Label:
    """A label column: class numbers or quantities for every row of the table, and whether a row has one."""

    column: str
    values: NDArray[np.float64] | NDArray[np.int64]
    known: NDArray[np.bool_]
    loss: Loss
    classes: tuple[str, ...] = ()

    def tensor(self, rows: NDArray[np.int64], train: int, dtype: torch.dtype) -> tuple[Tensor, Units]:
        """The labels of these rows; quantities are standardised on the first `train` of them, from these units."""
        chosen, units = self.values[rows], Units()
        if self.loss is Loss.SQUARED:
            scaler = StandardScaler().fit(chosen[:train, None])
            units = Units(float(scaler.mean_[0]), float(scaler.scale_[0]))
            chosen = scaler.transform(chosen[:, None])[:, 0]
        return self.loss.labels(torch.from_numpy(chosen), dtype), units


def read_label(table: Table, column: str, positive: str | None = None, loss: Loss | None = None) -> Label:
    """Read a label: two classes, several, or a quantity, unless `loss` says which."""
    found = _classes(table, column, loss)
    if found is None:
        values = table.numbers(column)
        return Label(column, values, ~np.isnan(values), Loss.SQUARED)
    names = [found.values[code] for code in np.unique(found.codes) if code >= 0]
    classes = _ordered(names, table, column, positive)
    if len(classes) < 2:
        shown = f"only {classes[0]!r}" if classes else "no value"
        raise DataError(f"{table.name}: label {column!r} has {shown} in all rows; two classes are needed")
    if loss is Loss.BINARY and len(classes) > 2:
        raise DataError(f'{table.name}: label {column!r} has {len(classes)} classes; loss = "binary" takes two')
    places = {name: i for i, name in enumerate(classes)}
    numbers = np.array([*(places.get(name, -1) for name in found.values), -1], dtype=np.int64)[found.codes]
    chosen = loss or (Loss.BINARY if len(classes) == 2 else Loss.MULTICLASS)
    return Label(column, numbers, found.codes >= 0, chosen, classes)


def _classes(table: Table, column: str, loss: Loss | None) -> Categories | None:
    """The label as classes, or None for a quantity."""
    match table.kind(column):
        case Kind.CATEGORY if loss is not Loss.SQUARED:
            return table.categories(column)
        case Kind.NUMBER:
            numbers = table.numbers(column)
            different = np.unique(numbers[~np.isnan(numbers)])
            whole = bool((different == np.round(different)).all())
            if loss is Loss.SQUARED or (loss is None and not (whole and len(different) <= MAX_NUMBERED_CLASSES)):
                return None
            if not whole:
                raise DataError(f'{table.name}: label {column!r} is a quantity, not a class; use loss = "squared"')
            codes = np.where(np.isnan(numbers), -1, np.searchsorted(different, numbers)).astype(np.int32)
            return Categories(codes, tuple(f"{value:g}" for value in different))
    raise DataError(f"{table.name}: label {column!r} is a {table.kind(column)}; it must be a class or a number")


def _ordered(classes: list[str], table: Table, column: str, positive: str | None) -> tuple[str, ...]:
    """Numbers in their order, text in the alphabet's; the positive class last."""
    try:
        classes.sort(key=float)
    except ValueError:
        classes.sort()
    if positive is None:
        return tuple(classes)
    if positive not in classes:
        raise DataError(f"{table.name}: label {column!r} has no class {positive!r}{suggest(positive, classes)}")
    return (*(name for name in classes if name != positive), positive)
