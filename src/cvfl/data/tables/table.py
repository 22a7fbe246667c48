"""A party's table: columns in a Parquet file on disk, each of which can be read alone.

    CSV ──spill──┐
    SQL ──spill──┼──>  Parquet file  ──one column, a batch of rows at a time──>  numbers, categories, dates, ids
    Parquet ─────┘     (in place)

Only the column that is asked for is ever in memory, so a table may be larger than the memory there is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
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
from cvfl.data.tables.kinds import DEFAULT_MISSING, Column, Declared, Kind, Odd, is_text, native_kind
from cvfl.data.tables.spill import check_names, one_line
from cvfl.errors import DataError, suggest

__all__ = ["Categories", "Column", "Kind", "Table"]

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
        types: Mapping[str, Kind] | None = None,
        declared: Declared | None = None,
        resources: ExitStack | None = None,
    ) -> None:
        self.name, self._declared, self._resources = name, declared or Declared(), resources or ExitStack()
        self._kinds = {**self._declared.kinds, **(types or {})}
        self._missing = pa.array(sorted({"", *missing}), pa.large_string())
        self._missing_numbers = kinds.spelled_numbers(missing)
        try:
            file = pq.ParquetFile(path, pre_buffer=False, buffer_size=_BUFFER, page_checksum_verification=True)
            self._file = self._resources.enter_context(file)
            schema = self._file.schema_arrow
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{name}: is not a complete Parquet file ({one_line(error)}); write it again") from error
        check_names(name, schema.names)
        self.rows: int = self._file.metadata.num_rows
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

    def kind(self, name: str) -> Kind:
        """What the column holds: as told, as its type says, or found from all of its text."""
        native = self._native(name)
        if name not in self._kinds:
            if native:
                self._kinds[name] = native
            else:
                found, odd = kinds.infer(text for _, text in self._chunks(name))
                if found is Kind.NUMBER and odd.count:
                    raise self._misfit(name, f"mixes numbers and text: {odd}")
                self._kinds[name] = found
        return self._kinds[name]

    def numbers(self, name: str) -> NDArray[np.float64]:
        """The column as numbers, NaN where one is missing; booleans are 0 and 1."""
        self._native(name, wanted=Kind.NUMBER)
        out, odd = np.empty(self.rows), Odd()
        for row, array in self._chunks(name):
            values, bad = kinds.as_numbers(array)
            gone = np.isin(values, self._missing_numbers)
            out[row : row + len(array)] = np.where(gone, np.nan, values)
            odd.add(row, array, bad & ~gone)
        if odd.count:
            raise self._misfit(name, f"cannot be read as numbers: {odd}")
        return out

    def dates(self, name: str) -> NDArray[np.datetime64]:
        """The column as dates to the second, NaT where one is missing; moments with a zone are in UTC."""
        self._native(name, wanted=Kind.DATE)
        out, odd = np.empty(self.rows, "datetime64[s]"), Odd()
        for row, array in self._chunks(name):
            out[row : row + len(array)], bad = kinds.as_dates(array)
            odd.add(row, array, bad)
        if odd.count:
            raise self._misfit(name, f"cannot be read as dates such as 2024-02-29: {odd}")
        return out

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

    def describe(self, names: Sequence[str]) -> tuple[Column, ...]:
        """Kind, missing and distinct values of columns, for people to look at."""
        return tuple(self._describe(name) for name in names)

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

    def _describe(self, name: str) -> Column:
        kind = self.kind(name)
        if kind is Kind.CATEGORY:
            found = self.categories(name)
            counts = np.bincount(found.codes + 1, minlength=len(found.values) + 1)
            common = [_short(found.values[code]) for code in np.argsort(-counts[1:], kind="stable")[:3]]
            example = ", ".join(common) + (", …" if len(found.values) > 3 else "")
            return Column(name, kind, self.rows, int(counts[0]), len(found.values), example)
        values = self.numbers(name) if kind is Kind.NUMBER else self.dates(name)
        present = values[~np.isnan(values)]
        missing, distinct = self.rows - len(present), np.unique(present)
        spell = "{:.7g}".format if kind is Kind.NUMBER else lambda date: str(date).removesuffix("T00:00:00")
        ends = dict.fromkeys(spell(value) for value in (*distinct[:1], *distinct[-1:]))
        return Column(name, kind, self.rows, missing, len(distinct), " to ".join(ends))

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
                f'set {_key(name)} = "{native}"'
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
        try:
            for batch in self._file.iter_batches(_BATCH_ROWS, columns=[name], use_threads=False):
                array = batch.column(name)
                yield array.cast(_values(array.type))
        except (pa.ArrowException, OSError) as error:
            raise DataError(
                f"{self.name}: column {name!r} cannot be read ({one_line(error)}); the file is damaged, write it again"
            ) from error

    def _texts(self, name: str) -> Iterator[pa.Array]:
        for _, array in self._chunks(name):
            yield array if is_text(array.type) else kinds.clean(kinds.as_text(array), self._missing)

    def _misfit(self, name: str, what: str) -> DataError:
        advice = f'add it to `missing` or set {_key(name)} = "{Kind.CATEGORY}"'
        return DataError(f"{self.name}: column {name!r} {what}; {advice}")

    def _unknown(self, name: str, where: str = "") -> DataError:
        near = suggest(name, self.columns)
        if len(self.columns) > 30 and "did you mean" not in near:
            near = f" among its {len(self.columns):,} columns"
        return DataError(f"{self.name}: column {name!r}{where} is not there{near}")


def _values(kind: pa.DataType) -> pa.DataType:
    """The type of the values: what a dictionary-encoded column stands for, else the type itself."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _short(text: str) -> str:
    """A value as it fits into a table of columns."""
    text = " ".join(text.split())
    return text if len(text) <= 30 else f"{text[:29]}…"


def _key(name: str) -> str:
    """The configuration key that sets a column's type, quoted as TOML needs it."""
    return f"types.{name if re.fullmatch(r'[A-Za-z0-9_-]+', name) else json.dumps(name, ensure_ascii=False)}"
