"""The label holder's column: classes or numbers, and which loss fits them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.preprocessing import LabelEncoder, StandardScaler
from torch import Tensor

from cvfl.data.table import Kind, Table
from cvfl.errors import DataError, suggest
from cvfl.protocol import Loss

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

    def tensor(self, rows: NDArray[np.int64], train: int, dtype: torch.dtype) -> Tensor:
        """The labels of these rows; quantities are standardised on the first `train` of them."""
        chosen = self.values[rows]
        if self.loss is Loss.SQUARED:
            chosen = StandardScaler().fit(chosen[:train, None]).transform(chosen[:, None])[:, 0]
        return self.loss.labels(torch.from_numpy(chosen), dtype)


def read_label(table: Table, column: str, positive: str | None = None, loss: Loss | None = None) -> Label:
    """Read a label: two classes, several, or a quantity, unless `loss` says which."""
    texts, known = _texts(table, column, loss)
    if texts is None:
        values = table.numbers(column)
        return Label(column, values, ~np.isnan(values), Loss.SQUARED)
    encoder = LabelEncoder().fit(texts[known])
    classes = _ordered([str(name) for name in encoder.classes_], table, column, positive)
    if len(classes) < 2:
        shown = f"only {classes[0]!r}" if classes else "no value"
        raise DataError(f"{table.name}: label {column!r} has {shown} in all rows; two classes are needed")
    if loss is Loss.BINARY and len(classes) > 2:
        raise DataError(f'{table.name}: label {column!r} has {len(classes)} classes; loss = "binary" takes two')
    places = {name: i for i, name in enumerate(classes)}
    numbers = np.array([places.get(text, -1) for text in texts], dtype=np.int64)
    chosen = loss or (Loss.BINARY if len(classes) == 2 else Loss.MULTICLASS)
    return Label(column, numbers, known, chosen, classes)


def _texts(table: Table, column: str, loss: Loss | None) -> tuple[NDArray[np.object_] | None, NDArray[np.bool_]]:
    """The classes as text, or None for a quantity; and which rows have a label."""
    match table.kind(column):
        case Kind.CATEGORY if loss is not Loss.SQUARED:
            found = table.categories(column)
            return np.array([*found.values, ""], dtype=object)[found.codes], found.codes >= 0
        case Kind.NUMBER:
            numbers = table.numbers(column)
            known = ~np.isnan(numbers)
            different = np.unique(numbers[known])
            whole = bool((different == np.round(different)).all())
            if loss is Loss.SQUARED or (loss is None and not (whole and len(different) <= MAX_NUMBERED_CLASSES)):
                return None, known
            if not whole:
                raise DataError(f'{table.name}: label {column!r} is a quantity, not a class; use loss = "squared"')
            return np.array([f"{value:g}" for value in np.where(known, numbers, 0)], dtype=object), known
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
