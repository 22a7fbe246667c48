"""Scores of rows that not every party holds: with a model that was prepared for it, and refused without."""

from __future__ import annotations

import json
import shutil

import pyarrow as pa
import pyarrow.csv
import pytest
import torch
from typer.testing import CliRunner

import cvfl
from cvfl.cli import app
from cvfl.errors import DataError
from cvfl.federation.train import train
from cvfl.protocol.absence import StandIns
from cvfl.runs.bundle import read_bundle
from cvfl.serving.bundles import read_bundles, start_from
from cvfl.serving.predict import Predictor
from serving import tables

pytestmark = pytest.mark.usefixtures("no_pages")
OUTER = {"id": "person", "test_share": 0.2, "alignment": "outer"}
AUTO = {"compressor": "auto", "server_compressor": "auto", "rounds": 20}


def trained(folder, rate):
    config = tables.config(tables.write(tables.frames(), folder / "in"), **AUTO, absence={"rate": rate})
    return train(config, out=folder / "run", workers=1).path


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("prepared"), 0.3)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("plain"), 0.0)


@pytest.fixture
def new():
    found = tables.frames(first=1000, rows=30)
    return {"bank": found["bank"].drop_columns("target"), "shop": found["shop"]}


def scores(run, frames, folder) -> pa.Table:
    return pa.Table.from_batches(Predictor(read_bundles([run])).of_tables(tables.write(frames, folder)))


def by_person(found: pa.Table) -> dict[str, tuple[float, str]]:
    columns = found["person"].to_pylist(), found["score"].to_pylist(), found["parties"].to_pylist()
    return {person: (score, parties) for person, score, parties in zip(*columns, strict=True)}


def test_everybody_whom_one_party_holds_has_the_score_of_those_who_hold_them(run, new, tmp_path):
    both, bank, shop = (
        by_person(scores(run, {name: new[name] for name in names}, tmp_path / "-".join(names)))
        for names in (["bank", "shop"], ["bank"], ["shop"])
    )
    assert {parties for _, parties in both.values()} == {"bank, shop"}
    assert {parties for _, parties in bank.values()} == {"bank"}
    assert {parties for _, parties in shop.values()} == {"shop"}
    assert all(len({one[person][0] for one in (both, bank, shop)}) == 3 for person in both)
    mixed = {"bank": new["bank"].slice(0, 20), "shop": new["shop"].slice(0, 20)}  # the shop has them in reverse order
    found = scores(run, mixed, tmp_path / "mixed")
    assert found["person"].to_pylist()[:20] == mixed["bank"]["person"].to_pylist()
    assert len(found) == 30
    held = {name: set(table["person"].to_pylist()) for name, table in mixed.items()}
    for person, one in by_person(found).items():
        expected = {(True, True): both, (True, False): bank, (False, True): shop}
        assert one == expected[person in held["bank"], person in held["shop"]][person]


def test_the_command_and_the_frames(run, plain, new, tmp_path):
    paths = tables.write(new, tmp_path)
    words = ["predict", str(run), "--party", f"shop={paths['shop']}", "--out", str(tmp_path / "scores.csv")]
    done = CliRunner().invoke(app, words, terminal_width=300)
    assert done.exit_code == 0, done.output
    written = pyarrow.csv.read_csv(tmp_path / "scores.csv")
    assert written.column_names == ["person", "score", "class", "parties"]
    frames = cvfl.load_run(run).predict({"shop": new["shop"]})
    assert written["score"].to_pylist() == frames["score"].to_pylist()
    refused = CliRunner().invoke(
        app, [words[0], str(plain), *words[2:-1], str(tmp_path / "other.csv")], terminal_width=300
    )
    assert refused.exit_code != 0
    said = (
        "the table of bank is missing; this model needs every party: one that was trained with absence.rate, or with "
        'data.alignment = "outer", does not'
    )
    assert said in " ".join(refused.output.split())
    with pytest.raises(DataError, match="no table is given"):
        scores(run, {}, tmp_path)


def test_a_party_that_is_gone_needs_no_bundle(run, plain, new, tmp_path):
    for source, name in ((run, "prepared"), (plain, "plain")):
        shutil.copytree(source, tmp_path / name)
        for file in (tmp_path / name / "parameters").glob("shop.*"):
            file.unlink()
    bank = {"bank": new["bank"]}
    alone = scores(tmp_path / "prepared", bank, tmp_path)
    assert alone.equals(scores(run, bank, tmp_path))
    with pytest.raises(DataError, match="the bundle of shop is missing, but its rows are given"):
        scores(tmp_path / "prepared", new, tmp_path)
    with pytest.raises(DataError, match="the bundle of shop is missing; each party has its own"):
        scores(tmp_path / "plain", bank, tmp_path)


