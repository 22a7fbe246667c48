"""A party's table: columns in a Parquet file on disk, each of which can be read alone.

    CSV ──spill──┐
    SQL ──spill──┼──>  Parquet file  ──one column, a batch of rows at a time──>  numbers, categories, dates, ids
    Parquet ─────┘     (in place)

Only the column that is asked for is ever in memory, so a table may be larger than the memory there is.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from fnmatch import fnmatchcase
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from cvfl.data.tables import kinds
from cvfl.data.tables.kinds import DEFAULT_MISSING, Declared, Kind, Odd, is_text, native_kind
from cvfl.data.tables.spellings import (
    Found,
    Spelling,
    Type,
    all_days,
    as_dates,
    as_numbers,
    infer,
    kind_of,
    spelling_notes,
    such_as,
    type_key,
)
from cvfl.data.tables.spill import check_names, one_line
from cvfl.errors import DataError, suggest

__all__ = ["Categories", "Kind", "Table"]

_BATCH_ROWS = 1 << 16
_BUFFER = 1 << 20  # bytes of a column read at a time; without it pyarrow reads all that a row group has of it


class Categories(NamedTuple):
    """A column of categories: a code for each row, -1 where it is missing, and the values in order of their text."""

    codes: NDArray[np.int32]
    values: tuple[str, ...]


class Table:
    """Reads a party's columns; a context manager that closes the file, and removes it if it is a temporary copy."""

    def __init__(
        self,
        name: str,
        path: Path,
        *,
        missing: Sequence[str] = DEFAULT_MISSING,
        types: Mapping[str, Type] | None = None,
        declared: Declared | None = None,
        resources: ExitStack | None = None,
    ) -> None:
        self.name, self._declared, self._resources = name, declared or Declared(), resources or ExitStack()
        self._types: Mapping[str, Type] = types or {}
        self._told: dict[str, Type] = {**self._declared.kinds, **self._types}
        self._found: dict[str, Found] = {}
        self._words: frozenset[str] = frozenset()
        self.take_as_missing(missing)
        try:
            file = pq.ParquetFile(path, pre_buffer=False, buffer_size=_BUFFER, page_checksum_verification=True)
            self._file = self._resources.enter_context(file)
            schema = self._file.schema_arrow
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{name}: is not a complete Parquet file ({one_line(error)}); write it again") from error
        check_names(name, schema.names)
        self.rows: int = self._file.metadata.num_rows
        self._first = 0
        self.columns: tuple[str, ...] = tuple(schema.names)
        self._schema: dict[str, pa.DataType] = dict(zip(schema.names, schema.types, strict=True))
        if not self.rows:
            raise DataError(f"{name}: there are no rows")
        if odd := [column for column in types or {} if column not in self._schema]:
            raise self._unknown(odd[0], " in `types`")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; the temporary copy of a CSV file or of a query's result is removed."""
        self._resources.close()

    def window(self, first: int, rows: int) -> Table:
        """Some rows of the table as a table of their own, which ends with this one: columns are read of them alone."""
        view = copy.copy(self)
        view._first, view.rows, view._resources = self._first + first, rows, ExitStack()
        return view

    def take_as_missing(self, words: Iterable[str]) -> None:
        """From now on these mean a missing value, too."""
        self._words |= {"", *words}
        self._missing = pa.array(sorted(self._words), pa.large_string())
        self._missing_numbers = kinds.spelled_numbers(self._words)

    def kind(self, name: str) -> Kind:
        """What the column holds: as told, as its type says, or found from all of its text."""
        return kind_of(self.type(name))

    def type(self, name: str) -> Type:
        """How the column is read: its kind, or the way in which its numbers or dates are written."""
        if name not in self._found:
            self._found[name] = self._find(name)
        return self._found[name].type

    def told(self, name: str) -> Kind | None:
        """The kind of the column if the user said it."""
        return kind_of(self._types[name]) if name in self._types else None

    @property
    def notes(self) -> tuple[str, ...]:
        """How the file and the columns that were looked at are written, where it is not the usual way."""
        return self._declared.notes + spelling_notes(self.name, self._found)

    def numbers(self, name: str, type: Type | None = None) -> NDArray[np.float64]:
        """The column as numbers, NaN where one is missing; booleans are 0 and 1. `type` is how they were written."""
        self._native(name, wanted=Kind.NUMBER)
        out, odd, written = np.empty(self.rows), Odd(), type or self.type(name)
        for row, array in self._chunks(name):
            values, bad = as_numbers(array, written)
            gone = np.isin(values, self._missing_numbers)
            out[row : row + len(array)] = np.where(gone, np.nan, values)
            odd.add(self._first + row, array, bad & ~gone)
        if odd.count:
            raise self._misfit(name, f"cannot be read as numbers{such_as(written)}: {odd}")
        return out

    def dates(self, name: str, type: Type | None = None) -> NDArray[np.datetime64]:
        """The column as dates to the second, NaT where one is missing; moments with a zone are in UTC."""
        written = type or self.type(name)
        self._native(name, wanted=None if written is Spelling.COMPACT else Kind.DATE)
        out, odd = np.empty(self.rows, "datetime64[s]"), Odd()
        for row, array in self._chunks(name):
            out[row : row + len(array)], bad = as_dates(array, written)
            odd.add(self._first + row, array, bad)
        if odd.count:
            raise self._misfit(name, f"cannot be read as dates{such_as(written)}: {odd}")
        return out

    def _find(self, name: str) -> Found:
        native, told = self._native(name), self._told.get(name)
        if isinstance(told, Spelling) or told is Kind.CATEGORY:
            return Found(told)
        if name not in self._types and self._days(name, native or told):
            return Found(Spelling.COMPACT, other=Kind.NUMBER)
        if native:
            return Found(told or native)
        found = infer(lambda: (text for _, text in self._chunks(name)), told)
        if found.mixes and not told:
            raise self._misfit(name, f"mixes {found.mixes}")
        return found

    def _days(self, name: str, kind: Type | None) -> bool:
        """Whether a column whose source says that it holds numbers holds days, written as yyyymmdd."""
        whole = is_text(self._schema[name]) or pa.types.is_integer(_values(self._schema[name]))
        return kind is Kind.NUMBER and whole and all_days(array for _, array in self._chunks(name))

    def categories(self, name: str) -> Categories:
        """The column as categories, whatever its kind: held in memory are codes, and values once a batch."""
        chunks = [text.dictionary_encode() for text in self._texts(name)]
        column = pa.chunked_array(chunks).unify_dictionaries().combine_chunks()
        order = pc.sort_indices(column.dictionary)
        codes = np.full(len(order) + 1, -1, np.int32)  # a missing value has index -1, and the last code is -1
        codes[order.to_numpy()] = np.arange(len(order), dtype=np.int32)
        indices = column.indices.fill_null(-1).to_numpy()
        return Categories(codes[indices], tuple(column.dictionary.take(order).to_pylist()))

    def spelled(self, name: str) -> tuple[pa.Array, int]:
        """The column as text without blanks around it, in Unicode's form NFC; and how many values were otherwise."""
        chunks, changed = [], 0
        for array in self._batches(name):
            as_it_is = kinds.as_text(array)
            text = pc.utf8_normalize(kinds.clean(as_it_is, self._missing), form="NFC")
            changed += pc.sum(pc.not_equal(as_it_is, text)).as_py() or 0
            chunks.append(text)
        return pa.chunked_array(chunks).combine_chunks(), changed

    def select(self, features: Sequence[str], exclude: Sequence[str] = ()) -> tuple[str, ...]:
        """The columns that names and patterns (`lab_*`) stand for, in that order, without the excluded ones."""
        excluded = {name for entry in exclude for name in self._match(entry)}
        if both := next((entry for entry in features if entry in excluded), None):
            raise DataError(
                f"{self.name}: column {both!r} is named as a feature and also excluded; drop one of the two"
            )
        chosen = dict.fromkeys(name for entry in features for name in self._match(entry) if name not in excluded)
        if features and not chosen:
            raise DataError(f"{self.name}: no feature columns are left; name some, or exclude fewer")
        return tuple(chosen)

    def _match(self, entry: str) -> list[str]:
        if entry in self._schema:
            return [entry]
        if not any(sign in entry for sign in "*?["):
            raise self._unknown(entry)
        if matches := [name for name in self.columns if fnmatchcase(name, entry)]:
            return matches
        raise DataError(f"{self.name}: no column fits the pattern {entry!r}")

    def _native(self, name: str, wanted: Kind | None = None) -> Kind | None:
        """The kind that the column's type implies, none for text; refuses a type that cannot be read as wanted."""
        if name not in self._schema:
            raise self._unknown(name)
        kind = _values(self._schema[name])
        native, held = native_kind(kind), self._declared.refused.get(name, str(kind))
        if name in self._declared.refused or not (native or is_text(kind)):
            raise DataError(f"{self.name}: column {name!r} is of type {held}, which cannot be used; exclude it")
        if wanted and native not in (None, wanted) and not pa.types.is_null(kind):
            raise DataError(
                f"{self.name}: column {name!r} is of type {held} and cannot be read as {wanted}s; "
                f'set {type_key(name)} = "{native}"'
            )
        return native

    def _chunks(self, name: str) -> Iterator[tuple[int, pa.Array]]:
        """Batches of a column, each with the number of rows before it; text is clean."""
        row = 0
        for array in self._batches(name):
            yield row, kinds.clean(kinds.as_text(array), self._missing) if is_text(array.type) else array
            row += len(array)

    def _batches(self, name: str) -> Iterator[pa.Array]:
        """Batches of a column as they are in the file."""
        self._native(name)
        groups, row = self._groups()
        try:
            for batch in self._file.iter_batches(_BATCH_ROWS, groups, columns=[name], use_threads=False):
                start, end = max(0, self._first - row), min(len(batch), self._first + self.rows - row)
                row += len(batch)
                if start < end:
                    array = batch.column(name).slice(start, end - start)
                    yield array.cast(_values(array.type))
        except (pa.ArrowException, OSError) as error:
            raise DataError(
                f"{self.name}: column {name!r} cannot be read ({one_line(error)}); the file is damaged, write it again"
            ) from error

    def _groups(self) -> tuple[list[int], int]:
        """The row groups of the file that have rows of this table, and the first row of the first of them."""
        sizes = [self._file.metadata.row_group(n).num_rows for n in range(self._file.metadata.num_row_groups)]
        starts = np.cumsum([0, *sizes])
        found = [n for n in range(len(sizes)) if starts[n] < self._first + self.rows and starts[n + 1] > self._first]
        return found, int(starts[found[0]]) if found else 0

    def _texts(self, name: str) -> Iterator[pa.Array]:
        for _, array in self._chunks(name):
            yield array if is_text(array.type) else kinds.clean(kinds.as_text(array), self._missing)

    def _misfit(self, name: str, what: str) -> DataError:
        advice = f'mend it, add it to `missing` or set {type_key(name)} = "{Kind.CATEGORY}"'
        return DataError(f"{self.name}: column {name!r} {what}; {advice}")

    def _unknown(self, name: str, where: str = "") -> DataError:
        near = suggest(name, self.columns)
        if len(self.columns) > 30 and "did you mean" not in near:
            near = f" among its {len(self.columns):,} columns"
        return DataError(f"{self.name}: column {name!r}{where} is not there{near}")


def _values(kind: pa.DataType) -> pa.DataType:
    """The type of the values: what a dictionary-encoded column stands for, else the type itself."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind
