"""Where a party's table is: a CSV, Parquet or Excel file, or a query to a database."""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from cvfl.data.tables.csvfile import spill_csv
from cvfl.data.tables.excel import spill_excel
from cvfl.data.tables.kinds import DEFAULT_MISSING, Declared
from cvfl.data.tables.spellings import Type
from cvfl.data.tables.spill import Report
from cvfl.data.tables.table import Table
from cvfl.errors import ConfigError, DataError, suggest
from cvfl.scratch import Scratch

_FOREIGN = {
    b"PK\x03\x04": "a zip archive; unpack it, or name it .xlsx if it is a spreadsheet",
    b"\xd0\xcf\x11\xe0": "an old Excel file (.xls); save it as .xlsx or CSV",
    b"SQLite": "an SQLite database; set `url` to sqlite:///… and write a `query`",
}


@dataclass(frozen=True)
class Source:
    """What a party says of its table: a file, or a url and a query; which words mean missing, and types that it knows.

    A url may hold ${NAME}, which is taken from the environment, so that no password need be in a file.
    """

    party: str
    path: Path | None = None
    url: str | None = field(default=None, repr=False)  # it may hold a password
    query: str | None = None
    delimiter: str | None = None
    encoding: str | None = None
    missing: tuple[str, ...] = DEFAULT_MISSING
    types: Mapping[str, Type] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.path is None) == (self.url is None) or (self.url is None) != (self.query is None):
            raise ConfigError(f"{self.party}: give a file, or a url together with a query")
        if self.delimiter is not None and (len(self.delimiter) != 1 or self.delimiter in '"\r\n'):
            raise ConfigError(f"{self.party}: delimiter must be a single sign, such as ;, not {self.delimiter!r}")
        try:
            codecs.lookup(self.encoding or "utf-8")
        except LookupError:
            raise ConfigError(f"{self.party}: encoding {self.encoding!r} is unknown; try latin-1 or cp1250") from None


def open_table(source: Source, on_progress: Report | None = None) -> Table:
    """Open a table; close it, or use it in a `with` block, so that a temporary copy is removed.

    While a file or a query's result is copied, `on_progress` hears the table's name and the rows so far.
    """
    resources = ExitStack()
    try:
        copy = _copy_of_query if source.path is None else _copy_of_file
        name, path, declared = copy(source, resources, on_progress)
        return Table(name, path, missing=source.missing, types=source.types, declared=declared, resources=resources)
    except BaseException:
        resources.close()
        raise


def _copy_of_file(source: Source, resources: ExitStack, report: Report | None) -> tuple[str, Path, Declared]:
    """The name of the table, a Parquet file with it, and what was found out about it; Parquet is read in place."""
    assert source.path is not None
    name, form = f"{source.party}: {source.path.name}", _form(source.path, source.party)
    if form == "Parquet":
        return name, source.path, Declared()
    path = _temporary(resources)
    if form == "Excel":
        return name, path, spill_excel(source.path, name, path, report)
    return name, path, spill_csv(source.path, name, source.delimiter, source.encoding, path, report)


def _copy_of_query(source: Source, resources: ExitStack, report: Report | None) -> tuple[str, Path, Declared]:
    from cvfl.data.tables.sql import database, spill_query  # noqa: PLC0415 - SQLAlchemy takes 0.3 s to import

    place = database(source.party, source.url or "")
    name, path = f"{source.party}: query on {place.address}", _temporary(resources)
    return name, path, spill_query(place, source.query or "", name, path, report)


def _temporary(resources: ExitStack) -> Path:
    """A file in a folder that only this user can enter, and that goes when the table is closed."""
    return resources.enter_context(Scratch()).path / "table.parquet"


def _form(path: Path, party: str) -> Literal["Parquet", "Excel", "CSV"]:
    """By the file's name or its first bytes; refuses what is no table."""
    try:
        with path.open("rb") as file:
            start = file.read(8)
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"{party}: {path} is not there{_neighbours(path)}") from None
    except OSError as error:
        raise DataError(f"{party}: {path} cannot be read ({error.strerror})") from error
    if path.suffix.lower() in (".xlsx", ".xlsm"):
        return "Excel"
    for magic, what in _FOREIGN.items():
        if start.startswith(magic):
            raise DataError(f"{party}: {path.name}: the file is {what}")
    return "Parquet" if start.startswith(b"PAR1") or path.suffix.lower() in (".parquet", ".pq") else "CSV"


def _neighbours(path: Path) -> str:
    """The file in the same folder that may have been meant."""
    if not path.parent.is_dir():
        return f": there is no folder {path.parent}"
    hint = suggest(path.name, (file.name for file in path.parent.iterdir()))
    return hint if "did you mean" in hint else ""
