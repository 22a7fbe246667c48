"""The label holder's column: classes or numbers, and which loss fits them.

    words                       classes, compared without case; words such as "unknown" are no label
    whole numbers, few          classes, up to MAX_NUMBERED_CLASSES different ones
    other numbers               a quantity

`types` decides otherwise: as "number" it is a quantity, as "category" every value is a class, as it is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cvfl.data.tables.spellings import type_key
from cvfl.data.tables.table import Categories, Kind, Table
from cvfl.errors import DataError, suggest
from cvfl.lazy import lazy
from cvfl.protocol import Loss, Units

preprocessing = lazy("sklearn.preprocessing")

MAX_NUMBERED_CLASSES = 20
"""A label of whole numbers is a class up to this many different ones, and a quantity beyond."""
UNKNOWN = frozenset({"unknown", "n/a", "na", "nan", "null", "missing", "not available", "-", "?"})
"""Words that say in any case that there is no label."""


@dataclass(frozen=True)
class Label:
    """A label column: class numbers or quantities for every row of the table, and whether a row has one."""

    column: str
    values: NDArray[np.float64] | NDArray[np.int64]
    known: NDArray[np.bool_]
    loss: Loss
    classes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    units: Units | None = None
    """Those of a quantity, if they are known from an earlier run."""

    @property
    def counts(self) -> dict[str, int]:
        """How many rows each class has; of a quantity nothing."""
        return {name: int((self.values == at).sum()) for at, name in enumerate(self.classes)}

    @property
    def without(self) -> int:
        """How many rows have no label."""
        return int((~self.known).sum())

    @property
    def positive(self) -> str | None:
        """The class of which scores are, where there are two: the last one."""
        return self.classes[1] if len(self.classes) == 2 else None

    @property
    def said(self) -> str:
        """Of two classes a line about which is the positive one; of other labels nothing."""
        if self.positive is None:
            return ""
        return f"label {self.column!r}: {self.positive!r} is the positive class, {self.classes[0]!r} the other"

    def renumbered(self, classes: Sequence[str]) -> Label:
        """With its classes in this order, if they are the same but for case; else as it is."""
        own, wanted = ([name.casefold() for name in names] for names in (self.classes, classes))
        if sorted(own) != sorted(wanted) or len({*own}) < len(own):
            return self
        places = np.array([*map(wanted.index, own), -1], dtype=np.int64)  # a row without a label has -1
        ordered = tuple(self.classes[own.index(name)] for name in wanted)
        return replace(self, values=places[self.values.astype(np.int64)], classes=ordered)

    def tensor(self, rows: NDArray[np.int64], train: int, dtype: torch.dtype) -> tuple[Tensor, Units]:
        """The labels of these rows, and their units; of quantities those of the first `train` rows, unless known."""
        chosen, units = self.values[rows], self.units or Units()
        self._check_classes(chosen, train)
        if self.loss is Loss.SQUARED:
            if self.units is None:
                scaler = preprocessing.StandardScaler().fit(chosen[:train, None])
                units = Units(float(scaler.mean_[0]), float(scaler.scale_[0]))
            chosen = (chosen.astype(np.float64) - units.offset) / units.scale
        return self.loss.labels(torch.from_numpy(chosen), dtype), units

    def _check_classes(self, shared: NDArray[np.float64] | NDArray[np.int64], train: int) -> None:
        """Every class that is shared has a training row; so do both of two."""
        if not self.classes or not train:
            return
        there = np.unique(shared).astype(np.int64) if self.loss is Loss.MULTICLASS else np.arange(2)
        if gone := [self.classes[at] for at in there if at not in shared[:train]]:
            raise DataError(
                f"label {self.column!r}: {len(shared):,} rows are shared, {train:,} of them for training, and none of "
                f"these is {gone[0]!r}; check that the ids of all parties mean the same, or set data.stratify = true"
            )


def read_label(table: Table, column: str, positive: str | None = None, loss: Loss | None = None) -> Label:
    """Read a label: two classes, several, or a quantity, unless `loss` says which."""
    found = _classes(table, column, loss)
    notes: tuple[str, ...] = ()
    if found and table.told(column) is not Kind.CATEGORY:
        found, notes = _merged(table, column, found)
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
    return Label(column, numbers, found.codes >= 0, chosen, classes, notes)


def _classes(table: Table, column: str, loss: Loss | None) -> Categories | None:
    """The label as classes, or None for a quantity."""
    match table.kind(column):
        case Kind.CATEGORY if loss is not Loss.SQUARED:
            return table.categories(column)
        case Kind.NUMBER:
            numbers = table.numbers(column)
            different = np.unique(numbers[~np.isnan(numbers)])
            whole = bool((different == np.round(different)).all())
            few = whole and len(different) <= MAX_NUMBERED_CLASSES and table.told(column) is not Kind.NUMBER
            if loss is Loss.SQUARED or (loss is None and not few):
                return None
            if not whole:
                raise DataError(f'{table.name}: label {column!r} is a quantity, not a class; use loss = "squared"')
            codes = np.where(np.isnan(numbers), -1, np.searchsorted(different, numbers)).astype(np.int32)
            return Categories(codes, tuple(f"{value:g}" for value in different))
    raise DataError(f"{table.name}: label {column!r} is a {table.kind(column)}; it must be a class or a number")


def _merged(table: Table, column: str, found: Categories) -> tuple[Categories, tuple[str, ...]]:
    """Classes that differ in case only as one, in the commonest spelling; words for an unknown one as missing."""
    counts = np.bincount(found.codes[found.codes >= 0], minlength=len(found.values))
    names: dict[str, str] = {}
    for code in np.argsort(-counts, kind="stable"):
        names.setdefault(found.values[code].casefold(), found.values[code])
    kept = sorted(name for folded, name in names.items() if folded not in UNKNOWN)
    places = {name.casefold(): place for place, name in enumerate(kept)}
    codes = np.array([*(places.get(value.casefold(), -1) for value in found.values), -1], dtype=np.int32)
    notes = [
        f"{table.name}: label {column!r}: {value!r} counts as {name!r}"
        for value in found.values
        if (name := names[value.casefold()]) in kept and name != value
    ]
    notes += [
        f"{table.name}: label {column!r}: {count:,} rows with {value!r} are left out, as without a label; "
        f'for a class of its own set {type_key(column)} = "category"'
        for value, count in zip(found.values, counts.tolist(), strict=True)
        if value.casefold() in UNKNOWN
    ]
    return Categories(codes[found.codes], tuple(kept)), tuple(notes)


def _ordered(classes: list[str], table: Table, column: str, positive: str | None) -> tuple[str, ...]:
    """Numbers in their order, text in the alphabet's, where case does not count; the positive class last."""
    try:
        classes.sort(key=float)
    except ValueError:
        classes.sort(key=lambda name: (name.casefold(), name))
    if positive is None:
        return tuple(classes)
    chosen = [name for name in classes if name == positive] or [
        name for name in classes if name.casefold() == positive.casefold()
    ]
    if not chosen:
        raise DataError(f"{table.name}: label {column!r} has no class {positive!r}{suggest(positive, classes)}")
    return (*(name for name in classes if name != chosen[0]), chosen[0])
