"""A prediction as operators run it: every role a process of its own, over gRPC with mutual TLS."""

from __future__ import annotations

import json
import re
import time
import tomllib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pytest
from typer.testing import CliRunner

from conformance.cases import write_config
from conformance.processes import Processes
from cvfl.cli import app
from cvfl.federation.consent import FILE, approve, consent_of
from cvfl.federation.processes import train_grpc
from cvfl.federation.train import train
from cvfl.runs.actions import NAME, read_actions
from cvfl.serving.bundles import read_bundles
from cvfl.serving.predict import Predictor
from serving import tables

pytestmark = pytest.mark.usefixtures("no_pages")


class Predicting(Processes):
    """`cvfl server --predict` and `cvfl party --predict`, with what they print."""

    def __init__(self, folder: Path, config, run: Path) -> None:
        super().__init__(config, folder)
        self.run, self.config = run, config
        self.more: dict[str, list[str]] = {}

    def options(self, role: str) -> list[str]:
        out = [] if role == "server" else ["--out", f"{role}.csv"]
        return ["--predict", "--model", str(self.run), *out, *self.more.get(role, [])]

    def said(self, role: str) -> list[dict[str, Any]]:
        path = self.folder / f"{role}.out"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def end_well(self, seconds: float = 120.0) -> None:
        until = time.monotonic() + seconds
        for role, child in self.children.items():
            assert child.wait(max(0.1, until - time.monotonic())) == 0, (self.folder / f"{role}.err").read_text()


def prepared(tmp_path, rows=200, **changes):
    run = train(tables.config(tables.write(tables.frames(), tmp_path / "in"), **changes), out=tmp_path / "run").path
    found = tables.frames(first=1000, rows=rows)
    new = {"bank": found["bank"].drop_columns("target").slice(4), "shop": found["shop"].slice(3)}
    paths = tables.write(new, tmp_path / "new")
    expected = pa.Table.from_batches(Predictor(read_bundles([run])).of_tables(paths))
    return Predicting(tmp_path, tables.config(paths, **changes), run), expected


@pytest.mark.slow
def test_scores_are_written_where_the_label_was_and_nowhere_else(tmp_path):
    roles, expected = prepared(tmp_path)
    with roles:
        for role in ("server", "bank", "shop"):
            roles.start(role)
        roles.end_well()
    assert pyarrow.csv.read_csv(tmp_path / "bank.csv").to_pydict() == expected.to_pydict()
    assert not (tmp_path / "shop.csv").exists()
    (counted,) = [event for event in roles.said("server") if event["event"] == "predicted"]
    assert counted["rows"] == 193
    # Two embeddings of four floats a row, a score and a class of eight bytes each; frames and packets have a few more.
    assert 193 * 48 < counted["prediction_bytes"] < 193 * 48 + 100


OWN = {"labels": "bank", "label_epsilon": 3.0, "private_model": True}


@pytest.mark.slow
def test_consent_to_training_is_none_to_predictions_and_every_role_keeps_a_log(tmp_path):
    roles, expected = prepared(tmp_path)
    approve(tmp_path / FILE, "shop", consent_of(roles.config, "shop", ["bank", "shop"], ["spent"], {}))
    roles.more = {"shop": ["--set", "consent.required=true"]}
    with roles:
        roles.start("shop")
        assert roles.children["shop"].wait(60) == 2
        line = "error: shop: nobody has approved the terms of predictions of new rows, which consent.required asks for"
        assert roles.errors("shop").startswith(line)
        for role in ("server", "bank"):
            roles.start(role)
        roles.more = {"shop": [*roles.more["shop"], "--approve"]}
        roles.start("shop", answer=b"y\n")
        roles.end_well()
    shown = (tmp_path / "shop.out").read_text()
    assert shown.startswith("Terms of predictions of new rows, for the owner of shop:")
    assert pyarrow.csv.read_csv(tmp_path / "bank.csv").to_pydict() == expected.to_pydict()
    assert [*tomllib.loads((tmp_path / FILE).read_text())] == ["party", "predict"]
    for role in ("server", "bank", "shop"):
        place = tmp_path / "state" / "fed" / f"predict-{role}"
        lines = list(read_actions(place / NAME))
        assert (place / NAME).stat().st_mode & 0o777 == 0o600
        last = lines[[line["event"] for line in lines].index("predicted")]
        assert [*last["rows"].values()] == [193]
        assert (lines[-1]["event"], lines[-1]["rows"]) == ("ended", 193)
    events = [line["event"] for line in read_actions(tmp_path / "state" / "fed" / "predict-shop" / NAME)]
    assert events[:4] == ["started", "started", "approved", "joined"]
    shown = CliRunner().invoke(app, ["log", "show", str(tmp_path / "state" / "fed" / "predict-shop")]).stdout
    assert re.search(r"started role shop use predict run \w{16} cvfl \S+ terms \w{16}\n", shown)
    assert re.search(r"predicted rows 193 by run \w{16} sent server: 1 Prediction [\d,]+ B\n", shown)


@pytest.mark.parametrize(
    "privacy",
    [pytest.param(one, marks=pytest.mark.slow) for one in ({}, {"labels": "bank"}, OWN)],
    ids=["shared", "bank", "private model"],
)
def test_roles_that_trained_apart_leave_what_one_process_leaves(privacy, tmp_path):
    """The same models over gRPC, and so the same scores; the names of classes come from the party with the label."""
    paths = tables.write(tables.frames(), tmp_path / "in")
    config = tables.config(paths, privacy=privacy)
    here = train(config, out=tmp_path / "here", workers=1).path
    train_grpc(write_config(tmp_path / "fed.toml", config), [], tmp_path / "apart", lambda event: None)
    expected, found = (
        pa.Table.from_batches(Predictor(read_bundles([run])).of_tables(paths)) for run in (here, tmp_path / "apart")
    )
    assert found.equals(expected)
    assert set(found["class"].to_pylist()) == {"no", "yes"}


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["bank", "shop", "server"])
def test_a_role_that_is_killed_comes_back_to_the_same_scores(killed, tmp_path):
    roles, expected = prepared(tmp_path, rows=4000, privacy={"labels": "bank"})
    with roles:
        for role in ("server", "bank", "shop"):
            roles.start(role)
        until = time.monotonic() + 60
        while not any(event["event"] == "blinded" for event in roles.said("shop")):
            assert time.monotonic() < until
            time.sleep(0.01)
        roles.children[killed].kill()
        roles.children[killed].wait()
        roles.start(killed)
        roles.end_well()
    assert pyarrow.csv.read_csv(tmp_path / "bank.csv").to_pydict() == expected.to_pydict()
