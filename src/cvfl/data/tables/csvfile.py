"""CSV files: found out about from their header, then streamed as text into a temporary Parquet file.

They may be packed with gzip. Their text is UTF-8, or UTF-16 if the file begins with its mark; what is neither is read
as Windows-1252, the usual one of Western Europe, and said.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

import pyarrow as pa
import pyarrow.csv

from cvfl.data.tables.kinds import Declared
from cvfl.data.tables.spill import Report, Spill, one_line
from cvfl.errors import DataError

_DELIMITERS = ",;\t|"
_BLOCK = 1 << 20  # bytes read at a time, and the most that a row may have; some fifty blocks are in memory at once
_GZIP = b"\x1f\x8b"
_ENCODINGS = ("utf-8-sig", "cp1252", "latin-1")  # the last can read anything
_ROWS_IN_BLOCK = 16  # at least, where rows are as long as the header


@dataclass(frozen=True)
class CsvFile:
    """A CSV file and how to read it."""

    path: Path
    name: str
    encoding: str
    delimiter: str | None = None

    def open(self) -> BinaryIO:
        """Its bytes, unpacked."""
        with self.path.open("rb") as file:
            packed = file.read(2) == _GZIP
        return cast(BinaryIO, gzip.open(self.path)) if packed else self.path.open("rb")

    def lines(self) -> Iterator[str]:
        """Its lines as they are; UnicodeError at the first that cannot be read."""
        with io.TextIOWrapper(self.open(), self.encoding, newline="") as file:
            yield from file


@dataclass(frozen=True)
class _Header:
    names: tuple[str, ...]
    delimiter: str
    lines: int

    @property
    def block(self) -> int:
        """Bytes to read at a time: more where there are thousands of columns."""
        return max(_BLOCK, _ROWS_IN_BLOCK * sum(len(name) + 1 for name in self.names))


def spill_csv(
    path: Path, name: str, delimiter: str | None, encoding: str | None, to: Path, report: Report | None
) -> Declared:
    """Copy a CSV file into a Parquet file with all its columns as text, and say what is unusual about it."""
    try:
        source = CsvFile(path, name, encoding or _encoding(path), delimiter)
        _spill(source, to, report)
    except (zlib.error, EOFError, gzip.BadGzipFile) as error:
        raise DataError(f"{name}: the packed file is damaged ({one_line(error)}); pack it again") from error
    if encoding or source.encoding in ("utf-8-sig", "utf-16"):
        return Declared()
    note = f"{name}: its text is not UTF-8 and is read as {source.encoding}; if letters are wrong, set `encoding`"
    return Declared(notes=(note,))


def _spill(source: CsvFile, to: Path, report: Report | None) -> None:
    header = _header(source)
    encoding = "utf8" if source.encoding == "utf-8-sig" else source.encoding
    read = pyarrow.csv.ReadOptions(
        column_names=header.names, skip_rows=header.lines, block_size=header.block, encoding=encoding
    )
    parse = pyarrow.csv.ParseOptions(delimiter=header.delimiter, newlines_in_values=True)
    as_text = pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(header.names, pa.string()))
    with Spill(source.name, to, header.names, report) as spill, source.open() as file:
        counted = _Quotes(file)
        try:
            for batch in pyarrow.csv.open_csv(counted, read, parse, as_text):
                spill.add(batch)
        except (pa.ArrowInvalid, UnicodeError) as error:
            raise DataError(f"{source.name}: {_fault(source, header) or one_line(error)}") from error
        # A quote that never closes swallows the rest of the file, which pyarrow takes for a long value.
        if counted.quotes % 2 and (fault := _fault(source, header)):
            raise DataError(f"{source.name}: {fault}")


def _encoding(path: Path) -> str:
    """How the text of a file is written, from its mark or from all of its bytes."""
    with CsvFile(path, "", "").open() as file:
        if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            return "utf-16"
    return next(name for name in _ENCODINGS if _fits(CsvFile(path, "", name)))


def _fits(source: CsvFile) -> bool:
    """Whether all of a file can be read in its encoding."""
    decoder = codecs.getincrementaldecoder(source.encoding)()
    try:
        with source.open() as file:
            for block in iter(lambda: file.read(_BLOCK), b""):
                decoder.decode(block)
        decoder.decode(b"", final=True)
    except UnicodeError:
        return False
    return True


class _Quotes(io.RawIOBase):
    """A file that counts the quotation marks read from it."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.quotes = file, 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        data = self.file.read(size)
        self.quotes += data.count(b'"')
        return data


def _header(source: CsvFile) -> _Header:
    """The column names, with the delimiter that finds most of them."""
    headers, unreadable = [], False
    for sign in source.delimiter or _DELIMITERS:
        records = csv.reader(source.lines(), delimiter=sign)
        try:
            fields = next(filter(None, records), None)
        except UnicodeError as error:
            raise DataError(f"{source.name}: {_complaint(error, records.line_num + 1)}") from error
        except csv.Error:
            unreadable = True  # with the wrong delimiter, the names of thousands of columns are one that is too long
            continue
        if fields is None:
            raise DataError(f"{source.name}: the file is empty")
        names = tuple(field.strip() or f"column{i}" for i, field in enumerate(fields, start=1))
        headers.append(_Header(names, sign, records.line_num))
    best = max(headers, key=lambda header: len(header.names), default=None)
    if best is None or (unreadable and len(best.names) == 1):
        raise DataError(f"{source.name}: {_complaint(csv.Error(), line=1)}")
    return best


def _fault(source: CsvFile, header: _Header) -> str | None:
    """What is wrong with the file and in which line, as far as a slower and stricter reader can tell."""
    records = csv.reader(source.lines(), delimiter=header.delimiter, strict=True)
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
        return "its text is not in this encoding; set another `encoding`, or save the file as UTF-8"
    return f'line {line:,} is too long, or has a quotation mark " that does not end a value; correct that line'
