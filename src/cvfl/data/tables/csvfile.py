"""CSV files: found out about from their header, then streamed as text into a temporary Parquet file."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.csv

from cvfl.data.tables.spill import Report, Spill, one_line
from cvfl.errors import DataError

_DELIMITERS = ",;\t|"
_BLOCK = 1 << 20  # bytes read at a time, and the most that a row may have; some fifty blocks are in memory at once
_ROWS_IN_BLOCK = 16  # at least, where rows are as long as the header


@dataclass(frozen=True)
class _Header:
    names: tuple[str, ...]
    delimiter: str
    lines: int

    @property
    def block(self) -> int:
        """Bytes to read at a time: more where there are thousands of columns."""
        return max(_BLOCK, _ROWS_IN_BLOCK * sum(len(name) + 1 for name in self.names))


def spill_csv(path: Path, name: str, delimiter: str | None, to: Path, report: Report | None) -> None:
    """Copy a CSV file into a Parquet file with all its columns as text."""
    header = _header(path, name, delimiter)
    read = pyarrow.csv.ReadOptions(column_names=header.names, skip_rows=header.lines, block_size=header.block)
    parse = pyarrow.csv.ParseOptions(delimiter=header.delimiter, newlines_in_values=True)
    as_text = pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(header.names, pa.string()))
    with Spill(name, to, header.names, report) as spill, _Quotes(path) as file:
        try:
            for batch in pyarrow.csv.open_csv(file, read, parse, as_text):
                spill.add(batch)
        except pa.ArrowInvalid as error:
            raise DataError(f"{name}: {_fault(path, header) or one_line(error)}") from error
        # A quote that never closes swallows the rest of the file, which pyarrow takes for a long value.
        if file.quotes % 2 and (fault := _fault(path, header)):
            raise DataError(f"{name}: {fault}")


class _Quotes(io.FileIO):
    """A file that counts the quotation marks read from it."""

    quotes = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(-1 if size is None else size) or b""
        self.quotes += data.count(b'"')
        return data


def _header(path: Path, name: str, delimiter: str | None) -> _Header:
    """The column names, with the delimiter that finds most of them."""
    headers, unreadable = [], False
    for sign in delimiter or _DELIMITERS:
        records = csv.reader(_lines(path), delimiter=sign)
        try:
            fields = next(filter(None, records), None)
        except UnicodeError as error:
            raise DataError(f"{name}: {_complaint(error, records.line_num + 1)}") from error
        except csv.Error:
            unreadable = True  # with the wrong delimiter, the names of thousands of columns are one that is too long
            continue
        if fields is None:
            raise DataError(f"{name}: the file is empty")
        names = tuple(field.strip() or f"column{i}" for i, field in enumerate(fields, start=1))
        headers.append(_Header(names, sign, records.line_num))
    best = max(headers, key=lambda header: len(header.names), default=None)
    if best is None or (unreadable and len(best.names) == 1):
        raise DataError(f"{name}: {_complaint(csv.Error(), line=1)}")
    return best


def _fault(path: Path, header: _Header) -> str | None:
    """What is wrong with the file and in which line, as far as a slower and stricter reader can tell."""
    records = csv.reader(_lines(path), delimiter=header.delimiter, strict=True)
    line, rows, width = 1, 0, len(header.names)
    try:
        for fields in records:
            if fields and len(fields) != width:
                found = f"{len(fields):,} field{'s' if len(fields) != 1 else ''}"
                return f"line {line:,} has {found}, where the header has {width:,}; correct that line"
            line, rows = records.line_num + 1, rows + bool(fields)
    except UnicodeError as error:
        return _complaint(error, records.line_num + 1)
    except csv.Error as error:
        return _complaint(error, line)
    return "there are no rows" if rows == 1 else None


def _complaint(error: UnicodeError | csv.Error, line: int) -> str:
    if isinstance(error, UnicodeError):
        return f"line {line:,} is not UTF-8 text; save the file as UTF-8"
    return f'line {line:,} is too long, or has a quotation mark " that does not end a value; correct that line'


def _lines(path: Path) -> Iterator[str]:
    """The lines of a file as they are; UnicodeError at the first that is not UTF-8."""
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        for line in file:
            line.encode()
            yield line
