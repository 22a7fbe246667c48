from __future__ import annotations

import sqlite3
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest

import postgres
from cvfl.data.tables.ids import read_ids
from cvfl.data.tables.kinds import Kind
from cvfl.data.tables.sources import Source, open_table
from cvfl.data.tables.table import Table
from cvfl.errors import DataError

server = postgres.server
SECRET = "s3cr3t"


def ids_of(table: Table, name: str) -> list[str]:
    """The ids in one column."""
    return list(read_ids(table, [name]).rows)


def refusal(call: Callable[[], object]) -> str:
    """The single line of the DataError that a call ends in."""
    with pytest.raises(DataError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    assert "sqlalche.me" not in message
    assert SECRET not in message
    return message


def refused(url: str, query: str = "SELECT 1 AS a") -> str:
    return refusal(lambda: open_table(Source("bank", url=url, query=query)))


@pytest.fixture
def lite(tmp_path: Path) -> Callable[..., str]:
    """Makes an SQLite database by statements and returns its url."""

    def made(*statements: str) -> str:
        with sqlite3.connect(tmp_path / "bank.db") as connection:
            for statement in statements:
                connection.execute(statement)
        connection.close()
        return f"sqlite:///{tmp_path / 'bank.db'}"

    return made


def test_sqlite_is_read_with_the_kinds_of_its_values(lite: Callable[..., str], tmp_path: Path) -> None:
    url = lite(
        "CREATE TABLE t (id INTEGER, x REAL, name TEXT, day TEXT, code TEXT, any, picture BLOB)",
        "INSERT INTO t VALUES (1, 0.5, ' ada ', '2020-01-31', '1.5', 7, x'ff'), (2, NULL, '', NULL, 'NA', 'b', NULL)",
        "INSERT INTO t VALUES (3, 2.0, 'ada', '2020-02-01', '3', 7.0, NULL)",
    )
    with open_table(Source("bank", url=url, query="SELECT * FROM t ORDER BY id")) as table:
        assert table.name == f"bank: query on {url}"
        assert (table.rows, table.columns) == (3, ("id", "x", "name", "day", "code", "any", "picture"))
        kinds = ["number", "number", "category", "date", "number", "category"]
        assert [table.kind(name) for name in table.columns[:-1]] == kinds
        np.testing.assert_array_equal(table.numbers("x"), [0.5, np.nan, 2])
        np.testing.assert_array_equal(table.numbers("code"), [1.5, np.nan, 3])
        assert table.categories("name").codes.tolist() == [0, -1, 0]
        assert table.categories("any").values == ("7", "b")
        assert ids_of(table, "id") == ["1", "2", "3"]
        assert "column 'picture' is of type bytes, which cannot be used; exclude it" in refusal(
            lambda: table.kind("picture")
        )


def test_told_types_and_missing_words_hold_for_queries(lite: Callable[..., str]) -> None:
    url = lite("CREATE TABLE t (zip INTEGER, x REAL)", "INSERT INTO t VALUES (1010, -9.0), (8010, 3.5)")
    source = Source("bank", url=url, query="SELECT * FROM t", missing=("-9",), types={"zip": Kind.CATEGORY})
    with open_table(source) as table:
        assert (table.kind("zip"), table.categories("zip").values) == (Kind.CATEGORY, ("1010", "8010"))
        np.testing.assert_array_equal(table.numbers("x"), [np.nan, 3.5])


def test_values_that_come_late_decide(lite: Callable[..., str]) -> None:
    late = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 150000) SELECT i, "
    late += "CASE WHEN i = 150000 THEN 0.25 END AS late, CASE WHEN i < 150000 THEN i ELSE 'x' END AS mixed, "
    late += "NULL AS never FROM n"
    with open_table(Source("bank", url=lite(), query=late)) as table:
        assert [table.kind(name) for name in ("i", "late", "never")] == ["number"] * 3
        assert table.numbers("late")[-2:].tolist()[1] == 0.25
        assert np.isnan(table.numbers("late")[:-1]).all()
        assert "mixes numbers and text: 'x' in row 150,000; mend it" in refusal(lambda: table.kind("mixed"))


def test_a_query_cannot_change_a_table(lite: Callable[..., str], server: postgres.Server) -> None:
    url = lite("CREATE TABLE t (a)", "INSERT INTO t VALUES (1)")
    assert "readonly" in refused(url, "DELETE FROM t RETURNING a")
    assert "readonly" in refused(url, "CREATE TABLE u (a)")
    server.execute("CREATE TABLE kept (a int)", "INSERT INTO kept VALUES (1)", "CREATE SEQUENCE turns")
    assert "syntax error" in refused(server.url(), "DELETE FROM kept RETURNING a")
    assert "cannot execute nextval() in a read-only transaction" in refused(server.url(), "SELECT nextval('turns')")


