"""Scores of new rows in one process: by command and in Python, with tables as people have them."""

from __future__ import annotations

import sqlite3

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import torch
from typer.testing import CliRunner

import cvfl
from cvfl.cli import app
from cvfl.errors import DataError
from cvfl.federation.rows.load import load_data
from cvfl.federation.train import train
from cvfl.serving import embed, predict
from cvfl.serving.bundles import read_bundles
from cvfl.serving.predict import Predictor
from cvfl.serving.scores import scores_of
from serving import tables

pytestmark = pytest.mark.usefixtures("no_pages")


@pytest.fixture(scope="module", params=["binary", "several", "quantity"])
def any_run(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    config = tables.config(tables.write(tables.frames(request.param), folder / "in"))
    return request.param, config, train(config, out=folder / "run", workers=1)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return train(tables.config(tables.write(tables.frames(), folder / "in")), out=folder / "run", workers=1).path


@pytest.fixture
def new(tmp_path):
    """People whom training never saw, without the label."""
    found = tables.frames(first=1000, rows=50)
    return {"bank": found["bank"].drop_columns("target"), "shop": found["shop"]}


def scores(run, frames, folder, **changes) -> pa.Table:
    predictor = Predictor(read_bundles([run]))
    found = pa.Table.from_batches(predictor.of_tables(tables.write(frames, folder) | changes))
    return found.replace_schema_metadata({"notes": "\n".join(predictor.notes)})


def notes(found: pa.Table) -> list[str]:
    return found.schema.metadata[b"notes"].decode().split("\n")


def command(run, *words: str):
    return CliRunner().invoke(app, ["predict", str(run), *words], terminal_width=300)


def test_tables_give_the_scores_of_the_evaluation(any_run):
    """By way of files and ids, the held-out people have the outputs that they had in training."""
    kind, config, result = any_run
    data = load_data(config).data
    paths = {name: section.table for name, section in config.party.items()}
    predictor = Predictor(read_bundles([result.path]))
    table = pa.Table.from_batches(predictor.of_tables(paths))
    assert table.column_names[0] == "person"
    phi = [torch.cat([predictor.embeddings(n, x) for x in (data.train[m], data.validation[m], data.test[m])])
           for m, n in enumerate(data.names)]  # fmt: skip
    name = {"binary": "score", "several": "score_high", "quantity": "value"}[kind]
    expected = scores_of(predictor.server, predictor.outputs(phi))
    assert sorted(table[name].to_pylist()) == sorted(expected[name].to_pylist())  # rows are in another order
    if kind == "several":
        each = np.stack([table[f"score_{one}"].to_numpy() for one in ("high", "low", "middle")])
        assert np.allclose(each.sum(0), 1)
        assert table["class"].to_pylist() == [("high", "low", "middle")[at] for at in each.argmax(0)]
    if kind == "binary":
        positive = table["score"].to_numpy() >= result.summary["threshold"]
        assert table["class"].to_pylist() == ["yes" if one else "no" for one in positive]


def test_the_command_writes_csv_and_parquet(run, new, tmp_path):
    paths = tables.write(new, tmp_path / "in")
    pq.write_table(new["shop"], tmp_path / "shop.parquet")
    words = ["--party", f"bank={paths['bank']}", "--party", f"shop={tmp_path / 'shop.parquet'}"]
    first = command(run, *words, "--out", str(tmp_path / "scores.csv"))
    assert first.exit_code == 0, first.output
    assert "scores of 50 rows" in first.output
    second = command(run, *words, "--out", str(tmp_path / "scores.parquet"))
    assert second.exit_code == 0, second.output
    there = pq.read_table(tmp_path / "scores.parquet")
    assert there.column_names == ["person", "score", "class"]
    assert there["person"].to_pylist() == new["bank"]["person"].to_pylist()
    assert pyarrow.csv.read_csv(tmp_path / "scores.csv")["score"].to_pylist() == there["score"].to_pylist()
    assert not list(tmp_path.glob(".*partial"))


def test_a_database_is_asked(run, new, tmp_path):
    with sqlite3.connect(tmp_path / "shop.db") as base:
        base.execute("create table people (person text, spent real, branch text, channel text)")
        base.executemany("insert into people values (?, ?, ?, ?)", zip(*new["shop"].to_pydict().values(), strict=True))
    paths = tables.write(new, tmp_path / "in")
    words = ["--party", f"bank={paths['bank']}", "--party", f"shop=sqlite:///{tmp_path}/shop.db"]
    out = ["--out", str(tmp_path / "scores.csv")]
    refused = command(run, *words, *out)
    assert "--party shop: a database needs a query, --query shop=SQL" in refused.output
    asked = command(run, *words, *out, "--query", "shop=select * from people")
    assert asked.exit_code == 0, asked.output
    found = pyarrow.csv.read_csv(tmp_path / "scores.csv")["score"].to_pylist()
    assert found == scores(run, new, tmp_path / "in")["score"].to_pylist()


def test_small_windows_and_batches_change_nothing(run, new, tmp_path, monkeypatch):
    whole = scores(run, new, tmp_path)
    monkeypatch.setattr(embed, "WINDOW", 7)
    monkeypatch.setattr(predict, "BATCH", 3)
    assert scores(run, new, tmp_path).equals(whole)


def test_a_row_has_its_score_whoever_is_scored_with_it(run, new, tmp_path):
    whole = scores(run, new, tmp_path / "a").to_pydict()
    some = scores(run, {"bank": new["bank"].slice(3, 17), "shop": new["shop"].slice(5)}, tmp_path / "b")
    assert some["score"].to_pylist() == whole["score"][3:20]
    one = {"bank": new["bank"].slice(4, 1), "shop": new["shop"]}
    assert scores(run, one, tmp_path / "c")["score"].to_pylist() == [whole["score"][4]]


def test_rows_that_only_some_hold_are_left_out_and_counted(run, new, tmp_path):
    some = {"bank": new["bank"].slice(5), "shop": new["shop"].slice(3)}  # the shop's table goes backwards
    found = scores(run, some, tmp_path)
    assert found["person"].to_pylist() == new["bank"]["person"].to_pylist()[5:47]
    assert "left out, since not every party holds them: 3 of 45 at bank, 5 of 47 at shop" in notes(found)


def test_nobody_in_common_is_refused(run, new, tmp_path):
    others = {"bank": new["bank"], "shop": tables.frames(first=5000, rows=50)["shop"]}
    with pytest.raises(DataError, match="the tables share no id"):
        scores(run, others, tmp_path)
    shouted = pa.array([text.upper() for text in new["shop"]["person"].to_pylist()])
    advice = 'write ids alike in all new tables, or train with id_type = "caseless"$'
    with pytest.raises(DataError, match=f"differ in upper and lower case only; {advice}"):
        scores(run, {"bank": new["bank"], "shop": new["shop"].set_column(0, "person", shouted)}, tmp_path)


def test_what_new_rows_can_do_is_said_not_what_training_could(run, new, tmp_path):
    twice = new | {"bank": pa.concat_tables([new["bank"], new["bank"].slice(0, 2)])}
    with pytest.raises(DataError, match=r"keep one row each, or train with duplicates = \"first\" or \"last\"$"):
        scores(run, twice, tmp_path)
    days = pa.array(["2020-01-02"] * 50).cast(pa.date32())
    pq.write_table(new["shop"].set_column(1, "spent", days), tmp_path / "shop.parquet")
    with pytest.raises(DataError, match=r"read as numbers; write its values as the table of the training has them$"):
        scores(run, new, tmp_path, shop=tmp_path / "shop.parquet")


def test_missing_columns_are_refused_and_more_are_not_used(run, new, tmp_path):
    with pytest.raises(DataError, match=r"shop: shop\.csv: columns are missing that training had: spent, channel"):
        scores(run, new | {"shop": new["shop"].drop_columns(["spent", "channel"])}, tmp_path)
    with pytest.raises(DataError, match="column 'person' is not there"):
        scores(run, new | {"shop": new["shop"].rename_columns(["who", "spent", "branch", "channel"])}, tmp_path)
    more = new["shop"].append_column("mood", pa.array(["good"] * 50))
    found = scores(run, new | {"shop": more}, tmp_path)
    assert found.equals(scores(run, new, tmp_path / "b"))
    assert "shop: shop.csv: not used, since training did not: mood" in notes(found)


def test_the_label_may_still_be_there(run, tmp_path):
    found = tables.frames(first=1000, rows=50)
    assert notes(scores(run, found, tmp_path)) == [""]


def test_unseen_categories_and_new_gaps_are_taken_as_in_training(run, new, tmp_path):
    """A category that training never saw, and gaps in columns that had none: the other rows keep their scores."""
    known = scores(run, new, tmp_path / "a")["score"].to_pylist()
    channel = pa.array(["fax", *new["shop"]["channel"].to_pylist()[1:]])
    spent = pa.array([None, None, *new["shop"]["spent"].to_pylist()[2:]])
    shop = new["shop"].set_column(3, "channel", channel).set_column(1, "spent", spent)
    found = scores(run, new | {"shop": shop}, tmp_path / "b")["score"].to_pylist()
    assert all(0 <= one <= 1 for one in found)
    assert found[:-2] == known[:-2]  # the shop's first rows are the bank's last
    assert found[-1] != known[-1]


def test_text_where_training_had_numbers_is_refused_by_its_row(run, new, tmp_path, monkeypatch):
    monkeypatch.setattr(embed, "WINDOW", 20)
    spent = pa.array([*map(str, new["shop"]["spent"].to_pylist()[:45]), "a lot", *["1"] * 4])
    advice = "'a lot' in row 46; write its values as the table of the training has them, or leave them empty$"
    with pytest.raises(DataError, match=f"column 'spent' cannot be read as numbers: {advice}"):
        scores(run, new | {"shop": new["shop"].set_column(1, "spent", spent)}, tmp_path)


def test_a_category_of_digits_stays_one(run, new, tmp_path):
    """`branch` was a category in training: numbers in the new table, with zeros behind the point, are its values."""
    found = scores(run, new, tmp_path / "a")
    branch = pa.array([float(text) for text in new["shop"]["branch"].to_pylist()])
    pq.write_table(new["shop"].set_column(2, "branch", branch), tmp_path / "shop.parquet")
    assert scores(run, new, tmp_path / "b", shop=tmp_path / "shop.parquet").equals(found)


def test_what_is_asked_wrongly_is_said_in_one_line(run, new, tmp_path):
    paths = tables.write(new, tmp_path)
    bank, out = ["--party", f"bank={paths['bank']}"], ["--out", str(tmp_path / "scores.csv")]
    for words, line in (
        ([*bank, *out], "the table of shop is missing; this model needs every party"),
        ([*bank, "--party", f"shpo={paths['shop']}", *out], "no party 'shpo' in this run; did you mean 'shop'?"),
        ([*bank, *bank, *out], "--party: bank is named twice"),
        (["--party", "bank", *out], "--party takes NAME=..., not 'bank'"),
        ([*bank, "--query", "bank=select 1", *out], "--query bank: it needs --party bank=URL"),
        ([*bank, "--party", "shop=none.csv", *out], "none.csv is not there"),
        ([*bank, "--out", str(paths["bank"])], "bank.csv exists already; choose another name or use --force"),
        ([*bank, "--out", "scores.txt"], "scores.txt: scores are written as .csv, .parquet, .pq; name the file so"),
    ):
        found = command(run, *words)
        assert found.exit_code == 2
        assert line in found.output
        assert not (tmp_path / "scores.csv").exists()


def test_python_takes_frames_and_warns(run, new):
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    assert pandas is not None
    recorded = cvfl.load_run(run)
    found = recorded.predict({"bank": new["bank"].to_pandas(), "shop": polars.from_arrow(new["shop"])})
    assert list(found.to_pandas().columns) == ["person", "score", "class"]
    with pytest.warns(UserWarning, match="left out, since not every party holds them: 10 of 50 at shop"):
        fewer = recorded.predict({"bank": new["bank"].slice(10), "shop": new["shop"]})
    assert fewer["score"].to_pylist() == found["score"].to_pylist()[10:]


def test_python_takes_tensors_where_training_did(tmp_path):
    x = {name: torch.from_numpy(np.linspace(-1, 1, 240).reshape(60, 4)).float().roll(s) for s, name in enumerate("ab")}
    federation = cvfl.Federation.from_tensors(x, (x["a"].sum(1) > 0).long())
    run = federation.fit(epochs=1, progress=False, out=tmp_path / "run")
    found = run.predict(x)
    assert found.column_names == ["row", "score", "class"]
    assert found["row"].to_pylist() == list(range(1, 61))
    assert set(found["class"].to_pylist()) <= {0, 1}
    with pytest.raises(DataError, match=r"b: rows of shape \(3,\), the model takes \(4,\)"):
        run.predict({"a": x["a"], "b": x["b"][:, :3]})
    with pytest.raises(DataError, match=r"their numbers of rows differ \(a 60, b 50\)"):
        run.predict({"a": x["a"], "b": x["b"][:50]})
    with pytest.raises(DataError, match="this run was not trained on tables; give its rows as tensors"):
        run.predict({name: pa.table({"x": [1.0]}) for name in "ab"})


def test_rows_that_were_taken_as_they_are_stay_so(new, tmp_path):
    frames = tables.frames()
    ordered = {"bank": frames["bank"], "shop": frames["shop"].take(list(range(tables.ROWS))[::-1])}
    without = {name: table.drop_columns("person") for name, table in ordered.items()}
    data = {"alignment": "aligned", "test_share": 0.2}
    run = train(tables.config(tables.write(without, tmp_path), data=data), out=tmp_path / "run", workers=1).path
    found = scores(run, without, tmp_path)
    assert found["row"].to_pylist() == list(range(1, tables.ROWS + 1))
    with pytest.raises(DataError, match=r"needs tables of the same length \(bank 299, shop 300 rows\)"):
        scores(run, without | {"bank": without["bank"].slice(1)}, tmp_path)


def test_ids_of_two_columns_are_given_back_as_two(tmp_path):
    def split(table: pa.Table) -> pa.Table:
        ids = [(text[:2], text[2:] or "0") for text in table["person"].to_pylist()]
        return table.drop_columns("person").append_column("site", pa.array([site for site, _ in ids])).append_column(
            "score", pa.array([f"n{number}" for _, number in ids])
        )  # fmt: skip

    frames = {name: split(table) for name, table in tables.frames().items()}
    places = pa.array(range(tables.ROWS))
    frames["bank"] = frames["bank"].append_column("no", places)
    frames["shop"] = frames["shop"].append_column("no", places[::-1])
    data = {"id": ["site", "score", "no"], "test_share": 0.2}
    run = train(tables.config(tables.write(frames, tmp_path), data=data), out=tmp_path / "run", workers=1).path
    found = scores(run, frames, tmp_path)
    assert found.column_names == ["site", "id_score", "no", "score", "class"]
    assert found["site"].to_pylist() == frames["bank"]["site"].to_pylist()
