from __future__ import annotations

import csv
import datetime
import gzip
import io
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cvfl.data.tables.describe import Column, describe
from cvfl.data.tables.ids import read_ids
from cvfl.data.tables.kinds import as_dates, as_numbers
from cvfl.data.tables.sources import Source, open_table
from cvfl.data.tables.spellings import Spelling
from cvfl.data.tables.table import Kind, Table
from cvfl.errors import ConfigError, DataError

ROOT = Path(__file__).parents[2]


@pytest.fixture
def from_csv(tmp_path: Path) -> Callable[..., Table]:
    """Writes a file `bank.csv` and opens it; what is still open at the end of the test is closed."""
    tables = []

    def opened(content: str | bytes, **options: object) -> Table:
        path = tmp_path / "bank.csv"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        tables.append(open_table(Source("bank", path=path, **options)))
        return tables[-1]

    yield opened
    for table in tables:
        table.close()


@pytest.fixture
def from_parquet(tmp_path: Path) -> Callable[..., Table]:
    """Writes a file `lab.parquet` and opens it."""
    tables = []

    def opened(columns: Mapping[str, pa.Array], **options: object) -> Table:
        path = tmp_path / "lab.parquet"
        pq.write_table(pa.table(dict(columns)), path)
        tables.append(open_table(Source("lab", path=path, **options)))
        return tables[-1]

    yield opened
    for table in tables:
        table.close()


def ids_of(table: Table, name: str) -> list[str]:
    """The ids in one column."""
    return list(read_ids(table, [name]).rows)


