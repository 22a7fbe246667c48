"""Excel files: the first sheet, whose first row that is not empty has the names of the columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

from cvfl.data.tables.kinds import Declared
from cvfl.data.tables.objects import VALUES_AT_A_TIME, spill_objects
from cvfl.data.tables.spill import Report, one_line
from cvfl.errors import DataError


def spill_excel(path: Path, name: str, to: Path, report: Report | None) -> Declared:
    """Copy the first sheet into a Parquet file as text, and say of which kinds its columns were."""
    try:
        from openpyxl import load_workbook  # noqa: PLC0415 - an extra
    except ImportError:
        raise DataError(f"{name}: Excel files need an extra: pip install 'cvfl[excel]', or save it as CSV") from None
    try:
        book = load_workbook(path, read_only=True, data_only=True)
        rows = _filled(book.worksheets[0].iter_rows(values_only=True))
    except (BadZipFile, KeyError, ValueError, OSError, IndexError) as error:
        raise DataError(f"{name}: is no Excel file with a sheet ({one_line(error)}); save it as CSV") from error
    header = next(rows, ())
    columns = [str(value).strip() for value in header if value is not None]
    if not columns or None in header[: len(columns)]:
        raise DataError(f"{name}: the first row must name the columns, without gaps; remove what is above the table")
    at_a_time = max(1, VALUES_AT_A_TIME // len(columns))
    declared = spill_objects(columns, iter(lambda: list(islice(rows, at_a_time)), []), name, to, report)
    titles = [sheet.title for sheet in book.worksheets]
    book.close()
    note = f"{name}: only the first of {len(titles)} sheets is read, {titles[0]!r}"
    return replace(declared, notes=(note,)) if len(titles) > 1 else declared


def _filled(rows: Iterator[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """The rows that have a value; a sheet often goes on below its table."""
    return (row for row in rows if any(value is not None for value in row))
