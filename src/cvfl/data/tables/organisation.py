"""A party's table on its way into a federation: which rows, which columns, and the label if it holds it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cvfl.data.tables.ids import Duplicates, IdType, read_ids
from cvfl.data.tables.label import Label, read_label
from cvfl.data.tables.leaks import telling
from cvfl.data.tables.prepare import Preparation, Settings, prepare, rare_line
from cvfl.data.tables.split import Part
from cvfl.data.tables.table import Kind, Table
from cvfl.data.vertical import VerticalData
from cvfl.errors import DataError, suggest
from cvfl.protocol import Loss, Presence

NOT_HELD = -1
"""In place of a row's place in a table: it is not there."""


@dataclass(frozen=True)
class Organisation:
    """What a party says of its table: who it is, and which columns are what."""

    name: str
    id: tuple[str, ...] = ()
    """The columns that name a person, together."""
    id_type: IdType = "text"
    duplicates: Duplicates = "error"
    features: tuple[str, ...] = ("*",)
    exclude: tuple[str, ...] = ()
    label: str | None = None
    labels_elsewhere: tuple[str, ...] = ()
    """Names of labels that others hold; a column of that name is no feature unless it is named as one."""
    positive: str | None = None
    split_by: str | None = None
    """The column whose latest rows are held out, of the party with the label."""
    split_groups: str | None = None
    """The column whose values are groups of rows that stay together, of the party with the label; it is no feature."""
    settings: Settings = field(default_factory=Settings)


class PartyTable:
    """A party's open table: its ids, its label, and its columns prepared for the rows that all parties share."""

    def __init__(self, party: Organisation, table: Table, loss: Loss | None = None) -> None:
        self.party, self.table = party, table
        aside = [name for name in (*party.id, party.label, party.split_groups) if name]
        self._id_notes: tuple[str, ...] = ()
        self._leaks: tuple[str, ...] = ()
        self._rare: tuple[str, ...] = ()
        self.groups = read_groups(table, party.split_groups) if party.split_groups else None
        """Of each row the group that it is held out with, if there are groups."""
        table.select(aside, ())  # names them if they are not there
        chosen = [name for name in table.select(party.features, party.exclude) if name not in aside]
        self._copies = [n for n in chosen if n in party.labels_elsewhere and n not in party.features]
        self.features = tuple(name for name in chosen if name not in self._copies)
        aside += self._copies
        if not self.features:
            raise DataError(f"{table.name}: no feature column is left beside {', '.join(aside)}")
        self.moments = read_moments(table, party.split_by) if party.split_by else None
        """By what rows are held out, if not by a hash."""
        self.label: Label | None = read_label(table, party.label, party.positive, loss) if party.label else None
        self.held: Label | None = None
        """The true labels, where `label` has those that others are told in their place."""
        self.epsilons: tuple[float, ...] = ()
        """With which epsilons labels of this column were told so far."""
        self.preparation: Preparation | None = None
        """How columns become numbers, if that is known from an earlier run; else it is fitted."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What was done to ids and other columns, of those that have been read."""
        copies = tuple(
            f"{self.table.name}: column {name!r} is left out, since the label of another party is called so; "
            "name it in `features` to use it"
            for name in self._copies
        )
        label = self.label.notes if self.label else ()
        return self._id_notes + copies + label + self.table.notes + self._rare + self._leaks

    def ids(self) -> dict[str, int]:
        """The ids of all rows that can be used, with their places; a row without a label cannot."""
        if not self.party.id:
            raise DataError(
                f"{self.table.name}: private alignment needs an id column; set data.id or party.{self.party.name}.id"
            )
        usable = self.label.known if self.label else None
        found = read_ids(self.table, self.party.id, self.party.id_type, self.party.duplicates, usable)
        self._id_notes = found.notes
        return found.rows

    def renumber(self, classes: Sequence[str]) -> None:
        """Have the classes of the label in the order that they had in an earlier run."""
        self.label = self.label and self.label.renumbered(classes)
        self.held = self.held and self.held.renumbered(classes)

    def compare(self, preparation: Preparation, x: Tensor, labels: Tensor, loss: Loss) -> None:
        """Note which columns tell the label of every training row, given those rows and their labels."""
        names = dict.fromkeys(preparation.columns[at] for at in telling(x, labels, loss))
        self._leaks = tuple(
            f"{self.table.name}: column {name!r} tells the label of every training row; exclude it if it is a copy of "
            "the label or only known when the label is"
            for name in names
        )

    def prepared(self, rows: NDArray[np.int64], train: int, dtype: torch.dtype) -> tuple[Preparation, Tensor]:
        """The features of these rows, fitted on the first `train` of them unless it is known how.

        Rows that are not held here are left out of the fit, and have zeros.
        """
        held = rows != NOT_HELD
        preparation, x = self._prepared(rows[held], int(held[:train].sum()), dtype)
        if held.all():
            return preparation, x
        whole = torch.zeros(len(rows), x.shape[1], dtype=dtype)
        whole[torch.from_numpy(held)] = x
        return preparation, whole

    def _prepared(self, rows: NDArray[np.int64], train: int, dtype: torch.dtype) -> tuple[Preparation, Tensor]:
        if self.preparation:
            return self.preparation, self.preparation.transform(self.table, rows, dtype)
        if train == 0:
            raise DataError(f"{self.table.name}: it has no row that is for training, so there is nothing to learn from")
        preparation, x = prepare(self.table, self.features, rows, train, self.party.settings, dtype)
        self._rare = tuple(
            f"{self.table.name}: {rare_line(name, *rare)}" for name, rare in preparation.mostly_rare(x[:train]).items()
        )
        return preparation, x


