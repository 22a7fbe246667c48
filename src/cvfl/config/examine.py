"""What `cvfl init` finds in the users' tables: columns that can be used, those that cannot, and why."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from cvfl.data.tables.describe import Column, describe
from cvfl.data.tables.ids import Duplicates, Ids, read_ids
from cvfl.data.tables.kinds import Kind
from cvfl.data.tables.label import Label, read_label
from cvfl.data.tables.prepare import MOSTLY_RARE, rare_line
from cvfl.data.tables.sources import Source
from cvfl.data.tables.spellings import READABLE
from cvfl.data.tables.table import Table
from cvfl.errors import ConfigError, DataError, suggest
from cvfl.types import OnStep

MOSTLY_DIFFERENT = 0.5
"""A category with more different values than this share of the rows is a name or a text, not a category."""
_ENOUGH = 20  # shared rows; in fewer a column agrees with the label by chance
_ROWS_A_VALUE = 5  # at least: a column with a value for nearly every row tells any label


@dataclass(frozen=True)
class Draft:
    """One party's table as `cvfl init` found it: what it is, and which columns cannot be used, and why."""

    source: Source
    table: Table
    columns: tuple[Column, ...]
    unusable: Mapping[str, str]
    duplicates: Duplicates = "error"
    """Which of rows with the same id counts."""
    words: tuple[str, ...] = ()
    """Words for a missing value that the user named."""
    notes: tuple[str, ...] = ()
    """What there is to say of its ids."""

    @property
    def name(self) -> str:
        """The party."""
        return self.source.party

    @property
    def features(self) -> list[Column]:
        """Columns that a model can use."""
        return [column for column in self.columns if column.name not in self.unusable]

    def mostly_rare(self, aside: Collection[str]) -> list[str]:
        """Lines about categories that are to be learned from, but are mostly rare values."""
        used = (column for column in self.features if column.name not in aside)
        return [rare_line(column.name, column.rare, column.odd) for column in used if column.rare > MOSTLY_RARE]

    @property
    def missing(self) -> dict[str, list[str]]:
        """Numbers that stand for a missing one, such as -999, and the columns that have them."""
        words: dict[str, list[str]] = {}
        for column in self.features:
            if column.sentinel:
                words.setdefault(column.sentinel, []).append(column.name)
        return words


@dataclass(frozen=True)
class Choices:
    """What the user said: the columns that are each party's id, and the label as party and column, if it is here."""

    ids: Mapping[str, tuple[str, ...]]
    holder: str = ""
    label: str = ""

    def aside(self, party: str) -> tuple[str, ...]:
        """A party's columns that are no features."""
        return (*self.ids[party], self.label) if party == self.holder else self.ids[party]


def examine(source: Source, table: Table, on_step: OnStep = lambda *_: None) -> Draft:
    """Look at every column of a table; what stands for a missing value is missing from then on."""
    columns: list[Column] = []
    unusable: dict[str, str] = {}
    for done, column in enumerate(table.columns):
        on_step(f"{source.party}: looking at columns", done, len(table.columns))
        try:
            columns.append(describe(table, column))
        except DataError as error:
            unusable[column] = str(error).removeprefix(f"{table.name}: ")
            continue
        if reason := _unusable(columns[-1]):
            unusable[column] = reason
    draft = Draft(source, table, tuple(columns), unusable)
    table.take_as_missing(draft.missing)
    return draft


def _unusable(column: Column) -> str | None:
    if column.distinct == 0:
        return "has no value"
    if column.distinct == 1 and not column.missing:
        return "is constant"
    if column.counting:
        return "numbers the rows"
    if column.kind is Kind.CATEGORY and column.distinct > max(2, MOSTLY_DIFFERENT * column.rows):
        different = f"has {column.distinct:,} different values in {column.rows:,} rows"
        digits = any(sign.isdigit() for sign in column.odd)
        return f"{different}, such as {column.odd!r}; {READABLE}" if digits else different
    return None


def common_columns(drafts: Sequence[Draft]) -> list[str]:
    """Columns that every table has: where an id may be; the most telling first."""
    shared = set.intersection(*({column.name for column in draft.columns} for draft in drafts))
    different = {c.name: c.distinct / max(c.rows, 1) for draft in drafts for c in draft.columns if c.name in shared}
    return sorted(shared, key=lambda name: (-different[name], name))


def check_choices(drafts: Sequence[Draft], choices: Choices) -> tuple[Label, list[Draft]]:
    """The label as it will be read, and the drafts without copies of it; refuses columns that are not there."""
    by_name = {draft.name: draft for draft in drafts}
    ids = {draft.name: _ids(draft, choices.ids[draft.name]) for draft in drafts}
    places = {name: found.rows for name, found in ids.items()}
    if choices.holder not in by_name:
        raise ConfigError(f"label: there is no party {choices.holder!r}{suggest(choices.holder, by_name)}")
    table = by_name[choices.holder].table
    if choices.label not in table.columns:
        raise ConfigError(f"label: {table.name} has no column {choices.label!r}{suggest(choices.label, table.columns)}")
    label = read_label(table, choices.label)
    held = places[choices.holder]
    apart = matching_lines(places)
    drafts = [replace(draft, notes=(*ids[draft.name].notes, *apart.pop(draft.name, ()))) for draft in drafts]
    return label, [_without_copies(draft, places[draft.name], held, choices, label) for draft in drafts]


def matching_lines(ids: Mapping[str, Collection[str]]) -> dict[str, tuple[str, ...]]:
    """Under the smallest table's name a line if half of its ids or more are not shared, with what would share more."""
    if len(ids) < 2:
        return {}
    name = min(ids, key=lambda one: len(ids[one]))
    size, common = len(ids[name]), _common(ids.values())
    if 2 * common >= size:
        return {}
    line = f"only {common:,} of the {size:,} ids of {name}, the smallest table, are in every table"
    if (more := _common([[text.casefold() for text in own] for own in ids.values()])) > common:
        return {name: (f'{line}; {more:,} if case does not count: set id_type = "caseless" at every party',)}
    if (more := _common([[text.lstrip("0") for text in own] for own in ids.values()])) > common:
        return {name: (f'{line}; {more:,} without the zeros before them: set id_type = "integer" at every party',)}
    return {name: (f"{line}; check that the id columns mean the same",)}


def _common(ids: Iterable[Iterable[str]]) -> int:
    return len(set.intersection(*map(set, ids)))


def check_id(draft: Draft, choices: Choices) -> None:
    """Refuse id columns that are not there, or that name a person twice."""
    _ids(draft, choices.ids[draft.name])


def _ids(draft: Draft, columns: Sequence[str]) -> Ids:
    for column in columns:
        if column not in draft.table.columns:
            raise ConfigError(f"id: {draft.table.name} has no column {column!r}{suggest(column, draft.table.columns)}")
    return read_ids(draft.table, columns, duplicates=draft.duplicates)


def likely_id(draft: Draft) -> str:
    """The first column that is different in every row, or else a word in place of one."""
    found = (c.name for c in draft.columns if c.distinct == c.rows and c.kind is not Kind.DATE and not c.counting)
    return next(found, "COLUMN")


def _without_copies(
    draft: Draft, own: Mapping[str, int], held: Mapping[str, int], choices: Choices, label: Label
) -> Draft:
    """The draft without columns that have the label's name or tell the label of all shared rows."""
    common = [text for text in own if text in held]
    at, labelled = (np.array([rows[text] for text in common], dtype=np.int64) for rows in (own, held))
    known = label.known[labelled]
    at, y = at[known], label.values[labelled[known]]
    copies = {}
    for column in draft.features:
        if column.name in choices.aside(draft.name):
            continue
        if column.name == choices.label:
            copies[column.name] = f"has the name of the label at {choices.holder}"
        elif _may_tell(column, label) and _tells(_values(draft.table, column)[at], y, bool(label.classes)):
            copies[column.name] = "tells the label in all shared rows: a copy, or known only when the label is"
    return replace(draft, unusable={**draft.unusable, **copies})


def _may_tell(column: Column, label: Label) -> bool:
    """Whether a column is worth comparing with the label."""
    if label.classes:
        return column.kind is not Kind.DATE and column.distinct * _ROWS_A_VALUE <= column.rows
    return column.kind is Kind.NUMBER


def _values(table: Table, column: Column) -> NDArray[np.float64]:
    """Numbers, or codes of categories, NaN where one is missing."""
    if column.kind is Kind.NUMBER:
        return table.numbers(column.name)
    codes = table.categories(column.name).codes
    return np.where(codes < 0, np.nan, codes)


def _tells(values: NDArray[np.float64], labels: NDArray[np.float64] | NDArray[np.int64], classes: bool) -> bool:
    """Whether each value belongs to one class, or a number is the quantity in other units."""
    known = ~np.isnan(values)
    values, labels = values[known], labels[known]
    if len(values) < _ENOUGH or len(np.unique(labels)) < 2 or values.min() == values.max():
        return False
    if not classes:
        return bool(abs(np.corrcoef(values, labels)[0, 1]) > 1 - 1e-9)
    different, codes = np.unique(values, return_inverse=True)
    pairs = np.unique(codes * (int(labels.max()) + 1) + labels.astype(np.int64))
    return len(pairs) == len(different) and len(different) * _ROWS_A_VALUE <= len(values)
