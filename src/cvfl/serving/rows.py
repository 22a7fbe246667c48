"""Which rows of new tables belong together, and whether their columns are those that the models know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cvfl.data.tables.ids import BETWEEN, check_case, read_ids
from cvfl.data.tables.kinds import DEFAULT_MISSING
from cvfl.data.tables.sources import Source
from cvfl.data.tables.spellings import listed
from cvfl.data.tables.table import Table
from cvfl.errors import DataError
from cvfl.runs.bundle import PartyBundle, Reading
from cvfl.serving.advice import for_new_rows
from cvfl.types import OnStep

OUTPUTS = ("score", "class", "value")
"""Names that an id column may not have in the result."""
PARTIES = "parties"
"""The column that says which parties a score is by, where not all are needed."""
DOES = 'one that was trained with absence.rate, or with data.alignment = "outer", does not'
"""What a model that needs every party lacks."""
LEARN = "train with absence.rate to do without"
"""What to do where every row of training had a party."""
NOT_HELD = -1
"""The place of a row that is not in a table."""


@dataclass(frozen=True)
class Shared:
    """The rows that are scored, in the order of the first party's table: their ids, and places in each table.

    They are those that all parties hold, or those of any; then some have the place `NOT_HELD` in a table.
    """

    names: tuple[str, ...]
    """Of the id columns; none if rows have no ids."""
    texts: list[str]
    places: Mapping[str, NDArray[np.int64]]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(next(iter(self.places.values())))

    def ids(self, start: int, end: int) -> dict[str, pa.Array]:
        """The ids of some rows, or their numbers."""
        if not self.names:
            return {"row": pa.array(range(start + 1, min(end, len(self)) + 1))}
        texts = self.texts[start:end]
        if len(self.names) == 1:
            return {self.names[0]: pa.array(texts, pa.string())}
        parts = zip(*(text.split(BETWEEN) for text in texts), strict=True)
        return {name: pa.array(part, pa.string()) for name, part in zip(self.names, parts, strict=True)}


def source_of(bundle: PartyBundle, place: Path | tuple[str, str]) -> Source:
    """A party's new table, read as that of the training was."""
    table = _reading(bundle)
    missing = DEFAULT_MISSING + table.missing
    if isinstance(place, Path):
        return Source(bundle.role, path=place, delimiter=table.delimiter, encoding=table.encoding, missing=missing)
    url, query = place
    return Source(bundle.role, url=url, query=query, missing=missing)


def check_columns(table: Table, bundle: PartyBundle) -> list[str]:
    """Refuse a table without a column that is needed; what is there besides is not used, and said."""
    known = _reading(bundle)
    if missing := [name for name in bundle.columns if name not in table.columns]:
        were = "columns are" if len(missing) > 1 else "column is"
        raise DataError(f"{table.name}: {were} missing that training had: {listed(missing)}; add what is missing")
    used = {*bundle.columns, *known.id, known.label}
    extra = [name for name in table.columns if name not in used]
    return [f"{table.name}: not used, since training did not: {listed(extra)}"] if extra else []


def shared_rows(tables: Mapping[str, Table], bundles: Mapping[str, PartyBundle], on_step: OnStep) -> Shared:
    """The rows of the people whom all parties hold; where training took rows as they were, row i is one person."""
    first, *others = tables
    if _reading(bundles[first]).alignment == "aligned":
        return _as_they_are(tables)
    own, notes = own_ids(tables[first], bundles[first], on_step)
    texts, places = list(own), np.fromiter(own.values(), np.int64, len(own))
    found, sizes = {first: places}, {first: len(own)}
    del own  # of the ids of all parties only two are here at a time: they take much room
    for name in others:
        theirs, more = own_ids(tables[name], bundles[name], on_step)
        notes, sizes[name] = notes + more, len(theirs)
        at = np.fromiter((theirs.get(text, -1) for text in texts), np.int64, len(texts))
        there = at >= 0
        texts = [text for text, kept in zip(texts, there, strict=True) if kept]
        found = {one: rows[there] for one, rows in found.items()} | {name: at[there]}
    if not texts:
        with for_new_rows():
            check_case({name: own_ids(table, bundles[name], on_step)[0] for name, table in tables.items()})
        raise DataError("the tables share no id: nobody is held by every party, so there is nothing to predict")
    return Shared(id_names(_reading(bundles[first])), texts, found, (*notes, *left_out(sizes, len(texts))))


