"""Where a party's table is: a CSV file, a Parquet file, or a query to a database."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from cvfl.data.tables.csvfile import spill_csv
from cvfl.data.tables.kinds import DEFAULT_MISSING, Declared
from cvfl.data.tables.spellings import Type
from cvfl.data.tables.spill import Report
from cvfl.data.tables.table import Table
from cvfl.errors import ConfigError, DataError, suggest
from cvfl.scratch import Scratch

_FOREIGN = {
    b"PK\x03\x04": "a zip archive or a spreadsheet; save the table as CSV",
    b"\x1f\x8b": "compressed; unpack it",
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
    missing: tuple[str, ...] = DEFAULT_MISSING
    types: Mapping[str, Type] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.path is None) == (self.url is None) or (self.url is None) != (self.query is None):
            raise ConfigError(f"{self.party}: give a file, or a url together with a query")
        if self.delimiter is not None and (len(self.delimiter) != 1 or self.delimiter in '"\r\n'):
            raise ConfigError(f"{self.party}: delimiter must be a single sign, such as ;, not {self.delimiter!r}")


def open_table(source: Source, on_progress: Report | None = None) -> Table:
    """Open a table; close it, or use it in a `with` block, so that a temporary copy is removed.

    While a CSV file or a query's result is copied, `on_progress` hears the table's name and the rows so far.
    """
    resources = ExitStack()
    try:
        if source.path is None:
            name, path, declared = _copy_of_query(source, resources, on_progress)
        else:
            name, path, declared = f"{source.party}: {source.path.name}", source.path, None
            if not _is_parquet(source.path, source.party):
                path = _temporary(resources)
                spill_csv(source.path, name, source.delimiter, path, on_progress)
        return Table(name, path, missing=source.missing, types=source.types, declared=declared, resources=resources)
    except BaseException:
        resources.close()
        raise


def _copy_of_query(source: Source, resources: ExitStack, report: Report | None) -> tuple[str, Path, Declared]:
    from cvfl.data.tables.sql import database, spill_query  # noqa: PLC0415 - SQLAlchemy takes 0.3 s to import

    place = database(source.party, source.url or "")
    name, path = f"{source.party}: query on {place.address}", _temporary(resources)
    return name, path, spill_query(place, source.query or "", name, path, report)


def _temporary(resources: ExitStack) -> Path:
    """A file in a folder that only this user can enter, and that goes when the table is closed."""
    return resources.enter_context(Scratch()).path / "table.parquet"


def _is_parquet(path: Path, party: str) -> bool:
    """By the file's name or its first bytes; refuses what is no table."""
    try:
        with path.open("rb") as file:
            start = file.read(8)
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"{party}: {path} is not there{_neighbours(path)}") from None
    except OSError as error:
        raise DataError(f"{party}: {path} cannot be read ({error.strerror})") from error
    for magic, what in _FOREIGN.items():
        if start.startswith(magic):
            raise DataError(f"{party}: {path.name}: the file is {what}")
    return start.startswith(b"PAR1") or path.suffix.lower() in (".parquet", ".pq")


def _neighbours(path: Path) -> str:
    """The file in the same folder that may have been meant."""
    if not path.parent.is_dir():
        return f": there is no folder {path.parent}"
    hint = suggest(path.name, (file.name for file in path.parent.iterdir()))
    return hint if "did you mean" in hint else ""