def test_signs_that_drivers_read_as_parameters_are_left_alone(
    lite: Callable[..., str], server: postgres.Server
) -> None:
    for url in (lite(), server.url()):
        with open_table(Source("bank", url=url, query="SELECT 7 % 4 AS a, ':x %s ?' AS b")) as table:
            assert table.numbers("a").tolist() == [3]
            assert table.categories("b").values == (":x %s ?",)


def test_postgresql_types(server: postgres.Server) -> None:
    server.execute(
        "CREATE TABLE people (id bigint, income numeric(12, 2), score real, member boolean, born date,"
        " seen timestamptz, sector char(5), pass uuid, tags text[], extra jsonb, big numeric)",
        "INSERT INTO people VALUES (9007199254740993, 1200.50, 0.1, true, '1969-12-31', '2020-01-01 00:30+02', 'a',"
        " '00000000-0000-0000-0000-000000000007', '{x}', '{}', 12345678901234567890)",
        "INSERT INTO people (id, income, score, sector, big) VALUES (7, 7.00, 'NaN', 'b', 2)",
    )
    with open_table(Source("bank", url=server.url(), query="SELECT * FROM people ORDER BY id DESC")) as table:
        kinds = ["number"] * 4 + ["date"] * 2 + ["category"] * 2
        assert [table.kind(name) for name in table.columns[:8]] == kinds
        assert ids_of(table, "id") == ["9007199254740993", "7"]
        assert ids_of(table, "income") == ["1200.50", "7"]
        assert ids_of(table, "big") == ["12345678901234567890", "2"]
        np.testing.assert_array_equal(table.numbers("score"), [0.1, np.nan])
        np.testing.assert_array_equal(table.numbers("member"), [1, np.nan])
        assert table.dates("born").astype(str).tolist() == ["1969-12-31T00:00:00", "NaT"]
        assert table.dates("seen").astype(str).tolist() == ["2019-12-31T22:30:00", "NaT"]
        assert table.categories("sector").values == ("a", "b")
        assert table.categories("pass").values == ("00000000-0000-0000-0000-000000000007",)
        assert "column 'tags' is of type list" in refusal(lambda: table.numbers("tags"))
        assert "column 'extra' is of type dict" in refusal(lambda: ids_of(table, "extra"))


def test_postgresql_streams_and_reports(server: postgres.Server) -> None:
    heard: list[int] = []
    query = "SELECT i, repeat('x', 1000) AS filling, (SELECT count(*) FROM pg_cursors WHERE name <> '') AS cursors"
    source = Source("bank", url=server.url(), query=f"{query} FROM generate_series(1, 80000) AS i")
    with open_table(source, lambda _, rows: heard.append(rows)) as table:
        assert table.rows == heard[-1] == 80_000
        assert heard == sorted(set(heard))
        assert len(heard) > 2
        assert set(table.numbers("cursors")) == {1}  # a cursor on the server hands the rows out piece by piece
        np.testing.assert_array_equal(table.numbers("i"), np.arange(1, 80_001))


