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
    refused = CliRunner().invoke(app, [words[0], str(plain), *words[2:]], terminal_width=300)
    assert refused.exit_code != 0
    said = (
        "the table of bank is missing; this model needs every party: one that was trained with [absence] rate does not"
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