def refusal(call: Callable[[], object]) -> str:
    """The single line of the DataError that a call ends in."""
    with pytest.raises(DataError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_csv_columns_have_the_kind_of_all_their_values(from_csv: Callable[..., Table]) -> None:
    table = from_csv("id,age,city,since\n1,30,Graz,2020-01-31\n2,,Linz,2021-02-28\n3,41.5,,NA\n")
    assert (table.name, table.rows, table.columns) == ("bank: bank.csv", 3, ("id", "age", "city", "since"))
    assert [table.kind(name) for name in table.columns] == ["number", "number", "category", "date"]
    np.testing.assert_array_equal(table.numbers("age"), [30, np.nan, 41.5])
    codes, values = table.categories("city")
    assert (codes.tolist(), codes.dtype, values) == ([0, 1, -1], np.int32, ("Graz", "Linz"))
    assert table.dates("since").astype(str).tolist() == ["2020-01-31T00:00:00", "2021-02-28T00:00:00", "NaT"]


def test_a_fraction_after_a_hundred_thousand_whole_numbers_is_a_number(from_csv: Callable[..., Table]) -> None:
    table = from_csv("x\n" + "1\n" * 100_000 + "1.5\n")
    assert table.kind("x") is Kind.NUMBER
    assert table.numbers("x")[[0, -1]].tolist() == [1.0, 1.5]


def test_categories_of_several_batches_share_their_codes(from_csv: Callable[..., Table]) -> None:
    words = ["b", "a"] * 40_000 + ["c", "", "a"] * 40_000
    codes, values = from_csv("w,i\n" + "".join(f"{word},{i}\n" for i, word in enumerate(words))).categories("w")
    assert values == ("a", "b", "c")
    assert [values[code] if code >= 0 else "" for code in codes] == words


@pytest.mark.parametrize("sign", [",", ";", "\t", "|"])
def test_the_delimiter_is_found_in_the_header(from_csv: Callable[..., Table], sign: str) -> None:
    table = from_csv(f'"a, b;c"{sign}d\n1{sign}2\n')
    assert (table.columns, table.numbers("d").tolist()) == (("a, b;c", "d"), [2])


def test_thousands_of_columns(from_csv: Callable[..., Table]) -> None:
    names = [f"snp{i:06}" for i in range(20_000)]
    table = from_csv(";".join(names) + "\n" + ";".join(map(str, range(20_000))) + "\n")
    assert table.columns == tuple(names)
    assert table.numbers("snp019999").tolist() == [19999]


def test_a_given_delimiter_is_used(from_csv: Callable[..., Table]) -> None:
    assert from_csv("a,b:c\n1,2:3\n", delimiter=":").columns == ("a,b", "c")
    with pytest.raises(ConfigError, match="delimiter must be a single sign"):
        Source("bank", path=Path("x"), delimiter="::")


def test_byte_order_mark_carriage_returns_blanks_and_quoted_newlines(from_csv: Callable[..., Table]) -> None:
    table = from_csv('\ufeffid, note \r\n 7 ,"two\nlines"\r\n\r\n8 , plain \r\n')
    assert table.columns == ("id", "note")
    assert ids_of(table, "id") == ["7", "8"]
    assert table.categories("note").values == ("plain", "two\nlines")


@pytest.mark.parametrize("header", ['\n\n"a\nb",c\n', '"a\r\nb",c\r\n', '"a\nb",c\r', "a,b,c\r"])
def test_the_rows_begin_where_the_header_ends(from_csv: Callable[..., Table], header: str) -> None:
    end = "\r" if header.endswith("\r") else "\n"
    width = header.count(",") + 1
    table = from_csv(header + end.join([",".join("7" * width), ",".join("8" * width)]))
    assert (len(table.columns), table.numbers("c").tolist()) == (width, [7, 8])


def test_columns_without_a_name_are_numbered(from_csv: Callable[..., Table]) -> None:
    assert from_csv(",a\n1,2\n").columns == ("column1", "a")


def test_words_for_missing_are_the_users(from_csv: Callable[..., Table]) -> None:
    table = from_csv("x,y\n-999,unknown\n,a\n-999.0,?\n3,b\n", missing=("-999", "unknown"))
    np.testing.assert_array_equal(table.numbers("x"), [np.nan, np.nan, np.nan, 3])
    assert table.categories("y").values == ("?", "a", "b")


def test_a_column_of_numbers_knows_the_words_for_missing_too(from_parquet: Callable[..., Table]) -> None:
    table = from_parquet({"x": pa.array([1.5, -999, np.inf])}, missing=("-999", "inf"))
    np.testing.assert_array_equal(table.numbers("x"), [1.5, np.nan, np.nan])


def test_a_column_without_any_value_is_a_number(from_csv: Callable[..., Table]) -> None:
    table = from_csv("a,b\n1,\n2,NA\n")
    assert describe(table, "b") == Column("b", Kind.NUMBER, rows=2, missing=2, distinct=0, example="")
    assert describe(table, "b").missing_share == 1
    assert np.isnan(table.numbers("b")).all()
    assert np.isnat(table.dates("b")).all()
    assert table.categories("b").values == ()


def test_describe_counts_and_shows(from_csv: Callable[..., Table]) -> None:
    table = from_csv("n,c,d\n1,x,2020-01-01\n2.5,y,\n1.0,y,2020-01-01T06:00\n,z,2020-01-01\n3,w,2020-01-01\n")
    assert tuple(describe(table, name) for name in "dnc") == (
        Column("d", Kind.DATE, 5, missing=1, distinct=2, example="2020-01-01 to 2020-01-01T06:00:00"),
        Column("n", Kind.NUMBER, 5, missing=1, distinct=3, example="1 to 3"),
        Column("c", Kind.CATEGORY, 5, missing=0, distinct=4, example="y, w, x, …"),
    )


def test_long_values_are_shown_in_short(from_csv: Callable[..., Table]) -> None:
    table = from_csv('t,n\n"two\nlines",12345678\n' + "x" * 99 + ",0.1\n")
    assert [describe(table, name).example for name in "tn"] == [
        f"two lines, {'x' * 29}…",
        "0.1 to 1.234568e+07",
    ]


def test_a_little_text_among_numbers_is_a_mistake(from_csv: Callable[..., Table]) -> None:
    rows = ["1"] * 16 + ["abc"] + ["2"] * 60 + ["x", "y", "z"]
    table = from_csv("income,id\n" + "".join(f"{row},1\n" for row in rows))
    assert refusal(lambda: table.kind("income")) == (
        "bank: bank.csv: column 'income' mixes numbers and text: 'abc' in row 17 and 3 more; "
        'mend it, add it to `missing` or set types.income = "category"'
    )
    rows[20:28] = ["text"] * 8
    assert from_csv("income,id\n" + "".join(f"{row},1\n" for row in rows)).kind("income") is Kind.CATEGORY


def test_the_mistake_names_the_row_behind_the_first_batch(from_csv: Callable[..., Table]) -> None:
    table = from_csv('"the income"\n' + "1\n" * 99_999 + "n/k\n" + "1\n" * 5)
    assert "'n/k' in row 100,000; mend it, add" in refusal(lambda: table.kind("the income"))
    assert refusal(lambda: table.kind("the income")).endswith('set types."the income" = "category"')


def test_told_types_win(from_csv: Callable[..., Table]) -> None:
    types = {"zip": Kind.CATEGORY, "x": Kind.NUMBER, "d": Kind.DATE}
    table = from_csv("zip,x,d\n1010,a,2020-13-01\n8010,1,2020-01-01\n", types=types)
    assert table.kind("zip") is Kind.CATEGORY
    assert table.categories("zip").values == ("1010", "8010")
    assert "column 'x' cannot be read as numbers: 'a' in row 1; mend it, add" in refusal(lambda: table.numbers("x"))
    assert "as dates such as 2024-02-29: '2020-13-01' in row 1;" in refusal(lambda: table.dates("d"))
    message = refusal(lambda: from_csv("income\n1\n", types={"incomes": Kind.NUMBER}))
    assert message == "bank: bank.csv: column 'incomes' in `types` is not there; did you mean 'income'?"


@pytest.mark.parametrize(
    ("values", "type", "read"),
    [
        (["1,5", "2", "-0,25"], "1.234,5", [1.5, 2, -0.25]),
        (["1.234,5", "1.234.567", "3"], "1.234,5", [1234.5, 1234567, 3]),
        (["1,234.5", "12", ""], "1,234.5", [1234.5, 12, np.nan]),
        (["1 234,5", "2 345", "3"], "1.234,5", [1234.5, 2345, 3]),
        (["1'234.5", "1\u00a0234.5", "3"], "1,234.5", [1234.5, 1234.5, 3]),
        (["12%", "3.5 %", "0%"], "1,234.5", [12, 3.5, 0]),
        (["12,5%", "", "0%"], "1.234,5", [12.5, np.nan, 0]),
        (["$29,500.5", "-$1,200", "$-3", "7"], "1,234.5", [29500.5, -1200, -3, 7]),
        (["5,99 €", "1.234,00€", "€ 3"], "1.234,5", [5.99, 1234, 3]),
    ],
)
def test_numbers_as_people_write_them(
    from_csv: Callable[..., Table], values: list[str], type: str, read: list[float]
) -> None:
    table = from_csv("x;y\n" + "".join(f"{value};1\n" for value in values))
    assert table.type("x") == type
    assert table.kind("x") is Kind.NUMBER
    np.testing.assert_array_equal(table.numbers("x"), read)
    assert table.notes == (f"bank: bank.csv: numbers written as {type} in x",)


@pytest.mark.parametrize(
    ("values", "type", "read"),
    [
        (["31.12.2024", "1.2.2024"], "d/m/y", ["2024-12-31", "2024-02-01"]),
        (["31/12/2024 9:05", "01/02/2024 23:59:59"], "d/m/y", ["2024-12-31T09:05", "2024-02-01T23:59:59"]),
        (["12/31/2024", "1/2/2024"], "m/d/y", ["2024-12-31", "2024-01-02"]),
        (["2024/2/29", "2024/12/01"], "y/m/d", ["2024-02-29", "2024-12-01"]),
        (["09 Mar 2020", "31-DEC-2024", "1. June 1999"], "d mon y", ["2020-03-09", "2024-12-31", "1999-06-01"]),
        (["Sept 9, 2020", "May 31, 2024 9:05"], "d mon y", ["2020-09-09", "2024-05-31T09:05"]),
        (["09MAR20", "9mar45"], "d mon y", ["2020-03-09", "1945-03-09"]),
        (["20200309", "19991231", "20240229"], "yyyymmdd", ["2020-03-09", "1999-12-31", "2024-02-29"]),
        (["09.03.20", "31.12.29", "01.02.30"], "dd.mm.yy", ["2020-03-09", "2029-12-31", "1930-02-01"]),
    ],
)
def test_dates_as_people_write_them(
    from_csv: Callable[..., Table], values: list[str], type: str, read: list[str]
) -> None:
    table = from_csv("d;x\n" + "".join(f"{value};1\n" for value in [*values, "NA"]))
    assert table.type("d") == type
    assert table.kind("d") is Kind.DATE
    np.testing.assert_array_equal(table.dates("d"), np.array([*read, "NaT"], "datetime64[s]"))


@pytest.mark.parametrize("values", [["20200309", "20200230"], ["18991231"], ["20200309", "202003091"], ["20200309.5"]])
def test_numbers_that_are_not_all_days_are_numbers(from_csv: Callable[..., Table], values: list[str]) -> None:
    assert from_csv("d\n" + "\n".join(values) + "\n").type("d") is Kind.NUMBER


def test_whole_numbers_that_are_all_days_are_said_and_can_be_told(
    from_csv: Callable[..., Table], from_parquet: Callable[..., Table]
) -> None:
    days, content = [20200309, None, 19991231], "d,x\n20200309,1\n,1\n19991231,1\n"
    for table in (from_csv(content), from_parquet({"d": pa.array(days, pa.int32())})):
        assert table.dates("d").astype("datetime64[D]").astype(str).tolist() == ["2020-03-09", "NaT", "1999-12-31"]
        assert table.notes[-1].endswith(
            'd can be read as yyyymmdd and as number; it is read as the first, else set types.d = "number"'
        )
        assert table.numbers("d", Kind.NUMBER).tolist()[::2] == [20200309, 19991231]  # as an earlier run did
    assert from_csv(content, types={"d": Kind.NUMBER}).type("d") is Kind.NUMBER


def test_what_can_be_read_in_two_ways_is_said_and_can_be_told(from_csv: Callable[..., Table]) -> None:
    content = "d;x\n1/2/2024;1,234\n3/4/2024;5\n"
    table = from_csv(content)
    assert table.dates("d").astype("datetime64[D]").astype(str).tolist() == ["2024-02-01", "2024-04-03"]
    assert table.numbers("x").tolist() == [1234, 5]
    assert table.notes[-2:] == (
        'bank: bank.csv: d can be read as d/m/y and as m/d/y; it is read as the first, else set types.d = "m/d/y"',
        "bank: bank.csv: x can be read as 1,234.5 and as 1.234,5; it is read as the first, "
        'else set types.x = "1.234,5"',
    )
    told = from_csv(content, types={"d": Spelling.MONTH, "x": Spelling.COMMA})
    assert told.dates("d").astype("datetime64[D]").astype(str).tolist() == ["2024-01-02", "2024-03-04"]
    assert told.numbers("x").tolist() == [1.234, 5]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["1,5"] * 19 + ["soon"], "mixes numbers and text: 'soon' in row 20; mend it"),
        (["1.5"] * 19 + ["1,5"], "mixes numbers and text: '1,5' in row 20; mend it"),
        (["31.12.2024"] * 19 + ["soon"], "mixes dates and text: 'soon' in row 20; mend it"),
        (["2024-12-31"] * 19 + ["soon"], "mixes dates and text: 'soon' in row 20; mend it"),
        (["$3"] * 19 + ["soon"], "mixes numbers and text: 'soon' in row 20; mend it"),
        (["$3", "3 €"], "mixes numbers in $ and €; mend it"),
        (["12%", "3"], "mixes numbers with and without a percent sign: '3' in row 2; mend it"),
    ],
)
def test_a_column_is_written_in_one_way(from_csv: Callable[..., Table], values: list[str], message: str) -> None:
    table = from_csv("x;y\n" + "".join(f"{value};1\n" for value in values))
    assert message in refusal(lambda: table.kind("x"))


