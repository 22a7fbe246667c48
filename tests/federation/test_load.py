"""From the user's own tables to a trained model: alignment, split, preparation and everything that goes wrong."""

import csv
import json
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from cvfl.config.files import load_config, parse_config
from cvfl.config.schema import RunConfig
from cvfl.data.tables.prepare import Preparation
from cvfl.errors import ConfigError, CvflError, DataError
from cvfl.federation.rows.load import load_data
from cvfl.federation.train import train

pytestmark = pytest.mark.usefixtures("no_pages")
PEOPLE = 120


def people(seed: int = 0) -> dict[str, list[object]]:
    random = np.random.default_rng(seed)
    age, income = random.integers(18, 90, PEOPLE), random.normal(3000, 900, PEOPLE)
    owes = (income + random.normal(0, 300, PEOPLE) < 3000 + 5 * (age - 50)).astype(int)
    return {
        "ID": [f"z{i}" for i in range(PEOPLE)],
        "age": age.tolist(),
        "income": income.round(2).tolist(),
        "city": random.choice(["Bonn", "Kiel", "Trier"], PEOPLE).tolist(),
        "basket": random.gamma(2, 20, PEOPLE).round(2).tolist(),
        "y": ["late" if bad else "paid" for bad in owes],
    }


def write_csv(path: Path, columns: dict[str, list[object]], rows: list[int]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(["" if values[i] is None else values[i] for values in columns.values()] for i in rows)


def pick(columns: dict[str, list[object]], *names: str) -> dict[str, list[object]]:
    return {name: columns[name] for name in names}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A bank with 100 people as CSV and a shop with 90 as Parquet, in another order; they share 70."""
    everyone = people()
    write_csv(tmp_path / "bank.csv", pick(everyone, "ID", "age", "income", "y"), list(range(100)))
    rows = list(reversed(range(30, 120)))
    columns = {name: [values[i] for i in rows] for name, values in pick(everyone, "ID", "city", "basket").items()}
    pq.write_table(pa.table(columns), tmp_path / "shop.parquet")
    (tmp_path / "fed.toml").write_text(CONFIG, encoding="utf-8")
    return tmp_path


CONFIG = """
epochs = 2
batch_size = 16
local_iterations = 2
[data]
id = "ID"
[step_size]
eta = 0.05
[party.bank]
table = "bank.csv"
label = "y"
[party.shop]
table = "shop.parquet"
"""


def loaded(folder: Path, *changes: str):
    return load_data(load_config(folder / "fed.toml", changes))


def test_rows_of_the_same_person_meet(folder):
    result = loaded(folder, "data.prepare.scale=none", "data.prepare.rare=0")
    data = result.data
    everyone = people()
    assert result.aligned.common == 70
    assert result.aligned.sizes == (100, 90)
    assert data.names == ("bank", "shop")
    bank, shop = (torch.cat([data.train[i], data.test[i]]) for i in (0, 1))
    labels = torch.cat([data.train_labels, data.test_labels])
    assert result.assembled.classes == ("late", "paid")
    found = {
        (float(b[0]), round(float(b[1]), 2), round(float(s[-1]), 2), float(y))
        for b, s, y in zip(bank, shop, labels, strict=True)
    }
    expected = {
        (float(everyone["age"][i]), everyone["income"][i], everyone["basket"][i], float(everyone["y"][i] == "paid"))
        for i in range(30, 100)
    }
    assert found == expected


def test_rows_belong_to_the_split_seed_and_not_to_the_seed_or_to_secret_keys(folder):
    one, two, other = loaded(folder), loaded(folder, "seed=1"), loaded(folder, "data.split_seed=1")
    assert all(torch.equal(a, b) for a, b in zip(one.data.train, two.data.train, strict=True))
    assert one.told == two.told != other.told
    assert len(one.data.train_labels) != len(other.data.train_labels) or not torch.equal(
        one.data.train[0], other.data.train[0]
    )


def test_files_are_found_from_the_configuration(folder, monkeypatch):
    monkeypatch.chdir("/")
    assert loaded(folder).aligned.common == 70


def test_a_row_without_a_label_is_no_row(folder):
    everyone = people() | {"y": [None if i == 50 else y for i, y in enumerate(people()["y"])]}
    write_csv(folder / "bank.csv", pick(everyone, "ID", "age", "income", "y"), list(range(100)))
    result = loaded(folder)
    assert result.aligned.sizes == (99, 90)
    assert result.aligned.common == 69


def test_the_label_of_another_party_is_no_feature(folder):
    everyone = people()
    write_csv(folder / "shop.csv", pick(everyone, "ID", "basket", "y"), list(range(PEOPLE)))
    result = loaded(folder, "party.shop.table=shop.csv")
    assert result.assembled.preparations["shop"].columns == ("basket",)
    assert result.notes == (
        "shop: shop.csv: column 'y' is left out, since the label of another party is called so; "
        "name it in `features` to use it",
    )
    result = loaded(folder, "party.shop.table=shop.csv", 'party.shop.features=["basket","y"]')
    assert set(result.assembled.preparations["shop"].columns) == {"basket", "y"}


@pytest.mark.parametrize(
    "copy",
    [
        lambda y: ["1" if value == "late" else "0" for value in y],
        lambda y: [None if value == "late" else "2024-01-01" for value in y],
        lambda y: ["L" if value == "late" else "P" for value in y],
    ],
)
def test_a_column_that_tells_the_label_is_noted(folder, copy):
    everyone = people() | {"outcome": copy(people()["y"])}
    write_csv(folder / "shop.csv", pick(everyone, "ID", "basket", "outcome"), list(range(PEOPLE)))
    assert loaded(folder, "party.shop.table=shop.csv").notes == (
        "shop: shop.csv: column 'outcome' tells the label of every training row; exclude it if it is a copy of "
        "the label or only known when the label is",
    )


def test_ids_in_another_case_are_named_and_can_be_compared(folder):
    everyone = people() | {"ID": [f"Z{i}" for i in range(PEOPLE)]}
    write_csv(folder / "shop.csv", pick(everyone, "ID", "basket"), list(range(PEOPLE)))
    with pytest.raises(DataError, match=r'100 of them differ in upper.*id_type = "caseless"'):
        loaded(folder, "party.shop.table=shop.csv")
    caseless = ("party.bank.id_type=caseless", "party.shop.id_type=caseless")
    assert loaded(folder, "party.shop.table=shop.csv", *caseless).aligned.common == 100


def test_too_few_shared_rows_for_all_classes_are_named(folder):
    write_csv(folder / "shop.csv", pick(people(), "ID", "basket"), [0, 110])
    with pytest.raises(DataError) as caught:
        loaded(folder, "party.shop.table=shop.csv", "data.test_share=0")
    assert str(caught.value).startswith("label 'y': 1 rows are shared, 1 of them for training, and none of these is ")


@pytest.mark.parametrize("kind", ["number", "date"])
def test_the_latest_rows_are_held_out(folder, kind):
    """The last fifth is for the test and the fifth before it for validation, whatever the hash of an id says."""
    everyone = people()
    days = [(7 * i) % PEOPLE for i in range(PEOPLE)]
    everyone["when"] = days if kind == "number" else [str(date(2024, 1, 1) + timedelta(days=day)) for day in days]
    write_csv(folder / "bank.csv", pick(everyone, "ID", "age", "when", "y"), list(range(100)))
    shares = ("data.test_share=0.2", "data.validation_share=0.2", "data.split_by=when", "party.bank.exclude=['when']")
    shares += ("data.prepare.scale=none",)
    data, again = loaded(folder, *shares).data, loaded(folder, *shares, "data.split_seed=5").data
    by_day = sorted(range(30, 100), key=lambda i: days[i])
    ages = [sorted(float(everyone["age"][i]) for i in rows) for rows in (by_day[:42], by_day[42:56], by_day[56:])]
    assert [sorted(x[0][:, 0].tolist()) for x in (data.train, data.validation, data.test)] == ages
    assert sorted(again.test[0].tolist()) == sorted(data.test[0].tolist())


@pytest.mark.parametrize("kind", ["number", "category", "date"])
@pytest.mark.parametrize("how", ["private", "kept", "aligned"])
def test_no_group_is_in_two_parts(folder, how, kind):
    """Households of one to four, whose number is a feature under another name, so that it can be seen."""
    homes = [i // 4 if i % 3 else 100 + i for i in range(PEOPLE)]
    words = {"number": homes, "category": [f"h{n}" for n in homes]}
    words["date"] = [str(date(2024, 1, 1) + timedelta(days=n)) for n in homes]
    everyone = people() | {"home": homes, "household": words[kind]}
    write_csv(folder / "bank.csv", pick(everyone, "ID", "home", "household", "y"), list(range(100)))
    write_csv(folder / "shop.csv", pick(everyone, "ID", "basket"), list(range(100)))
    changes = ["party.shop.table=shop.csv", "data.split_groups=household", "data.prepare.scale=none"]
    changes += ["data.test_share=0.3", "data.validation_share=0.2"]
    changes += ["data.alignment=aligned"] if how == "aligned" else []
    seen = set()
    for seed in range(4):
        config = load_config(folder / "fed.toml", [*changes, f"data.split_seed={seed}"])
        data = load_data(config, kept=folder / "kept" if how == "kept" else None).data
        assert data.train[0].shape[1] == 1  # the column of groups is no feature
        parts = [set(x[0][:, 0].tolist()) for x in (data.train, data.validation, data.test)]
        assert sum(len(part) for part in parts) == len(set.union(*parts)) == len({homes[i] for i in range(100)})
        assert [len(x[0]) for x in (data.validation, data.test)] == pytest.approx([20, 30], abs=4)
        seen.add(frozenset(parts[2]))
    assert len(seen) == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["data.split_groups=basket"], "bank.csv: data.split_groups: 'basket' must be in this table, which has the"),
        (["data.split_groups=gap"], "data.split_groups: 'gap' is missing in 2 of 100 rows"),
        (["data.split_groups=club"], r"a group has \d\d of 70 rows; parts keep their shares if none has more than 10%"),
        (["data.split_groups=age", "data.split_by=age"], "data.split_by and data.split_groups exclude each other"),
        (["data.split_groups=age", "data.name=wine", "party={}"], "data.split_groups is for tables of the parties"),
        (["data.split_by=basket"], "bank.csv: data.split_by: 'basket' must be in this table, which has the label"),
        (["data.split_by=ID"], "data.split_by: 'ID' is a category; it must have dates or numbers"),
        (["data.split_by=gap"], "data.split_by: 'gap' is missing in 2 of 100 rows"),
        (["data.split_by=age", "data.stratify=true"], "held out by one of them; set data.stratify = false"),
        (["data.split_by=age", "data.name=wine", "party={}"], "data.split_by is for tables of the parties"),
    ],
)
def test_what_rows_cannot_be_split_by(folder, changes, message):
    everyone = people() | {"gap": [None if i < 2 else i for i in range(PEOPLE)], "club": ["gold", "none"] * 60}
    write_csv(folder / "bank.csv", pick(everyone, "ID", "age", "gap", "club", "y"), list(range(100)))
    with pytest.raises(CvflError, match=message):
        loaded(folder, *changes)


def test_validation_rows_and_stratification(folder):
    data = loaded(folder, "data.validation_share=0.2", "data.test_share=0.3", "data.stratify=true").data
    sizes = [len(data.train_labels), len(data.validation_labels), len(data.test_labels)]
    assert sum(sizes) == 70
    assert sizes[1:] == pytest.approx([14, 21], abs=1)
    shares = [float(y.mean()) for y in (data.train_labels, data.validation_labels, data.test_labels)]
    assert max(shares) - min(shares) < 0.06
    assert [len(rows) for rows in data.validation] == [sizes[1]] * 2


def test_aligned_rows_need_no_ids(folder):
    everyone = people()
    write_csv(folder / "bank.csv", pick(everyone, "age", "income", "y"), list(range(PEOPLE)))
    write_csv(folder / "shop.csv", pick(everyone, "basket"), list(range(PEOPLE)))
    changes = ["data.alignment=aligned", "party.shop.table=shop.csv", "data.prepare.scale=none"]
    values = load_config(folder / "fed.toml", changes).model_dump()
    values["data"]["id"] = None
    result = load_data(parse_config(values))
    assert result.aligned is None
    bank, shop = (torch.cat([result.data.train[i], result.data.test[i]]) for i in (0, 1))
    assert {(float(b[0]), round(float(s[0]), 2)) for b, s in zip(bank, shop, strict=True)} == set(
        zip(map(float, everyone["age"]), everyone["basket"], strict=True)
    )


def test_aligned_tables_of_different_length(folder):
    with pytest.raises(DataError, match=r"same length \(bank 100, shop 90 rows\)"):
        loaded(folder, "data.alignment=aligned")


def test_padded_ids_and_the_way_out(folder):
    columns = people()
    columns["ID"] = [f"{i:05d}" for i in range(PEOPLE)]
    write_csv(folder / "bank.csv", pick(columns, "ID", "age", "y"), list(range(100)))
    columns["ID"] = list(range(PEOPLE))
    write_csv(folder / "shop.csv", pick(columns, "ID", "basket"), list(range(30, 120)))
    with pytest.raises(DataError, match="ids of bank are padded with zeros"):
        loaded(folder, "party.shop.table=shop.csv")
    assert loaded(folder, "party.shop.table=shop.csv", "party.bank.id_type=integer").aligned.common == 70


def test_training_writes_what_a_party_needs_to_use_its_model(folder):
    out = folder / "run"
    result = train(load_config(folder / "fed.toml", ["data.validation_share=0.2"]), out=out)
    assert result.summary["completed"]
    summary = json.loads((out / "summary.json").read_text())
    assert summary["alignment"]["common"] == 70
    assert summary["alignment"]["rows"] == {"bank": 100, "shop": 90}
    assert summary["bytes"]["alignment"] > 2 * 190 * 33  # each id under two keys
    assert summary["classes"] == ["late", "paid"]
    assert sum(summary["rows"].values()) == 70
    assert 0 <= summary["metrics"]["validation"]["roc_auc"] <= 1
    history = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    best = max((line for line in history if "validation" in line), key=lambda line: line["validation"]["roc_auc"])
    assert summary["best"]["validation"] == best["validation"]
    assert summary["best"]["test"] == best["test"]
    for name in ("bank", "shop"):
        assert Preparation.load(out / "parameters" / f"{name}.preparation").kinds


def test_law_8_no_id_feature_or_label_is_in_a_frame(folder, monkeypatch):
    from cvfl.runtime.meter import Meter  # noqa: PLC0415

    frames: list[bytes] = []
    counted = Meter.add

    def add(self, m, direction, frame):
        frames.append(bytes(frame))
        counted(self, m, direction, frame)

    monkeypatch.setattr(Meter, "add", add)
    train(load_config(folder / "fed.toml"))
    everything = b"".join(frames)
    assert len(frames) > 20
    for text in [*people()["ID"], "late", "paid", "Bonn", "Kiel"]:
        assert len(text) < 4 or text.encode() not in everything  # type: ignore[attr-defined]


def test_embedded_categories_train(folder):
    result = train(load_config(folder / "fed.toml", ["data.prepare.categories=embedding", "data.prepare.rare=0.01"]))
    assert any("vectors" in name for name, _ in result.models["shop"].named_parameters())
    assert not any("vectors" in name for name, _ in result.models["bank"].named_parameters())


def test_a_party_may_have_its_own_model_and_compressor(folder):
    changes = ["party.shop.model.width=3", "party.shop.model.hidden=[5]", "party.shop.compressor=scalar:bits=2"]
    result = train(load_config(folder / "fed.toml", changes))
    shapes = {name: [tuple(p.shape) for p in model.parameters()] for name, model in result.models.items()}
    assert shapes["shop"][-2:] == [(3,), (1, 3)]  # and its part of the server model's first layer
    assert shapes["bank"][-2:] == [(16,), (1, 16)]


def test_three_parties(folder):
    everyone = people()
    write_csv(folder / "town.csv", pick(everyone, "ID", "age"), list(range(40, 110)))
    config = load_config(folder / "fed.toml", ["party.town.table=town.csv"])
    config = config.model_copy(
        update={
            "party": config.party | {"town": config.party["town"].model_copy(update={"table": folder / "town.csv"})}
        }
    )
    assert load_data(config).aligned.common == 60


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["party.bank.label=why"], "bank: bank.csv: column 'why' is not there (known: ID, age, income, y)"),
        (["party.bank.features=['agee']"], "bank: bank.csv: column 'agee' is not there; did you mean 'age'?"),
        (["party.bank.features=['lab_*']"], "bank.csv"),
        (["party.bank.id=id"], "bank.csv"),
        (["party.bank.table=bnk.csv"], "did you mean 'bank.csv'?"),
        (["party.bank.exclude=['age', 'income']"], "bank: bank.csv: no feature column is left beside ID, y"),
        (["party.bank.types.income=date"], "income"),
        (["data.id=nobody"], "'nobody'"),
        (["party.bank.positive=never"], "no class 'never' (known: late, paid)"),
    ],
)
def test_mistakes_in_a_section_are_one_line(folder, changes, message):
    with pytest.raises(CvflError) as caught:
        loaded(folder, *changes)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


GOOD = {"step_size": {"eta": 0.1}, "epochs": 1, "data": {"id": "ID"}}
TABLE = {"table": "bank.csv"}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "give data.name, or a section [party.NAME] with a table for every party"),
        ({"party": {"bank": {}}}, "party.bank has no table; give table, or url and query"),
        ({"party": {"bank": TABLE}}, "exactly one party holds the label, not none"),
        (
            {"party": {"bank": TABLE | {"label": "y"}, "shop": TABLE | {"label": "y"}}},
            "exactly one party holds the label, not bank and shop",
        ),
        ({"party": {"server": TABLE | {"label": "y"}}}, "is not 'server'"),
        ({"party": {"a b": TABLE | {"label": "y"}}}, "party.a b: a party's name has letters"),
        ({"party": {"bank": {"url": "sqlite://"}}}, "url and query belong together"),
        ({"party": {"bank": TABLE | {"url": "sqlite://", "query": "q"}}}, "either a table or a url"),
        ({"party": {"bank": TABLE | {"tabel": 1}}}, "unknown key 'party.bank.tabel'; did you mean 'table'?"),
        (
            {"party": {"bank": TABLE | {"model": {"widht": 1}}}},
            "unknown key 'party.bank.model.widht'; did you mean 'width'?",
        ),
        (
            {"party": {"bank": TABLE | {"label": "y", "compressor": "scalr"}}},
            "party.bank.compressor: unknown compressor",
        ),
        ({"data": {"name": "digits"}, "party": {"bank": TABLE}}, "data.name = 'digits' and a table of party 'bank'"),
        ({"data": {"test_share": 0.5, "validation_share": 0.5}}, "leave no row to train on"),
    ],
)
def test_sections_that_do_not_fit_are_one_line(values, message):
    with pytest.raises(ConfigError) as caught:
        load_data(parse_config(GOOD | values))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_section_for_nobody():
    config = parse_config(GOOD | {"data": {"name": "digits"}, "party": {"hospitl": {"compressor": "identity"}}})
    with pytest.raises(ConfigError, match=r"party\.hospitl: no such party; did you mean 'hospital'"):
        train(config)


def test_sections_of_a_built_in_data_set():
    config = parse_config(
        {
            "data": {"name": "wine", "parties": 2},
            "step_size": {"eta": 0.1},
            "rounds": 1,
            "batch_size": 8,
            "party": {"bank": {"model": {"name": "linear", "width": 2}}},
        }
    )
    assert [model.width for model in map(config.model_of, ("hospital", "bank"))] == [16, 2]
    assert train(config).summary["rounds"] == 1


def test_a_password_is_in_no_record():
    party = {"url": "postgresql://me:hunter2@host/db", "query": "select 1", "label": "y"}
    config: RunConfig = parse_config(GOOD | {"party": {"bank": party}})
    assert "hunter2" not in json.dumps(config.model_dump(mode="json"))
    assert config.model_dump()["party"]["bank"]["url"] == "postgresql://me:***@host/db"
    assert config.party["bank"].url == party["url"]


ADDRESSES = {
    "postgresql://me:hunter2@host/db": "postgresql://me:***@host/db",
    "postgresql://me:hunter2@host:5432/db?sslmode=require": "postgresql://me:***@host:5432/db?sslmode=require",
    "postgresql://host/db?user=me&password=hunter2": "postgresql://host/db?password=***&user=***",
    "postgresql://me@host/db?sslpassword=hunter2": "postgresql://me@host/db?sslpassword=***",
    "postgresql://me:hunter2@x@host/db": "postgresql://me:***@host/db",
    "postgresql://me:x@hunter2@host/db?password=hunter2": "postgresql://me:***@host/db",
    "postgresql://me:x/hunter2@host/db": "postgresql://me:***@host/db",
    "postgresql://me:x@y/hunter2@host/db": "postgresql://me:***@host/db",
    "postgresql://me:x?hunter2@host/db": "postgresql://me:***@host/db",
    "postgresql://me:x:hunter2@host/db": "postgresql://me:***@host/db",
    "postgresql://me@corp:hunter2@host/db": "postgresql://***:***@host/db",
    "postgresql://:hunter2@host/db": "postgresql://:***@host/db",
    "mssql+pyodbc:///?odbc_connect=DRIVER%3Dx%3BPWD%3Dhunter2": "mssql+pyodbc:///?odbc_connect=***",
    "sqlite:///people@home.db": "sqlite:///people%40home.db",
    "postgresql://me:hunter2@host:no-port/db": "postgresql://***",
    "hunter2": "***",
}


@pytest.mark.parametrize("address", ADDRESSES)
def test_an_awkward_address_keeps_its_secrets(address):
    party = {"url": address, "query": "select 1", "label": "y"}
    config: RunConfig = parse_config(GOOD | {"party": {"bank": party}})
    assert config.model_dump()["party"]["bank"]["url"] == ADDRESSES[address]
    assert "hunter2" not in config.model_dump_json()
    assert config.party["bank"].url == address
