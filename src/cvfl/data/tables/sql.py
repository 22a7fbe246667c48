"""Queries: read in a stream through SQLAlchemy, and written as text together with the kinds that the values had.

Values become text, in one spelling each, because the type of a column is known only at its end: a driver hands out
Python objects, the first thousands of them may be missing, and SQLite lets a column change its type from row to row.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from math import isnan
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import UUID

import pyarrow as pa
from sqlalchemy import URL, Connection, CursorResult, NullPool, create_engine, make_url
from sqlalchemy.exc import DBAPIError, NoSuchModuleError, SQLAlchemyError

from cvfl.data.tables.kinds import EXACT, Declared, Kind
from cvfl.data.tables.spill import Report, Spill, one_line
from cvfl.errors import DataError

_VALUES_AT_A_TIME = 50_000  # Python objects, of some 60 bytes each
_CONNECT_SECONDS = 10
_PACKAGES = {"psycopg": "'cvfl[postgres]'", "psycopg2": "psycopg2-binary", "MySQLdb": "mysqlclient"}
_VARIABLE = re.compile(r"\$\{(\w+)\}")


@dataclass(frozen=True)
class Database:
    """Where a query goes."""

    party: str
    url: URL

    @property
    def address(self) -> str:
        """The url without a password, and without options, which may hold one."""
        url = self.url
        shown = URL.create(url.get_backend_name(), url.username, None, url.host, url.port, url.database)
        return shown.render_as_string()

    def said(self, error: BaseException) -> str:
        """What the driver said, on one line and without a password."""
        said = error.orig if isinstance(error, DBAPIError) and error.orig else error.args[0] if error.args else error
        first, _, _ = str(said).strip().partition("\n")  # the lines below quote the query, or explain at length
        text = one_line(first)
        options = (value for key, value in self.url.query.items() if "pass" in key.lower())
        for secret in filter(None, (self.url.password, *options)):
            text = text.replace(str(secret), "***")
        return text


def database(party: str, url: str) -> Database:
    """Read a url. ${NAME} comes from the environment; PostgreSQL means psycopg 3 where no other driver is named."""
    try:
        parsed = make_url(_with_environment(party, url))
    except (SQLAlchemyError, ValueError):  # neither is shown: they may quote a part of a password
        raise DataError(
            f"{party}: the url cannot be read; write it as postgresql://user:password@host:5432/database "
            "(in a password, %40 for an @)"
        ) from None
    if parsed.drivername in ("postgres", "postgresql"):
        parsed = parsed.set(drivername="postgresql+psycopg")
    return Database(party, parsed)


def spill_query(source: Database, query: str, name: str, to: Path, report: Report | None) -> Declared:
    """Copy the result of a query into a Parquet file as text, and say of which kinds its columns were."""
    with _connected(source) as connection:
        try:
            with connection.exec_driver_sql(query) as result:
                if not result.returns_rows or not result.keys():
                    raise DataError(f"{name}: the query returns no columns; write a SELECT")
                return _spill(result, name, to, report)
        except SQLAlchemyError as error:
            raise DataError(f"{name}: {source.said(error)}; correct `query`") from error


def _with_environment(party: str, url: str) -> str:
    """The url with its variables filled in; a variable that stands for the password may hold any character."""
    for variable in _VARIABLE.findall(url):
        if variable not in os.environ:
            raise DataError(f"{party}: the url needs the environment variable {variable}, which is not set")
    url = re.sub(f"(?<=:){_VARIABLE.pattern}(?=@)", lambda found: quote(os.environ[found[1]], safe=""), url)
    return _VARIABLE.sub(lambda found: os.environ[found[1]], url)


@contextmanager
def _connected(source: Database) -> Iterator[Connection]:
    """A connection that streams, may not change anything, and is closed at the end."""
    url = source.url
    patient = url.get_backend_name() != "postgresql" or "connect_timeout" in url.query
    try:
        if url.get_backend_name() == "sqlite":
            _check_file(source)
        arguments = {} if patient else {"connect_timeout": _CONNECT_SECONDS}
        connection = create_engine(url, poolclass=NullPool, connect_args=arguments).connect()
    except NoSuchModuleError as error:
        raise DataError(f"{source.party}: {url.drivername} is not a database that SQLAlchemy knows") from error
    except ImportError as error:
        package = _PACKAGES.get(error.name or "", error.name or "its driver")
        raise DataError(f"{source.party}: {source.address} needs a driver: pip install {package}") from error
    except (SQLAlchemyError, TypeError, ValueError) as error:
        text = f"cannot connect to {source.address}: {source.said(error)}; check `url`, and that the server runs"
        raise DataError(f"{source.party}: {text}") from error
    with connection:
        if url.get_backend_name() == "sqlite":
            connection.exec_driver_sql("PRAGMA query_only = ON")
        # Without parameters a % in the query is a %, not the start of one.
        yield connection.execution_options(stream_results=True, no_parameters=True, postgresql_readonly=True)


def _check_file(source: Database) -> None:
    """SQLite makes an empty database of a file that is not there; a reader should hear of it instead."""
    path = source.url.database
    if path and path != ":memory:" and not path.startswith("file:") and not Path(path).is_file():
        raise DataError(f"{source.party}: {path} is not there, or is no file; check `url`")


def _spill(result: CursorResult[Any], name: str, to: Path, report: Report | None) -> Declared:
    columns = list(result.keys())
    seen: list[set[type]] = [set() for _ in columns]
    with Spill(name, to, columns, report) as spill:
        for rows in result.yield_per(max(1, _VALUES_AT_A_TIME // len(columns))).partitions():
            arrays = []
            for j, types in enumerate(seen):
                values = [row[j] for row in rows]
                met = set(map(type, values))
                spell = {kind: _SPELLINGS[_known(kind)] for kind in met}
                arrays.append(pa.array([spell[type(value)](value) for value in values], pa.string()))
                types.update(met)
            spill.add(pa.RecordBatch.from_arrays(arrays, schema=spill.schema))
    return _declared(dict(zip(columns, seen, strict=True)))


def _declared(columns: dict[str, set[type]]) -> Declared:
    """The kinds that follow from the types of the values; text and mixtures are for the table to find out."""
    kinds, refused = {}, {}
    for name, types in columns.items():
        known = {_known(kind) for kind in types} - {type(None)}
        if object in known:
            refused[name] = min(kind.__name__ for kind in types if _known(kind) is object)
        elif known and known <= {bool, int, float, Decimal}:
            kinds[name] = Kind.NUMBER
        elif known and known <= {date, datetime}:
            kinds[name] = Kind.DATE
    return Declared(kinds, refused)


def _known(kind: type) -> type:
    """The type with a spelling that this one is or comes from; `object` for what cannot be read."""
    return next(base for base in kind.__mro__ if base in _SPELLINGS)


def _float(value: float) -> str | None:
    return None if isnan(value) else str(int(value)) if value.is_integer() and abs(value) < EXACT else repr(value)


def _decimal(value: Decimal) -> str | None:
    if value.is_nan():
        return None
    whole = value.is_finite() and value == value.to_integral_value() and value.adjusted() < 50
    return str(int(value)) if whole else str(value)


_SPELLINGS: dict[type, Callable[[Any], str | None]] = {
    type(None): lambda _: None,
    str: str,
    UUID: str,
    bool: lambda value: str(int(value)),
    int: str,
    float: _float,
    Decimal: _decimal,
    date: date.isoformat,
    datetime: datetime.isoformat,
    object: lambda _: "",
}