@pytest.mark.parametrize(
    "value",
    [
        "31.02.2024",
        "1,2,3",
        "1.2.3",
        "12:30",
        "007 123",
        "1.2.24",
        "5,",
        "%",
        "$",
        "+-5",
        "32 Mar 2020",
        "9 Maybe 2020",
        "31.02.24",
        "75 kg",
        "20200230x",
    ],
)
def test_what_only_looks_like_a_number_or_a_date_is_a_category(from_csv: Callable[..., Table], value: str) -> None:
    table = from_csv(f"x;y\n{value};1\nother;2\n{value};3\n")
    assert table.kind("x") is Kind.CATEGORY
    assert not table.notes


def test_typed_columns_are_read_by_their_type(from_parquet: Callable[..., Table]) -> None:
    moment = datetime.datetime(2020, 1, 1, 12, tzinfo=datetime.timezone(datetime.timedelta(hours=2)))
    table = from_parquet(
        {
            "flag": pa.array([True, None, False]),
            "count": pa.array([1, None, 3], pa.uint8()),
            "price": pa.array([Decimal("1.50"), None, Decimal("7.00")]),
            "half": pa.array([1.5, None, 7.0], pa.float16()),
            "day": pa.array([datetime.date(2020, 2, 29), None, datetime.date(1969, 12, 31)]),
            "moment": pa.array([moment, None, moment], pa.timestamp("ns", "Europe/Vienna")),
            "class": pa.array(["b", None, "a"]).dictionary_encode(),
            "digits": pa.array(["1", " 2", "NA"], pa.large_string()),
            "none": pa.nulls(3),
        }
    )
    kinds = ["number"] * 4 + ["date"] * 2 + ["category", "number", "number"]
    assert [table.kind(name) for name in table.columns] == kinds
    np.testing.assert_array_equal(table.numbers("flag"), [1, np.nan, 0])
    np.testing.assert_array_equal(table.numbers("count"), [1, np.nan, 3])
    np.testing.assert_array_equal(table.numbers("price"), [1.5, np.nan, 7])
    np.testing.assert_array_equal(table.numbers("digits"), [1, 2, np.nan])
    assert table.dates("day").astype(str).tolist() == ["2020-02-29T00:00:00", "NaT", "1969-12-31T00:00:00"]
    assert table.dates("moment")[0] == np.datetime64("2020-01-01T10:00:00")
    assert [list(table.categories(name).values) for name in ("class", "price", "half", "flag", "count")] == [
        ["a", "b"],
        ["1.50", "7"],
        ["1.5", "7"],
        ["0", "1"],
        ["1", "3"],
    ]
    assert np.isnat(table.dates("none")).all()
    assert refusal(lambda: table.numbers("day")) == (
        "lab: lab.parquet: column 'day' is of type date32[day] and cannot be read as numbers; set types.day = \"date\""
    )
    assert "cannot be read as dates" in refusal(lambda: table.dates("count"))