def read_groups(table: Table, column: str) -> NDArray[np.int64]:
    """A number for the group of each row; every row must have one."""
    _check_column(table, column, "split_groups")
    values: NDArray[Any]
    match table.kind(column):
        case Kind.NUMBER:
            values = table.numbers(column)
            missing = np.isnan(values)
        case Kind.DATE:
            values = table.dates(column)
            missing = np.isnat(values)
        case Kind.CATEGORY:
            values = table.categories(column).codes
            missing = values < 0
    _check_gaps(table, column, int(missing.sum()), "split_groups")
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def _check_column(table: Table, column: str, key: str) -> None:
    if column not in table.columns:
        near = suggest(column, table.columns)
        raise DataError(f"{table.name}: data.{key}: {column!r} must be in this table, which has the label{near}")


def _check_gaps(table: Table, column: str, gaps: int, key: str) -> None:
    if gaps:
        raise DataError(f"{table.name}: data.{key}: {column!r} is missing in {gaps:,} of {table.rows:,} rows")


def read_moments(table: Table, column: str) -> NDArray[np.float64]:
    """A column of dates or numbers as numbers, to hold the latest rows out by; every row must have one."""
    _check_column(table, column, "split_by")
    match table.kind(column):
        case Kind.NUMBER:
            moments = table.numbers(column)
        case Kind.DATE:
            dates = table.dates(column)
            moments = np.where(np.isnat(dates), np.nan, dates.astype(np.int64))
        case kind:
            raise DataError(f"{table.name}: data.split_by: {column!r} is a {kind}; it must have dates or numbers")
    _check_gaps(table, column, int(np.isnan(moments).sum()), "split_by")
    return moments


@dataclass(frozen=True)
class Assembled:
    """Rows ready for training, how each party's columns became numbers, and what the class numbers mean."""

    data: VerticalData
    preparations: Mapping[str, Preparation] = field(default_factory=dict)
    classes: tuple[str, ...] = ()


def assemble(
    tables: Sequence[PartyTable],
    places: Sequence[NDArray[np.int64]],
    parts: NDArray[np.int8],
    dtype: torch.dtype,
    on_party: Callable[[PartyTable], None] = lambda table: None,
    outer: bool = False,
) -> Assembled:
    """Each party prepares its columns of the shared rows: `places` in each table, `parts` what they are for.

    With `outer` a party may not hold some rows: their place is NOT_HELD.
    """
    order = np.argsort(parts, kind="stable")  # training rows first, then validation, then test
    sizes = [int((parts == part).sum()) for part in Part]
    preparations, split, held = {}, [], [torch.from_numpy(at[order] != NOT_HELD) for at in places]
    for table, at in zip(tables, places, strict=True):
        on_party(table)
        preparations[table.party.name], x = table.prepared(at[order], sizes[Part.TRAIN], dtype)
        split.append(torch.split(x, sizes))
    label, at = next((table.label, at) for table, at in zip(tables, places, strict=True) if table.label)
    told, units = label.tensor(at[order], sizes[Part.TRAIN], dtype)
    labels = torch.split(told, sizes)
    train = sizes[Part.TRAIN]
    for table, own, here in zip(tables, split, held, strict=True):
        known = here[:train]
        table.compare(preparations[table.party.name], own[Part.TRAIN][known], labels[Part.TRAIN][known], label.loss)
    data = VerticalData(
        names=tuple(preparations),
        train=tuple(x[Part.TRAIN] for x in split),
        test=tuple(x[Part.TEST] for x in split),
        train_labels=labels[Part.TRAIN],
        test_labels=labels[Part.TEST],
        loss=label.loss,
        validation=tuple(x[Part.VALIDATION] for x in split) if sizes[Part.VALIDATION] else (),
        validation_labels=labels[Part.VALIDATION],
        categories=tuple(preparation.categories for preparation in preparations.values()),
        units=units,
        present=Presence(tuple(h[:train] for h in held), tuple(h[train:] for h in held)) if outer else None,
    )
    return Assembled(data, preparations, label.classes)