def test_the_bundle_says_that_it_was_prepared_and_older_ones_are_read(run, plain):
    path = run / "parameters" / "server.model.json"
    assert read_bundle(path).stand_ins
    older = plain / "parameters" / "server.model.json"
    values = json.loads(older.read_text(encoding="utf-8"))
    assert values.pop("stand_ins") is False
    older.write_text(json.dumps(values), encoding="utf-8")
    assert not read_bundle(older).stand_ins
    assert "parties" not in Predictor(read_bundles([plain])).server.names


@pytest.fixture(scope="module")
def outer(tmp_path_factory):
    """The shop lacks the first rows of the bank, which has all: what stands for the bank is never trained."""
    folder = tmp_path_factory.mktemp("outer")
    found = tables.frames()
    paths = tables.write(found | {"shop": found["shop"].slice(0, 200)}, folder / "in")
    return train(tables.config(paths, **AUTO, data=OUTER), out=folder / "run", workers=1).path


def untold(run, folder):
    """The same run with a bundle of a version that did not say what was learned."""
    shutil.copytree(run, folder)
    path = folder / "parameters" / "server.model.json"
    values = json.loads(path.read_text(encoding="utf-8"))
    assert values.pop("learned") == ["shop"]
    path.write_text(json.dumps(values), encoding="utf-8")
    return folder


@pytest.mark.parametrize("told", [True, False])
def test_nothing_stands_for_a_party_that_every_row_of_training_had(told, outer, new, tmp_path):
    run = outer if told else untold(outer, tmp_path / "run")
    predictor = Predictor(read_bundles([run]))
    assert predictor.needed == ("bank",)
    assert not predictor._model.v[0].any()
    mixed = {"bank": new["bank"].slice(0, 20), "shop": new["shop"].slice(0, 20)}
    found = pa.Table.from_batches(predictor.of_tables(tables.write(mixed, tmp_path)))
    assert found["person"].to_pylist() == mixed["bank"]["person"].to_pylist()
    assert set(found["parties"].to_pylist()) == {"bank", "bank, shop"}
    assert predictor.notes == [
        "left out, since this model needs bank: 10 of 30 rows; train with absence.rate to do without"
    ]
    with pytest.raises(DataError, match="the table of bank is missing; this model needs bank, whom every row of its"):
        scores(run, {"shop": new["shop"]}, tmp_path)
    apart = {"bank": new["bank"].slice(0, 15), "shop": new["shop"].slice(0, 15)}
    assert len(scores(run, apart, tmp_path)) == 15


def test_where_every_party_had_all_rows_of_training_all_are_needed(new, tmp_path):
    paths = tables.write(tables.frames(), tmp_path / "in")
    run = train(tables.config(paths, **AUTO | {"rounds": 1}, data=OUTER), out=tmp_path / "run", workers=1).path
    apart = {name: table.slice(0, 15) for name, table in new.items()}  # nobody is in both
    with pytest.raises(DataError, match="none of 30 rows has a score: this model needs bank and shop; train with"):
        scores(run, apart, tmp_path)


def test_what_was_learned_before_counts_in_the_run_that_goes_on(run, tmp_path):
    paths = tables.write(tables.frames(), tmp_path / "in")
    config = tables.config(paths, **AUTO | {"rounds": 1}, data=OUTER)
    after = train(config, start=start_from(run), out=tmp_path / "run", workers=1).path
    assert read_bundle(run / "parameters" / "server.model.json").learned == ("bank", "shop")
    assert read_bundle(after / "parameters" / "server.model.json").learned == ("bank", "shop")


def test_tensors_of_some_parties():
    x = torch.linspace(-1, 1, 400).reshape(100, 4)
    federation = cvfl.Federation.from_tensors({"a": x[:, :2], "b": x[:, 2:]}, (x.sum(1) > 0).float())
    fitted = federation.fit(rounds=10, absence={"rate": 0.3})
    found = fitted.predict({"b": x[:5, 2:]})
    assert found["parties"].to_pylist() == ["b"] * 5


@pytest.mark.parametrize(("before", "after"), [(0.0, 0.3), (0.3, 0.0), (0.3, 0.3)])
def test_a_run_goes_on_from_one_that_was_prepared_or_not(before, after, run, plain, tmp_path):
    source = run if before else plain
    paths = tables.write(tables.frames(), tmp_path / "in")
    config = tables.config(paths, **AUTO | {"rounds": 1}, step_size={"eta": 1e-9}, absence={"rate": after})
    model = train(config, start=start_from(source), workers=1).models["server"]
    old = Predictor(read_bundles([source]))._model
    assert isinstance(model, StandIns) == (after > 0)
    inner, earlier = (one.inner if isinstance(one, StandIns) else one for one in (model, old))
    assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(inner.parameters(), earlier.parameters(), strict=True))
    if before and after:
        assert isinstance(model, StandIns)
        assert isinstance(old, StandIns)
        assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(model.v, old.v, strict=True))