def test_nested_columns_are_refused_only_when_asked_for(from_parquet: Callable[..., Table]) -> None:
    table = from_parquet({"a": pa.array([1, 2]), "l": pa.array([[1], [2]]), "s": pa.array([{"x": 1}, {"x": 2}])})
    assert table.numbers("a").tolist() == [1, 2]
    assert table.select(["*"], ["l"]) == ("a", "s")
    for call in (
        table.kind,
        table.numbers,
        table.categories,
        lambda name: ids_of(table, name),
        lambda name: describe(table, name),
    ):
        assert "column 'l' is of type list<element: int64>, which cannot be used; exclude it" in refusal(
            lambda call=call: call("l")
        )


def test_infinite_values_are_not_numbers(from_parquet: Callable[..., Table], from_csv: Callable[..., Table]) -> None:
    table = from_parquet({"x": pa.array([1.0, -np.inf, np.inf])})
    assert "column 'x' cannot be read as numbers: '-inf' in row 2 and 1 more" in refusal(lambda: table.numbers("x"))
    table = from_csv("x\n" + "1\n" * 20 + "inf\n1e999\n")
    assert "mixes numbers and text: 'inf' in row 21 and 1 more" in refusal(lambda: table.kind("x"))


def test_ids_have_one_spelling(from_csv: Callable[..., Table], from_parquet: Callable[..., Table]) -> None:
    table = from_csv("plain,zeros,floats,mixed\n7, 007,7.0,7.0\n12,012,-12.0,7.10\n")
    assert [ids_of(table, name) for name in table.columns] == [
        ["7", "12"],
        ["007", "012"],
        ["7", "-12"],
        ["7.0", "7.10"],
    ]
    typed = from_parquet(
        {
            "int": pa.array([7, -12]),
            "float": pa.array([7.0, 4e15]),
            "part": pa.array([7.0, 0.5]),
            "decimal": pa.array([Decimal("7.00"), Decimal("12.00")]),
            "text": pa.array(["7", "a"]),
        }
    )
    expected = [["7", "-12"], ["7", "4000000000000000"], ["7", "0.5"], ["7", "12"], ["7", "a"]]
    assert [ids_of(typed, name) for name in typed.columns] == expected