def rows_of_any(
    tables: Mapping[str, Table], bundles: Mapping[str, PartyBundle], on_step: OnStep, needed: Sequence[str] = ()
) -> Shared:
    """The rows of the people whom any of these parties holds: those of the first one's table, then further ones.

    Those that one of the `needed` parties does not hold are left out, and counted.
    """
    first = next(iter(tables))
    if _reading(bundles[first]).alignment == "aligned":
        return _as_they_are(tables)
    notes: tuple[str, ...] = ()
    held = {}
    for name, table in tables.items():
        held[name], more = own_ids(table, bundles[name], on_step)
        notes += more
    with for_new_rows():
        check_case(held)
    texts = list(dict.fromkeys(text for own in held.values() for text in own))
    places = {
        name: np.fromiter((own.get(text, NOT_HELD) for text in texts), np.int64, len(texts))
        for name, own in held.items()
    }
    everyone, scored = len(texts), np.ones(len(texts), dtype=np.bool_)
    for name in needed:
        scored &= places[name] != NOT_HELD
    texts = [text for text, kept in zip(texts, scored, strict=True) if kept]
    places = {name: rows[scored] for name, rows in places.items()}
    notes += without_score(everyone, len(texts), needed)
    return Shared(id_names(_reading(bundles[first])), texts, places, notes)


def without_score(everyone: int, scored: int, needed: Sequence[str]) -> tuple[str, ...]:
    """One line of the rows that lack a party for which nothing was learned; if all do there is nothing to predict."""
    who = " and ".join(needed) or "a party that does not hold them"
    if everyone and not scored:
        raise DataError(f"none of {everyone:,} rows has a score: this model needs {who}; {LEARN}")
    if everyone == scored:
        return ()
    return (f"left out, since this model needs {who}: {everyone - scored:,} of {everyone:,} rows; {LEARN}",)


def own_ids(table: Table, bundle: PartyBundle, on_step: OnStep) -> tuple[dict[str, int], tuple[str, ...]]:
    """The ids of a table with their places, and what was done to them."""
    on_step(f"{bundle.role}: reading ids", 0, 0)
    known = _reading(bundle)
    table.select(known.id)  # names a column that is not there
    with for_new_rows():
        found = read_ids(table, known.id, known.id_type, known.duplicates)
    return found.rows, found.notes


def left_out(sizes: Mapping[str, int], common: int) -> tuple[str, ...]:
    """One line of the rows that not all parties hold."""
    gone = [f"{rows - common:,} of {rows:,} at {name}" for name, rows in sizes.items() if rows > common]
    return (f"left out, since not every party holds them: {', '.join(gone)}",) if gone else ()


def _as_they_are(tables: Mapping[str, Table]) -> Shared:
    sizes = {name: table.rows for name, table in tables.items()}
    if len(set(sizes.values())) > 1:
        counts = ", ".join(f"{name} {rows:,}" for name, rows in sizes.items())
        raise DataError(f'data.alignment = "aligned" needs tables of the same length ({counts} rows)')
    places = np.arange(next(iter(sizes.values())))
    return Shared((), [], dict.fromkeys(tables, places))


def id_names(known: Reading) -> tuple[str, ...]:
    """What id columns are called beside scores."""
    return tuple(f"id_{name}" if name.startswith(OUTPUTS) or name == PARTIES else name for name in known.id)


def _reading(bundle: PartyBundle) -> Reading:
    assert bundle.table is not None  # since it was trained on one
    return bundle.table
