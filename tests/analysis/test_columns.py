"""What each column brings: one that tells comes first, another one changes nothing, and nobody else hears of it."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from conformance.loop import Loop
from cvfl.config.files import parse_config
from cvfl.config.schema import RunConfig
from cvfl.federation.train import train
from cvfl.report.report import write_report
from cvfl.runs.analysis import Analysis, Columns, read_analysis
from cvfl.runs.beside import read_beside

pytestmark = pytest.mark.usefixtures("no_pages")
ROWS = 400
PARTIES = {
    "bank": {"id": "ID", "table": "bank.csv", "label": "y"},
    "shop": {"id": "ID", "table": "shop.csv"},
}


def tables(folder: Path, quantity: bool = False) -> None:
    draw = np.random.default_rng(0)
    telling, other, noise = draw.normal(size=(3, ROWS))
    club = draw.choice(["gold", "none", "silver"], ROWS)
    y = 2 * telling + 0.7 * other + 1.5 * (club == "gold")
    shown = y.round(3) if quantity else np.where(y > np.median(y), "yes", "no")
    columns = {
        "bank": {"ID": range(ROWS), "noise": noise, "telling": telling, "y": shown},
        "shop": {"ID": range(ROWS), "other": other, "club": club},
    }
    for name, table in columns.items():
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(table)
            writer.writerows(zip(*table.values(), strict=True))


def config(folder: Path, **changes: object) -> RunConfig:
    (folder / "secret").write_bytes(b"rows in one order, however roles run")
    party = {name: values | {"table": str(folder / values["table"])} for name, values in PARTIES.items()}
    party["bank"]["row_secret"] = str(folder / "secret")
    values = {
        "epochs": 8,
        "batch_size": 32,
        "data": {"test_share": 0.3},
        "step_size": {"eta": 0.01},
        "optimizer": {"name": "adam"},
        "analysis": {"columns": True},
        "party": party,
    }
    return parse_config(values | changes)


def analysis(path: Path) -> Analysis:
    found = read_analysis(path)
    assert found is not None
    return found


@pytest.mark.parametrize("quantity", [False, True])
def test_a_column_that_tells_comes_first(tmp_path: Path, quantity: bool) -> None:
    tables(tmp_path, quantity)
    train(config(tmp_path), out=tmp_path / "run")
    bank, shop = analysis(tmp_path / "run").columns
    assert (bank.party, shop.party) == ("bank", "shop")
    assert [one.column for one in bank.each] == ["telling", "noise"]
    assert {one.column for one in shop.each} == {"other", "club"}  # one-hot columns go together
    lost = [abs(one.without.value - bank.together) for one in bank.each]
    assert lost[0] > (0.5 if quantity else 0.1) > 5 * lost[1]
    assert (bank.each[0].without.value > bank.together) == quantity  # RMSE is better low
    page = write_and_read(tmp_path / "run")
    assert "What each column brings" in page
    assert page.index(">telling<") < page.index(">noise<")


def write_and_read(run: Path) -> str:
    write_report([run], run / "report.html")
    return (run / "report.html").read_text(encoding="utf-8")


def test_it_is_the_same_every_time_and_only_where_it_is_asked_for(tmp_path: Path) -> None:
    tables(tmp_path)
    settings = config(tmp_path, epochs=2)
    results = [train(settings, out=tmp_path / name) for name in ("one", "two")]
    assert analysis(tmp_path / "one") == analysis(tmp_path / "two")
    quiet = train(config(tmp_path, epochs=2, analysis={}), out=tmp_path / "quiet")
    assert analysis(tmp_path / "quiet").columns == ()
    assert "What each column brings" not in write_and_read(tmp_path / "quiet")
    assert quiet.summary["bytes"] == results[0].summary["bytes"]
    assert quiet.summary["parameters"] == results[0].summary["parameters"]


def test_the_holder_of_the_labels_learns_of_its_own_columns_alone(tmp_path: Path) -> None:
    tables(tmp_path)
    settings = config(tmp_path, privacy={"labels": "bank"}, epochs=2)
    train(settings, out=tmp_path / "one")
    Loop(settings, tmp_path / "loop").run()
    (bank,) = analysis(tmp_path / "loop" / "models").columns
    assert bank == next(one for one in analysis(tmp_path / "one").columns if one.party == "bank")
    assert read_analysis(tmp_path / "loop" / "run") is None


def test_the_server_of_other_roles_has_no_columns(tmp_path: Path) -> None:
    tables(tmp_path)
    Loop(config(tmp_path, epochs=1), tmp_path / "loop").run()
    assert analysis(tmp_path / "loop" / "run").columns == ()
    assert analysis(tmp_path / "loop" / "run").parties is not None


def test_with_a_private_model_every_party_learns_of_its_own_columns_as_without_one(tmp_path: Path) -> None:
    tables(tmp_path)
    told = {"labels": "bank", "label_epsilon": 4.0}
    auto = {"compressor": "auto", "server_compressor": "auto", "epochs": 2}
    for name, privacy in (("with", told | {"private_model": True}), ("without", told)):
        Loop(config(tmp_path, privacy=privacy, **auto), tmp_path / name).run()
    for party in ("bank", "shop"):
        assert own_columns(tmp_path / "with" / "models", party) == own_columns(tmp_path / "without" / "models", party)


@pytest.mark.parametrize(("model", "quantity"), [("linear", False), ("wide_deep", True)])
def test_with_auto_every_party_learns_of_its_own_columns_from_training_rows(
    tmp_path: Path, model: str, quantity: bool
) -> None:
    """Here and after a fault: it is of what a party was told, which is the same."""
    tables(tmp_path, quantity)
    hidden = {"hidden": [8]} if model == "wide_deep" else {}
    auto = {"compressor": "auto", "server_compressor": "auto"}
    settings = config(tmp_path, epochs=5, server_model={"name": model} | hidden, **auto)
    Loop(settings, tmp_path / "loop").run()
    bank, shop = (own_columns(tmp_path / "loop" / "models", name) for name in ("bank", "shop"))
    assert (bank.rows, bank.metric) == ("training", "rmse" if quantity else "roc_auc")
    assert [one.column for one in bank.each] == ["telling", "noise"]
    assert {one.column for one in shop.each} == {"other", "club"}
    lost = [abs(one.without.value - bank.together) for one in bank.each]
    assert lost[0] > (0.2 if quantity else 0.1) > 5 * lost[1]
    Loop(settings, tmp_path / "again").run({40: lambda loop: loop.kill("shop")})
    assert own_columns(tmp_path / "again" / "models", "shop") == shop


def test_a_party_that_keeps_nothing_of_the_others_cannot_tell(tmp_path: Path) -> None:
    tables(tmp_path)
    plain = {"compressor": "identity", "server_compressor": "identity"}
    Loop(config(tmp_path, epochs=1, **plain), tmp_path / "loop").run()
    assert not list((tmp_path / "loop" / "models").glob("*.columns.json"))


def own_columns(folder: Path, name: str) -> Columns:
    found = read_beside(Columns, folder / f"{name}.columns.json")
    assert found is not None
    return found


def test_of_masked_embeddings_nobody_can_tell(tmp_path: Path) -> None:
    tables(tmp_path)
    secure = {"privacy": {"aggregation": "secure"}, "server_model": {"name": "sum", "hidden": [8]}}
    train(config(tmp_path, epochs=1, **secure), out=tmp_path / "run")
    assert analysis(tmp_path / "run").columns == ()