def test_an_id_is_the_same_however_its_letters_are_written(from_csv: Callable[..., Table]) -> None:
    composed, decomposed = "Ren\u00e9", "Rene\u0301"
    assert ids_of(from_csv(f"ID,x\n{decomposed},1\nb,2\n"), "ID") == [composed, "b"]
    assert "rows 1 and 2" in refusal(lambda: ids_of(from_csv(f"ID,x\n{decomposed},1\n{composed},2\n"), "ID"))


def test_repeated_and_missing_ids_are_refused(from_csv: Callable[..., Table]) -> None:
    table = from_csv("ID,x\n5,1\n4711,1\n9,1\n4711,1\n9,2\n9,2\n")
    assert refusal(lambda: ids_of(table, "ID")) == (
        "bank: bank.csv: 2 of 3 ids in column 'ID' appear twice or more (first: rows 2 and 4); keep one row each, "
        'or set duplicates = "first" or "last" for this party'
    )
    table = from_csv("ID,x\n5,1\n,1\nNA,1\n")
    assert refusal(lambda: ids_of(table, "ID")) == (
        "bank: bank.csv: 2 of 3 rows have no id in column 'ID' (first: row 2); fill them in or leave these rows out"
    )
    assert len(ids_of(from_csv("ID,x\n" + "".join(f"{i},1\n" for i in range(100_000))), "ID")) == 100_000