def test_an_interrupted_query_leaves_nothing_behind(
    server: postgres.Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class StopError(Exception):
        pass

    def stop(name: str, rows: int) -> None:
        assert list(tmp_path.iterdir())
        raise StopError

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(StopError):
        open_table(Source("bank", url=server.url(), query="SELECT i FROM generate_series(1, 1000000) AS i"), stop)
    assert "division by zero" in refused(server.url(), "SELECT 1 / (i - 150000) FROM generate_series(1, 200000) AS i")
    assert not list(tmp_path.iterdir())


def test_a_password_comes_from_the_url_or_the_environment(
    server: postgres.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BANK_PASSWORD", postgres.PASSWORD)
    monkeypatch.setenv("BANK_URL", server.url(postgres.READER, postgres.PASSWORD))
    by_variable = f"postgres://{postgres.READER}:${{BANK_PASSWORD}}@/postgres?host={server.folder}"
    for url in (server.url(postgres.READER, postgres.PASSWORD), by_variable, "${BANK_URL}"):
        with open_table(Source("bank", url=url, query="SELECT current_user::text AS who")) as table:
            assert table.categories("who").values == (postgres.READER,)
            assert table.name == f"bank: query on postgresql://{postgres.READER}@/postgres"
    monkeypatch.delenv("BANK_PASSWORD")
    message = refused(by_variable)
    assert message == "bank: the url needs the environment variable BANK_PASSWORD, which is not set"


def test_connections_that_fail_say_why_and_hide_the_password(server: postgres.Server, tmp_path: Path) -> None:
    message = refused(server.url(postgres.READER, SECRET))
    assert message.startswith(f"bank: cannot connect to postgresql://{postgres.READER}@/postgres: ")
    assert message.endswith(
        f'password authentication failed for user "{postgres.READER}"; check `url`, and that the server runs'
    )
    message = refused(f"postgresql://me:{SECRET}@127.0.0.1:1/shop")
    assert message.startswith("bank: cannot connect to postgresql://me@127.0.0.1:1/shop: ")
    assert "Connection refused" in message
    assert "No such file" in refused(f"postgresql://me@/shop?host={tmp_path}&password={SECRET}&connect_timeout=2")
    message = refused(f"{server.url()}&password={SECRET}&sslmode={SECRET}")
    assert 'invalid sslmode value: "***"' in message


def test_queries_that_fail_say_why(server: postgres.Server, lite: Callable[..., str]) -> None:
    place = f"bank: query on postgresql://{postgres.ADMIN}@/postgres: "
    assert refused(server.url(), "SELEC 1") == f'{place}syntax error at or near "SELEC"; correct `query`'
    assert refused(server.url(), "TABLE nothing") == f'{place}relation "nothing" does not exist; correct `query`'
    assert refused(server.url(), "SELECT 1 AS a, 2 AS a") == f"{place}two columns are named 'a'; rename one"
    assert refused(server.url(), "SELECT 1 AS a WHERE false") == f"{place}there are no rows"
    assert refused(server.url(), "SELECT") == f"{place}the query returns no columns; write a SELECT"
    assert "date too large" in refused(server.url(), "SELECT 'infinity'::date AS a")
    url = lite()
    assert refused(url, 'SELECT 1 AS "", 2 AS ""') == f"bank: query on {url}: two columns are named ''; rename one"
    assert refused(url, "SELECT * FROM t") == f"bank: query on {url}: no such table: t; correct `query`"
    assert refused(url, "") == f"bank: query on {url}: the query returns no columns; write a SELECT"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nonsense", "bank: the url cannot be read; write it as postgresql://user:password@host:5432/database"),
        (f"postgresql://me@host:{SECRET}/db", "bank: the url cannot be read"),
        ("whatever://host/db", "bank: whatever is not a database that SQLAlchemy knows"),
        ("postgresql+whatever://host/db", "bank: postgresql+whatever is not a database that SQLAlchemy knows"),
    ],
)
def test_urls_that_name_no_database(url: str, message: str) -> None:
    assert message in refused(url)


@pytest.mark.parametrize(
    ("url", "module", "package"),
    [
        ("postgresql://me@host/db", "psycopg", "'cvfl[postgres]'"),
        ("postgresql+psycopg2://me@host/db", "psycopg2", "psycopg2-binary"),
        ("mysql://me@host/db", "MySQLdb", "mysqlclient"),
        ("oracle://me@host/db", "oracledb", "oracledb"),
    ],
)
def test_a_missing_driver_is_named_by_its_package(
    url: str, module: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    shown = url.replace("+psycopg2", "")
    assert refused(url) == f"bank: {shown} needs a driver: pip install {package}"


def test_sqlite_makes_no_file_for_a_wrong_name(tmp_path: Path) -> None:
    assert "is not there, or is no file; check `url`" in refused(f"sqlite:///{tmp_path / 'missing.db'}")
    assert not list(tmp_path.iterdir())
    (tmp_path / "text.db").write_text("this is no database, but it is long enough to be one", encoding="utf-8")
    assert "file is not a database" in refused(f"sqlite:///{tmp_path / 'text.db'}", "SELECT * FROM t")


def test_a_database_file_named_as_a_table_gets_advice(lite: Callable[..., str], tmp_path: Path) -> None:
    lite("CREATE TABLE t (a)")
    message = refusal(lambda: open_table(Source("bank", path=tmp_path / "bank.db")))
    assert message.startswith("bank: bank.db: the file is an SQLite database; set `url` to sqlite:///")


def test_a_source_does_not_show_its_url() -> None:
    assert SECRET not in repr(Source("bank", url=f"postgresql://me:{SECRET}@host/db", query="SELECT 1"))


def test_the_password_of_the_tests_needs_quoting() -> None:
    assert quote(postgres.PASSWORD, safe="") != postgres.PASSWORD
