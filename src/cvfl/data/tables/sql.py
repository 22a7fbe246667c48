"""Queries: read in a stream through SQLAlchemy."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import URL, Connection, NullPool, create_engine, make_url
from sqlalchemy.exc import DBAPIError, NoSuchModuleError, SQLAlchemyError

from cvfl.data.tables.kinds import Declared
from cvfl.data.tables.objects import VALUES_AT_A_TIME, spill_objects
from cvfl.data.tables.spill import Report, one_line
from cvfl.errors import DataError

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
                columns = list(result.keys())
                batches = result.yield_per(max(1, VALUES_AT_A_TIME // len(columns))).partitions()
                return spill_objects(columns, batches, name, to, report)
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