def test_features_are_names_and_patterns(from_csv: Callable[..., Table]) -> None:
    table = from_csv("id,lab_b,lab_a,age,x[1],label\n1,2,3,4,5,6\n")
    assert table.select(["age", "lab_*"]) == ("age", "lab_b", "lab_a")
    assert table.select(["*"], ["id", "label"]) == ("lab_b", "lab_a", "age", "x[1]")
    assert table.select(["x[1]", "x*"], ["l*"]) == ("x[1]",)
    assert table.select([]) == ()
    assert refusal(lambda: table.select(["aeg"])) == "bank: bank.csv: column 'aeg' is not there; did you mean 'age'?"
    assert "column 'ids' is not there; did you mean 'id'?" in refusal(lambda: table.select(["*"], ["ids"]))
    assert "no column fits the pattern 'LAB_*'" in refusal(lambda: table.select(["LAB_*"]))
    assert "column 'age' is named as a feature and also excluded" in refusal(lambda: table.select(["age"], ["a*"]))
    assert "no feature columns are left" in refusal(lambda: table.select(["lab_*"], ["l*"]))


def test_an_unknown_column_of_many_is_not_answered_with_all(from_csv: Callable[..., Table]) -> None:
    table = from_csv(",".join(f"x{i}" for i in range(1000)) + "\n" + ",".join("1" * 1000) + "\n")
    assert refusal(lambda: table.kind("qqq")) == "bank: bank.csv: column 'qqq' is not there among its 1,000 columns"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "bank: bank.csv: the file is empty"),
        (b"\n\n", "bank: bank.csv: the file is empty"),
        (b"a,b\n", "bank: bank.csv: there are no rows"),
        (b"a,b", "bank: bank.csv: there are no rows"),
        (b"a,b,a\n1,2,3\n", "bank: bank.csv: two columns are named 'a'; rename one"),
        (b"a,b\n1,2\n\n1,2,3\n", "line 4 has 3 fields, where the header has 2; correct that line"),
        (b'a,b\n1,"2\n2"\n3\n', "line 4 has 1 field, where the header has 2; correct that line"),
        (b"a,b\n" + b"1,2\n" * 500_000 + b"1\n", "line 500,002 has 1 field, where the header has 2"),
        (b'a,b\n1,2\n3,"x\n4,y\n5,z\n', 'line 3 is too long, or has a quotation mark " that does not end a value'),
        (b'a,b\n1,"' + b"x" * (5 << 20) + b"\n", 'line 2 is too long, or has a quotation mark "'),
        (b'a,"b\n' + b"x" * 200_000, 'line 1 is too long, or has a quotation mark " that does not end a value'),
        (b'a,"b\n1,2\n', 'line 1 is too long, or has a quotation mark " that does not end a value'),
        (b"PK\x03\x04 and so on", "the file is a zip archive; unpack it"),
        (b"\x1f\x8b and so on", "the packed file is damaged"),
        (b"\xd0\xcf\x11\xe0 and so on", "the file is an old Excel file (.xls); save it as .xlsx or CSV"),
    ],
)
def test_bad_csv_files_say_what_and_where(
    from_csv: Callable[..., Table], content: bytes, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest = tmp_path / "temporary"
    rest.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(rest))
    assert message in refusal(lambda: from_csv(content))
    assert not list(rest.iterdir())


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252", "latin-1"])
@pytest.mark.parametrize("packed", [False, True])
def test_text_is_read_however_it_is_written(from_csv: Callable[..., Table], encoding: str, packed: bool) -> None:
    content = "Größe,Ort\n1,Köln\n2,Zürich\n".encode(encoding)
    table = from_csv(gzip.compress(content) if packed else content)
    assert table.columns == ("Größe", "Ort")
    assert table.categories("Ort").values == ("Köln", "Zürich")
    odd = encoding in ("cp1252", "latin-1")
    assert table.notes == (
        ("bank: bank.csv: its text is not UTF-8 and is read as cp1252; if letters are wrong, set `encoding`",) * odd
    )


def test_an_encoding_can_be_told(from_csv: Callable[..., Table]) -> None:
    table = from_csv("a,b\n1,Łódź\n2,Köln\n".encode("cp1250"), encoding="cp1250")
    assert (table.categories("b").values, table.notes) == (("Köln", "Łódź"), ())
    with pytest.raises(ConfigError, match="encoding 'utf-99' is unknown"):
        from_csv("a\n1\n", encoding="utf-99")
    message = "its text is not in this encoding; set another `encoding`, or save the file as UTF-8"
    assert message in refusal(lambda: from_csv(b"a,b\n1,\xff\n", encoding="utf-8"))


def test_a_letter_of_another_encoding_at_the_very_end(from_csv: Callable[..., Table]) -> None:
    assert from_csv("a,b\n1,Köln\n2,Orly é".encode("cp1252")).categories("b").values == ("Köln", "Orly é")
    assert from_csv("a,b\n1,x\n2,Orly é".encode("cp1252")).categories("b").values == ("Orly é", "x")


def test_a_packed_file_that_ends_too_soon(from_csv: Callable[..., Table]) -> None:
    whole = gzip.compress(b"a,b\n" + b"1,2\n" * 1000)
    assert "the packed file is damaged" in refusal(lambda: from_csv(whole[:-12]))


