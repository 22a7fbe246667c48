"""The ids of a table: one text a row, by which a person is known, and in which row it is.

    columns ──trimmed, in Unicode's form NFC──▶ text ──joined──▶ one text a row ──duplicates──▶ id and row

7 and 7.0 are "7"; "007" stays as it is unless ids are to be integers. Letters that can be written in two ways, such as
é, are the same in both. Case counts unless ids are to be caseless.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cvfl.data.tables.table import Table
from cvfl.errors import DataError

IdType = Literal["text", "integer", "caseless"]
Duplicates = Literal["error", "first", "last"]
BETWEEN = "\x1f"
"""Stands between the columns of an id; no column may have it."""
_WHOLE_FLOAT = r"^(0|-?[1-9][0-9]*)\.0$"


@dataclass(frozen=True)
class Ids:
    """The row of each id, and what was done to ids that were not as they should be, in lines without any id."""

    rows: dict[str, int]
    notes: tuple[str, ...] = ()


def read_ids(
    table: Table,
    columns: Sequence[str],
    id_type: IdType = "text",
    duplicates: Duplicates = "error",
    usable: NDArray[np.bool_] | None = None,
) -> Ids:
    """The ids of the usable rows. Every row has one; `duplicates` says which row counts if several have the same."""
    spelled = [_spelled(table, name, alone=len(columns) == 1) for name in columns]
    texts = [text for text, _ in spelled]
    notes = [
        f"{table.name}: {changed:,} of {table.rows:,} values of column {name!r} are compared without blanks around "
        "them and with letters in one form (NFC)"
        for name, (_, changed) in zip(columns, spelled, strict=True)
        if changed
    ]
    ids = texts[0] if len(texts) == 1 else [BETWEEN.join(parts) for parts in zip(*texts, strict=True)]
    if id_type == "integer":
        ids = _integers(table, columns[0], ids)
    elif id_type == "caseless":
        ids = [text.casefold() for text in ids]
    places = range(len(ids)) if usable is None else np.flatnonzero(usable).tolist()
    rows: dict[str, int] = {}
    if duplicates == "first":
        rows.update((ids[row], row) for row in reversed(places))
    else:
        rows.update((ids[row], row) for row in places)
    if len(rows) < len(places):
        left_out = len(places) - len(rows)
        if duplicates == "error":
            raise _repeated(table, columns, ids, places, len(rows))
        notes.append(f"{table.name}: {left_out:,} rows are left out, whose id another row has: the {duplicates} counts")
    return Ids(rows, tuple(notes))


def check_case(ids: Mapping[str, Collection[str]]) -> None:
    """Refuse parties' ids of which none is shared, where some would be if case did not count."""
    if set.intersection(*map(set, ids.values())):
        return
    if alike := set.intersection(*({text.casefold() for text in own} for own in ids.values())):
        raise DataError(
            f"the parties share no id, but {len(alike):,} of them differ in upper and lower case only; "
            f'set id_type = "caseless" for {" and ".join(ids)}'
        )


def _spelled(table: Table, name: str, alone: bool) -> tuple[list[str], int]:
    """The text of a column in one form, and how many values were written otherwise."""
    text, changed = table.spelled(name)
    # Whole numbers that were floats when the file was written are there as "7.0".
    if pc.all(pc.match_substring_regex(text, _WHOLE_FLOAT)).as_py():
        text = pc.utf8_slice_codeunits(text, 0, -2)
    if text.null_count:
        raise DataError(
            f"{table.name}: {text.null_count:,} of {table.rows:,} rows have no id in column {name!r} "
            f"(first: row {_first(text.is_null()):,}); fill them in or leave these rows out"
        )
    if not alone and pc.any(odd := pc.match_substring(text, BETWEEN)).as_py():
        raise DataError(f"{table.name}: column {name!r} has a control character in row {_first(odd):,}; it is no id")
    found: list[str] = text.to_pylist()
    return found, changed


def _first(mask: pa.Array) -> int:
    row: int = mask.index(True).as_py() + 1
    return row


def _integers(table: Table, column: str, ids: Sequence[str]) -> list[str]:
    try:
        return [str(int(text)) for text in ids]
    except ValueError as error:
        bad = str(error).rpartition(": ")[2]
        raise DataError(f"{table.name}: id {bad} in column {column!r} is not an integer") from None


def _repeated(
    table: Table, columns: Sequence[str], ids: Sequence[str], places: Sequence[int], distinct: int
) -> DataError:
    """Names the rows, never the id itself."""
    by_id: dict[str, list[int]] = {}
    for row in places:
        by_id.setdefault(ids[row], []).append(row + 1)
    repeated = [rows for rows in by_id.values() if len(rows) > 1]
    where = f"column {columns[0]!r}" if len(columns) == 1 else f"columns {', '.join(map(repr, columns))}"
    return DataError(
        f"{table.name}: {len(repeated):,} of {distinct:,} ids in {where} appear twice or more "
        f"(first: rows {repeated[0][0]:,} and {repeated[0][1]:,}); keep one row each, "
        'or set duplicates = "first" or "last" for this party'
    )
