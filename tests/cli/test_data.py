"""`cvfl init`, `align` and `data`: what a person with two files sees in the first five minutes."""

import csv
import datetime
import json
import os
import pty
import sqlite3
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tomlkit
from typer.testing import CliRunner

from cvfl.cli import app
from cvfl.config.files import load_config
from cvfl.data.sets.catalogue import READERS

pytestmark = pytest.mark.usefixtures("no_pages")
ROWS = 200


def cvfl(*arguments: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, " ".join(result.output.split())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A bank's CSV and a shop's Parquet file: 200 people each, 150 shared; a constant column and a column of names."""
    random = np.random.default_rng(0)
    income, y = random.normal(size=ROWS), random.integers(0, 2, ROWS)
    with (tmp_path / "bank.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["ID", "income", "country", "name", "since", "y"])
        for i in range(ROWS):
            day = f"20{i % 20:02d}-0{1 + i % 9}-11"
            writer.writerow([i, round(income[i] + y[i], 3), "DE", f"n{i}", day, "yes" if y[i] else "no"])
    columns = {"ID": list(range(50, 250)), "basket": random.gamma(2, 2, ROWS), "club": ["gold", "none"] * (ROWS // 2)}
    pq.write_table(pa.table(columns), tmp_path / "shop.parquet")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


INIT = (
    "init",
    "fed.toml",
    "--party",
    "bank=bank.csv",
    "--party",
    "shop=shop.parquet",
    "--id",
    "ID",
    "--label",
    "bank.y",
)


TWO = INIT[2:6]


def test_one_command_prepares_a_federation_and_the_next_trains_it(folder):
    code, output = cvfl(*INIT)
    assert code == 0, output
    assert "fed.toml: 2 parties, label bank.y (binary)" in output
    assert "bank: bank.csv: 200 rows, 6 columns; left out: country, name" in output
    assert "next: cvfl train fed.toml" in output
    code, output = cvfl("train", "fed.toml", "--out", "run")
    assert code == 0, output
    assert "150 rows are shared by bank and shop" in output
    assert "label 'y': 'yes' is the positive class, 'no' the other" in output
    summary = json.loads((folder / "run" / "summary.json").read_text())
    assert summary["completed"]
    assert summary["alignment"]["common"] == 150
    assert summary["metrics"]["test"]["roc_auc"] > 0.5


def test_a_directory_that_is_there_is_refused_before_anything_is_read(folder):
    cvfl(*INIT)
    (folder / "run").mkdir()
    (folder / "run" / "mine.txt").write_text("")
    (folder / "bank.csv").unlink()
    code, output = cvfl("train", "fed.toml", "--out", "run")
    assert (code, output) == (2, "error: run exists already; choose another --out or remove it")


def test_the_configuration_is_commented_and_says_what_was_left_out(folder):
    cvfl(*INIT)
    text = (folder / "fed.toml").read_text()
    values = tomllib.loads(text)
    assert tomlkit.dumps(tomlkit.parse(text)) == text
    assert values["party"]["bank"]["exclude"] == ["country", "name"]
    assert values["party"]["shop"]["table"] == "shop.parquet"
    assert "# country: is constant" in text
    assert "# name: has 200 different values in 200 rows" in text
    assert '# 2 classes: no, yes; yes is positive, unless you add positive = "no"' in text
    assert "to learn from: 1 number, 1 date" in text
    assert load_config(folder / "fed.toml").data.stratify


def test_files_are_named_as_seen_from_the_configuration(folder):
    (folder / "sub").mkdir()
    code, output = cvfl("init", "sub/fed.toml", *INIT[2:])
    assert code == 0, output
    assert tomllib.loads((folder / "sub" / "fed.toml").read_text())["party"]["bank"]["table"] == "../bank.csv"
    assert load_config(folder / "sub" / "fed.toml").party["bank"].table.is_file()


@pytest.mark.parametrize(("columns", "sparsity"), [(20, 0.25), (120, 0.4)])
def test_of_many_columns_more_fade_out(folder, columns, sparsity):
    random = np.random.default_rng(1)
    wide = {"ID": list(range(ROWS))} | {f"x{i}": random.normal(size=ROWS) for i in range(columns)}
    pq.write_table(pa.table(wide), folder / "shop.parquet")
    code, output = cvfl(*INIT)
    assert code == 0, output
    assert load_config(folder / "fed.toml").optimizer.sparsity == sparsity


def test_a_database_is_a_party_like_any_other(folder):
    with sqlite3.connect(folder / "town.db") as database:
        database.execute("create table people (ID integer, rent real)")
        database.executemany("insert into people values (?, ?)", [(i, float(i % 7)) for i in range(100, 220)])
    more = ("--party", "town=sqlite:///town.db", "--query", "town=select * from people")
    code, output = cvfl(*INIT, *more)
    assert code == 0, output
    code, output = cvfl("align", "fed.toml")
    assert "100 rows are shared by bank and shop and town" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*TWO, "--id", "ID", "--label", "y"], "--label takes PARTY.COLUMN, not 'y'"),
        (["--party", "bank=bank.csv", "--id", "ID", "--label", "bnk.y"], "no party 'bnk'; did you mean 'bank'?"),
        (["--party", "bank=bank.csv", "--id", "ID", "--label", "bank.yy"], "has no column 'yy'"),
        (
            ["--party", "bank=bank.csv", "--id", "IDD", "--label", "bank.y"],
            "bank: bank.csv has no column 'IDD'; did you mean 'ID'?",
        ),
        (
            ["--party", "bank=bank.csv", "--id", "country", "--label", "bank.y"],
            "1 of 1 ids in column 'country' appear twice or more (first: rows 1 and 2)",
        ),
        (["--party", "bank=bank.csv", "--id", "ID", "--label", "bank.country"], "label 'country' has only 'DE'"),
        (["--party", "bank=bank.csv", "--label", "bank.y"], "--id is missing: id column (in every table: "),
        ([*TWO, "--id", "ID"], "--label is missing"),
        ([], "--party is missing"),
        (["--party", "bank"], "--party takes NAME=..., not 'bank'"),
        (["--party", "bank=bnk.csv"], "did you mean 'bank.csv'?"),
        (["--party", "a=bank.csv", "--party", "a=bank.csv"], "--party a is given twice"),
        (["--party", "a=sqlite:///x.db"], "a database needs a query; add --query a="),
        (["--party", "a=bank.csv", "--query", "b=select 1"], "--query b: no such party has a database URL"),
    ],
)
def test_what_is_missing_or_wrong_is_one_line(folder, arguments, message):
    code, output = cvfl("init", "fed.toml", *arguments)
    assert code == 2, output
    assert message in output
    assert not (folder / "fed.toml").exists()


def test_a_file_is_replaced_only_when_asked_for(folder):
    cvfl(*INIT)
    code, output = cvfl(*INIT)
    assert code == 2
    assert "fed.toml exists already" in output
    assert cvfl(*INIT, "--force")[0] == 0


def test_in_a_terminal_it_asks_for_what_is_missing(folder):
    """A real terminal: the answers are typed, the enter key takes the id column that it proposes."""
    near, far = pty.openpty()
    command = [sys.executable, "-c", "from cvfl.cli import main; main()", "init", "fed.toml"]
    process = subprocess.Popen(command, stdin=far, stdout=far, stderr=far, close_fds=True)
    os.close(far)
    os.write(near, b"bank=bank.csv\nshop=shop.parquet\n\n\nbank.y\n")
    shown = b""
    while True:
        try:
            part = os.read(near, 4096)
        except OSError:  # the terminal is gone with the process
            break
        if not part:
            break
        shown += part
    assert process.wait(timeout=60) == 0, shown.decode()
    os.close(near)
    assert b"id column (in every table: ID)" in b" ".join(shown.split())
    assert tomllib.loads((folder / "fed.toml").read_text())["party"]["bank"]["label"] == "y"


def test_align_shows_who_shares_what_and_writes_the_common_order(folder):
    cvfl(*INIT)
    code, output = cvfl("align", "fed.toml", "--out", "ids")
    assert code == 0, output
    assert "150 rows are shared by bank and shop" in output
    assert "75.0%" in output
    bank, shop = ((folder / "ids" / f"{name}.csv").read_text() for name in ("bank", "shop"))
    assert bank == shop
    lines = bank.split()
    assert lines[0] == "ID"
    assert sorted(map(int, lines[1:])) == list(range(50, 200))
    assert lines[1:] != sorted(lines[1:])


def test_people_are_told_when_an_alignment_is_reused(folder):
    cvfl(*INIT)
    today = datetime.date.today().isoformat()
    short = ("train", "fed.toml", "--set", "epochs=1", "--out")
    said = "150 rows are shared by bank and shop"

    def aligned(run: str, *options: str) -> tuple[str, int]:
        code, output = cvfl(*short, run, *options)
        assert code == 0, output
        return output, json.loads((folder / run / "summary.json").read_text())["bytes"]["alignment"]

    output, first = aligned("one")
    assert said in output
    assert "alignment of" not in output
    output, sent = aligned("two", "--set", "seed=5")
    assert f"{said} alignment of {today} reused: ids have not changed" in output
    assert sent == 0
    table = pq.read_table(folder / "shop.parquet").slice(10)
    table = pa.concat_tables([table, table.slice(0, 1).set_column(0, "ID", pa.array([7]))])
    pq.write_table(table, folder / "shop.parquet")
    output, sent = aligned("three")
    assert f"141 rows are shared by bank and shop alignment of {today} went on: 1 ids came and 10 went" in output
    assert 0 < sent < first / 10
    output, sent = aligned("four", "--align-again")
    assert "alignment of" not in output
    assert sent > 0.9 * first
    _, output = cvfl("align", "fed.toml")
    assert "alignment of" not in output
    assert f"alignment of {today} reused" in aligned("five")[0]


def test_an_id_of_two_columns_from_init_to_align(folder):
    people = [(f"n{i % 20}", 1950 + i) for i in range(100)]
    for name, rows, more in (("a", people[:80], "x,y"), ("b", people[20:], "z")):
        own = [f"{year % 7},{year % 2}" if name == "a" else str(year % 5) for _, year in rows]
        lines = [f"{who},{year},{values}" for (who, year), values in zip(rows, own, strict=True)]
        (folder / f"{name}.csv").write_text("\n".join([f"name,birth,{more}", *lines]) + "\n")
    init = ("--party", "a=a.csv", "--party", "b=b.csv", "--label", "a.y", "--id")
    code, output = cvfl("init", "two.toml", *init, "name,birth")
    assert code == 0, output
    assert tomllib.loads((folder / "two.toml").read_text())["data"]["id"] == ["name", "birth"]
    code, output = cvfl("align", "two.toml", "--out", "ids")
    assert code == 0, output
    assert "60 rows are shared by a and b" in output
    with (folder / "ids" / "b.csv").open(newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["name", "birth"]
    assert {(who, int(year)) for who, year in rows} == set(people[20:80])
    code, output = cvfl("init", "one.toml", *init, "name,brith")
    assert code == 2
    assert "a.csv has no column 'brith'; did you mean 'birth'?" in output


def test_a_small_intersection_warns(folder):
    cvfl(*INIT)
    columns = {"ID": list(range(180, 380)), "basket": np.arange(200.0), "club": ["gold", "none"] * 100}
    pq.write_table(pa.table(columns), folder / "shop.parquet")
    code, output = cvfl("align", "fed.toml")
    assert code == 0
    assert "warning: only 20 of the 200 ids of bank, the smallest table, are shared (10.0%)" in output


def test_align_without_ids_to_align(folder):
    (folder / "digits.toml").write_text('epochs = 1\n[data]\nname = "digits"\n[step_size]\neta = 0.1\n')
    code, output = cvfl("align", "digits.toml")
    assert code == 2
    assert "the rows are aligned already" in output


def test_describe_shows_types_gaps_and_use(folder):
    cvfl(*INIT)
    code, output = cvfl("data", "describe", "fed.toml", "--name", "bank")
    assert code == 0, output
    assert "bank: bank.csv: 200 rows, 6 columns" in output
    code, output = cvfl("data", "describe", "fed.toml", "--name", "bank", "--json")
    columns = {column["name"]: column for column in json.loads(output)}
    assert {name: (column["kind"], column["use"]) for name, column in columns.items()} == {
        "ID": ("number", "id"),
        "income": ("number", "feature"),
        "country": ("category", "-"),
        "name": ("category", "-"),
        "since": ("date", "feature"),
        "y": ("category", "label"),
    }
    assert columns["country"]["distinct"] == 1
    assert columns["income"]["missing"] == 0


def test_describe_a_party_that_is_not_there(folder):
    cvfl(*INIT)
    code, output = cvfl("data", "describe", "fed.toml", "--name", "bnk")
    assert code == 2
    assert "there is no party 'bnk'; did you mean 'bank'?" in output


def test_the_list_names_every_data_set():
    code, output = cvfl("data", "list")
    assert code == 0
    assert all(name in output for name in READERS)


def test_what_cannot_be_fetched_says_where_it_goes(tmp_path):
    code, output = cvfl("data", "fetch", "mimic3", tmp_path)
    assert code == 2
    assert "physionet.org" in output
    assert str(tmp_path / "mimic3") in output.replace(" ", "")
    code, output = cvfl("data", "fetch", "adlt", tmp_path)
    assert code == 2
    assert "did you mean 'adult'?" in output


@pytest.mark.parametrize("name", ["cifar10", "adult", "physionet2012", "mimic3"])
def test_a_data_set_without_its_folder_says_how_to_get_it(tmp_path, name):
    (tmp_path / "run.toml").write_text(f'epochs = 1\n[data]\nname = "{name}"\n[step_size]\neta = 0.1\n')
    code, output = cvfl("train", tmp_path / "run.toml")
    assert code == 2
    assert f"cvfl data fetch {name}" in output
    code, output = cvfl("train", tmp_path / "run.toml", "--set", "data.path=nowhere")
    assert code == 2
    assert "nowhere" in output


@pytest.mark.parametrize("command", [["init"], ["align"], ["data", "describe"], ["data", "fetch"], ["data", "list"]])
def test_every_help_has_an_example(command):
    code, output = cvfl(*command, "--help")
    assert code == 0
    assert f"Example: cvfl {' '.join(command)}" in output


def spoiled_csv(folder: Path, change) -> None:
    path = folder / "bank.csv"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(change(lines)) + "\n")


BAD_TABLES = {
    "ragged": (lambda f: spoiled_csv(f, lambda ls: [*ls[:6], ls[6] + ",9", *ls[7:]]), ["bank.csv", "line 7"]),
    "mixed": (
        lambda f: spoiled_csv(
            f, lambda ls: [*ls[:3], ls[3].replace(",", ",abc,", 1).replace("abc,", "abc", 1), *ls[4:]]
        ),
        ["bank.csv", "'income'"],
    ),
    "one class": (
        lambda f: spoiled_csv(f, lambda ls: [line.replace(",no", ",yes") for line in ls]),
        ["bank.csv", "'y'"],
    ),
    "constant": (
        lambda f: (f / "fed.toml").write_text((f / "fed.toml").read_text().replace('"country", ', "")),
        ["'country'"],
    ),
    "truncated": (
        lambda f: (f / "shop.parquet").write_bytes((f / "shop.parquet").read_bytes()[:-40]),
        ["shop.parquet"],
    ),
    "no column": (
        lambda f: (f / "fed.toml").write_text((f / "fed.toml").read_text().replace('id = "ID"', 'id = "IDD"')),
        ["bank.csv", "did you mean 'ID'?"],
    ),
    "bad SQL": (
        lambda f: (f / "fed.toml").write_text(
            (f / "fed.toml").read_text().replace('table = "shop.parquet"', 'url = "sqlite:///x.db"\nquery = "selct 1"')
        ),
        ["shop", "sqlite"],
    ),
}


@pytest.mark.parametrize("case", BAD_TABLES)
def test_a_table_that_cannot_be_used_is_one_line_and_exit_code_2(folder, case):
    cvfl(*INIT)
    sqlite3.connect(folder / "x.db").execute("create table t (a)").connection.close()
    spoil, words = BAD_TABLES[case]
    spoil(folder)
    result = CliRunner().invoke(app, ["train", "fed.toml", "--out", "run"])
    assert result.exit_code == 2, result.output
    lines = [line for line in result.output.splitlines() if line.strip()]
    assert len(lines) == 1
    assert all(word in lines[0] for word in ["error: ", *words]), lines
    assert not (folder / "run").exists()