def test_a_spreadsheet(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    rows = [
        (),
        ("id", "since", "income", "city"),
        (1, datetime.date(2024, 2, 29), 1.5, "Köln"),
        (),
        (2, None, 3, "Bonn"),
    ]
    for row in rows:
        book.active.append(row)
    book.create_sheet("notes")
    book.save(tmp_path / "bank.xlsx")
    with open_table(Source("bank", path=tmp_path / "bank.xlsx")) as table:
        assert [table.kind(name) for name in table.columns] == ["number", "date", "number", "category"]
        assert table.numbers("income").tolist() == [1.5, 3]
        assert ids_of(table, "id") == ["1", "2"]
        assert table.notes == ("bank: bank.xlsx: only the first of 2 sheets is read, 'Sheet'",)
    (tmp_path / "bank.xlsx").write_bytes(b"PK\x03\x04 and so on")
    assert "bank.xlsx: is no Excel file" in refusal(lambda: open_table(Source("bank", path=tmp_path / "bank.xlsx")))


def test_a_spreadsheet_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    (tmp_path / "bank.xlsx").write_bytes(b"PK\x03\x04")
    message = refusal(lambda: open_table(Source("bank", path=tmp_path / "bank.xlsx")))
    assert message.endswith("need an extra: pip install 'cvfl[excel]', or save it as CSV")


def test_an_inch_is_not_an_open_quote(from_csv: Callable[..., Table]) -> None:
    assert from_csv('a,b\n1,5" pipe\n2,z\n').categories("b").values == ('5" pipe', "z")


def test_files_that_are_not_there_or_no_files(tmp_path: Path) -> None:
    (tmp_path / "customers.csv").write_text("a\n1\n", encoding="utf-8")
    message = refusal(lambda: open_table(Source("bank", path=tmp_path / "customer.csv")))
    assert message == f"bank: {tmp_path / 'customer.csv'} is not there; did you mean 'customers.csv'?"
    message = refusal(lambda: open_table(Source("bank", path=tmp_path / "zzz.parquet")))
    assert message == f"bank: {tmp_path / 'zzz.parquet'} is not there"
    message = refusal(lambda: open_table(Source("bank", path=tmp_path / "no" / "x.csv")))
    assert message.endswith(f"is not there: there is no folder {tmp_path / 'no'}")
    assert "cannot be read (Is a directory)" in refusal(lambda: open_table(Source("bank", path=tmp_path)))


def test_damaged_parquet_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "lab.parquet"
    pq.write_table(pa.table({"x": np.arange(100_000.0)}), path, write_page_checksum=True)
    sound = path.read_bytes()
    for content in (b"", b"x", b"garbage that is no table", sound[: len(sound) // 2], sound[:-1]):
        path.write_bytes(content)
        message = refusal(lambda: open_table(Source("lab", path=path)))
        assert message.startswith("lab: lab.parquet: is not a complete Parquet file (")
    path.with_suffix(".data").write_bytes(sound[:-1])
    assert "is not a complete" in refusal(lambda: open_table(Source("lab", path=path.with_suffix(".data"))))
    for start in (4, 10_000):  # where the first page says what it is, and amid its values
        path.write_bytes(sound[:start] + b"\xff" * 50 + sound[start + 50 :])
        with open_table(Source("lab", path=path)) as table:
            message = refusal(lambda table=table: table.numbers("x"))
        assert message.startswith("lab: lab.parquet: column 'x' cannot be read (")


def test_parquet_files_without_rows_or_with_equal_names(tmp_path: Path) -> None:
    path = tmp_path / "lab.parquet"
    pq.write_table(pa.table({"x": pa.array([], pa.int64())}), path)
    assert refusal(lambda: open_table(Source("lab", path=path))) == "lab: lab.parquet: there are no rows"
    pq.write_table(pa.table([pa.array([1]), pa.array([2])], names=["x", "x"]), path)
    assert "two columns are named 'x'" in refusal(lambda: open_table(Source("lab", path=path)))


def test_a_parquet_file_is_read_in_place_whatever_it_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(pa.table({"a.b": [1, 2], "a": [3, 4]}), tmp_path / "table")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with open_table(Source("lab", path=tmp_path / "table")) as table:
        assert (table.numbers("a").tolist(), table.numbers("a.b").tolist()) == ([3, 4], [1, 2])


def test_the_temporary_copy_is_private_and_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bank.csv"
    path.write_text("a\n1\n", encoding="utf-8")
    rest = tmp_path / "temporary"
    rest.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(rest))
    with open_table(Source("bank", path=path)) as table:
        (folder,) = rest.iterdir()
        assert folder.stat().st_mode & 0o777 == 0o700
        assert table.numbers("a").tolist() == [1]
    assert not list(rest.iterdir())


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    path = tmp_path / "bank.csv"
    path.write_bytes(b"a\n" + b"".join(b"%d\n" % (i * 7919) for i in range(200_000)))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    try:
        message = refusal(lambda: open_table(Source("bank", path=path)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert message.startswith("bank: bank.csv: its temporary copy in ")
    assert message.endswith("set TMPDIR to a folder with room")


def test_progress_counts_rows(tmp_path: Path) -> None:
    path = tmp_path / "bank.csv"
    path.write_bytes(b"a\n" + b"x" * 1000 + b"\n" + (b"y" * 1000 + b"\n") * 79_999)
    heard: list[tuple[str, int]] = []
    with open_table(Source("bank", path=path), lambda name, rows: heard.append((name, rows))):
        pass
    assert {name for name, _ in heard} == {"bank: bank.csv"}
    rows = [rows for _, rows in heard]
    assert rows == sorted(set(rows))
    assert len(rows) > 2
    assert rows[-1] == 80_000


def test_a_source_is_a_file_or_a_query() -> None:
    for options in ({}, {"path": Path("x"), "url": "sqlite://", "query": "x"}, {"url": "x"}, {"query": "x"}):
        with pytest.raises(ConfigError, match="bank: give a file, or a url together with a query"):
            Source("bank", **options)


numbers = st.one_of(
    st.from_regex(r"[+-]?([0-9]{1,9}\.?[0-9]{0,9}|\.[0-9]{1,9})([eE][+-]?[0-9]{1,3})?", fullmatch=True),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
)


@given(st.lists(numbers, min_size=1), st.sampled_from(["x", "1,5", "0x1", "--1", "1e", "", "١", "nan", "inf"]))
def test_numbers_are_read_alike_beside_text_and_alone(texts: list[str], odd: str) -> None:
    alone, bad = as_numbers(pa.array(texts, pa.large_string()))
    beside, bad_beside = as_numbers(pa.array([*texts, odd], pa.large_string()))
    expected = np.array([float(text) for text in texts])
    assert bad.tolist() == (~np.isfinite(expected)).tolist()
    assert bad_beside.tolist() == [*bad.tolist(), True]
    np.testing.assert_array_equal(alone[~bad], expected[~bad])
    np.testing.assert_array_equal(beside[:-1][~bad], expected[~bad])


@given(st.lists(st.datetimes(min_value=datetime.datetime(1000, 1, 1)), min_size=1), st.booleans())
def test_dates_are_read_alike_with_without_and_with_mixed_zones(moments: list[datetime.datetime], mixed: bool) -> None:
    expected = np.array([moment.replace(microsecond=0) for moment in moments], "datetime64[s]")
    plain = [moment.isoformat(" ") for moment in moments]
    zone = datetime.timezone(datetime.timedelta(hours=-3, minutes=-30))
    zoned = [
        moment.replace(tzinfo=datetime.UTC).astimezone(zone).isoformat() for moment in moments if moment.year < 9999
    ]
    texts = plain + zoned if mixed else plain
    values, bad = as_dates(pa.array([*texts, None], pa.large_string()))
    assert not bad.any()
    assert np.isnat(values[-1])
    np.testing.assert_array_equal(values[: len(plain)], expected)
    if mixed:
        np.testing.assert_array_equal(values[len(plain) : -1], expected[[moment.year < 9999 for moment in moments]])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50)
@given(
    st.lists(
        st.tuples(st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=5), st.sampled_from('\n,;" \tx')),
        min_size=1,
        max_size=20,
    )
)
def test_what_a_csv_writer_wrote_is_read(tmp_path: Path, values: list[tuple[str, str]]) -> None:
    texts = [f"<{text}{sign}>" for text, sign in values]
    written = io.StringIO()
    csv.writer(written).writerows([["i", "text"], *enumerate(texts)])
    path = tmp_path / "bank.csv"
    path.write_bytes(written.getvalue().encode())
    with open_table(Source("bank", path=path)) as table:
        assert table.rows == len(texts)
        codes, found = table.categories("text")
        assert [found[code] for code in codes] == texts


@pytest.mark.slow
@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_a_million_rows_load_in_three_times_the_memory_of_the_tensor(form: str) -> None:
    command = [sys.executable, ROOT / "benchmarks" / "load_memory.py", "--rows", "1000000", "--format", form]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ).stdout
    ratio = float(shown.partition(" = ")[2].split()[0])
    assert 1 <= ratio <= 3, shown
