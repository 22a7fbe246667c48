"""A run that starts from an earlier one: its weights and preparation, what is refused, a party that joins, restarts."""

from __future__ import annotations

import itertools
import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

import cvfl
from cvfl.config.schema import RunConfig
from cvfl.data.tables.prepare import Preparation
from cvfl.errors import ConfigError, DataError
from cvfl.federation.builder.machines import make_federation
from cvfl.federation.builder.recipe import recipe_for
from cvfl.federation.roles import PartyRun
from cvfl.federation.rows.load import load_data
from cvfl.federation.train import train
from cvfl.rng import stream
from cvfl.serving.bundles import read_bundles, start_from
from cvfl.serving.embed import at_rest
from cvfl.serving.predict import Predictor
from serving import tables

pytestmark = pytest.mark.usefixtures("no_pages")
STILL: dict[str, Any] = {"step_size": {"eta": 1e-30}, "optimizer": {"name": "sgd"}, "rounds": 1, "epochs": None}
"""One round that changes no weight, since no bit of it is that small."""
PLAIN = {"decision": {"calibration": "none"}}
"""Scores that do not depend on validation rows, which are others every month."""


def month(folder: Path, first: int, kind: str = "binary", **changes: Any) -> RunConfig:
    """A month of rows: people first, first + 1, ..."""
    return tables.config(tables.write(tables.frames(kind, first=first), folder / f"from-{first}"), **changes)


def joined(folder: Path, first: int, front: bool = False, **changes: Any) -> RunConfig:
    """The same month with a third party, a clinic, at the end or in front."""
    paths = tables.write(tables.frames(first=first), folder / f"from-{first}")
    ids = [f"p{first + n}" for n in range(tables.ROWS)]
    age = stream(first, "clinic").uniform(tables.ROWS) * 80
    clinic = tables.write({"clinic": pa.table({"person": ids, "age": age})}, folder / f"from-{first}")["clinic"]
    party = dict(tables.config(paths).model_dump(mode="json", exclude_defaults=True)["party"])
    new = {"clinic": {"table": str(clinic)}}
    return tables.config(paths, party=new | party if front else party | new, **changes)


@pytest.fixture(scope="module", params=["binary", "several", "quantity"])
def april(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    folder = tmp_path_factory.mktemp(request.param)
    train(month(folder, 0, request.param, **PLAIN), out=folder / "april", workers=1)
    return request.param, folder


@pytest.fixture(scope="module")
def binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("binary")
    train(month(folder, 0), out=folder / "april", workers=1)
    return folder


def test_the_first_models_are_the_last_ones_of_the_earlier_run(april: tuple[str, Path], tmp_path: Path) -> None:
    """Weights are kept to the bit, and new rows have the scores that a prediction gives them."""
    kind, folder = april
    before = json.loads((folder / "april" / "summary.json").read_text())
    config, start = month(folder, 1000, kind, **STILL, **PLAIN), start_from(folder / "april")
    after = train(config, out=tmp_path / "may", workers=1, start=start)
    assert after.summary["parameters"] == before["parameters"]
    assert after.summary["started_from"] == {"run": before["run"], "path": str(folder / "april")}
    assert after.summary["units"] == before["units"]
    paths = {name: section.table for name, section in config.party.items()}
    told = [pa.Table.from_batches(Predictor(read_bundles([run])).of_tables(paths)) for run in
            (folder / "april", tmp_path / "may")]  # fmt: skip
    column = {"binary": "score", "several": "score_high", "quantity": "value"}[kind]
    was, now = (table[column].to_numpy() for table in told)
    assert len(np.unique(was)) > 10
    assert (was == now).all()


def test_columns_become_numbers_as_they_did(april: tuple[str, Path]) -> None:
    kind, folder = april
    config, start = month(folder, 1000, kind), start_from(folder / "april")
    fresh, warm = load_data(config), load_data(config, start=start)
    was = Preparation.load(folder / "april" / "parameters" / "bank.preparation")
    assert warm.assembled.preparations["bank"] == was
    assert fresh.assembled.preparations["bank"] != was
    if kind == "quantity":
        assert warm.data.units == start.server.units != fresh.data.units
        own = [data.train_labels * data.units.scale + data.units.offset for data in (warm.data, fresh.data)]
        assert torch.allclose(*own)


def test_a_category_that_was_not_there_is_taken_as_in_a_prediction(binary: Path, tmp_path: Path) -> None:
    frames = tables.frames(first=1000)
    shop = frames["shop"].set_column(3, "channel", pa.array(["telephone"] * tables.ROWS))
    config = tables.config(tables.write(frames | {"shop": shop}, tmp_path / "may"))
    start = start_from(binary / "april")
    loaded = load_data(config, start=start)
    line = (
        f"shop: shop.csv: column 'channel' has categories that {start.place} never saw: telephone; they are taken as "
        "none of those that it knows; train afresh to tell them apart"
    )
    assert loaded.notes == (line,)
    with ExitStack() as stack:
        logged = line.replace("telephone; they", "1 of them, which")  # no value of a table is in a log
        assert PartyRun(config, "shop", tmp_path / "shop", stack, start=start).notes == (logged,)
    data = loaded.data
    assert data.train[1].shape[1] == start.parties["shop"].shape[0]
    assert train(config, data, start=start, workers=1).summary["completed"]
    assert load_data(tables.config(tables.write(tables.frames(first=7), tmp_path / "same")), start=start).notes == ()


SECURE = {"aggregation": "secure"}


@pytest.mark.parametrize(
    "mode",
    [
        {"algorithm": 2, "privacy": {"labels": "bank"}},
        {"privacy": SECURE, "server_model": {"name": "sum"}, "compressor": "scalar:bits=8,low=-1,high=1"},
        {"privacy": {"clip": 0.5}, "first_layer": "parties"},
    ],
)
def test_every_mode_starts_from_its_own_models(tmp_path: Path, mode: dict[str, Any]) -> None:
    first = train(month(tmp_path, 0, **mode | {"rounds": 3, "epochs": None}), out=tmp_path / "april", workers=1)
    start = start_from(tmp_path / "april")
    again = train(month(tmp_path, 1000, **mode | STILL), start=start, workers=1)
    assert again.summary["parameters"] == first.summary["parameters"]


def test_a_run_repeats_and_learns(binary: Path) -> None:
    config, start = month(binary, 1000), start_from(binary / "april")
    one, two = (train(config, start=start, workers=1).summary for _ in range(2))
    assert one["parameters"] == two["parameters"] != train(config, workers=1).summary["parameters"]


@pytest.mark.parametrize("compressor", ["identity", "auto"])
def test_a_run_that_was_stopped_ends_in_the_same_bits(binary: Path, tmp_path: Path, compressor: str) -> None:
    start = start_from(binary / "april")
    config = month(binary, 1000, compressor=compressor, server_compressor=compressor, first_layer="server")
    whole = train(config, start=start, workers=1)

    def stop(progress: Any) -> None:
        if progress.report.t0 == 4:
            raise OSError("no power")

    with pytest.raises(OSError, match="no power"):
        train(config, out=tmp_path / "may", on_round=stop, keep_seconds=0, workers=1, start=start)
    with pytest.raises(ConfigError, match=rf"was begun from run {start.server.run}; start from that again"):
        train(config, out=tmp_path / "may", resume=True, workers=1)
    result = train(config, out=tmp_path / "may", resume=True, workers=1, start=start)
    assert result.summary["parameters"] == whole.summary["parameters"]
    assert result.summary["bytes"] == whole.summary["bytes"]


def test_a_run_begun_afresh_does_not_go_on_from_another(binary: Path, tmp_path: Path) -> None:
    config = month(binary, 1000)

    def stop(progress: Any) -> None:
        raise OSError("no power")

    with pytest.raises(OSError, match="no power"):
        train(config, out=tmp_path / "may", on_round=stop, keep_seconds=0, workers=1)
    (tmp_path / "may" / "state").mkdir(parents=True, exist_ok=True)
    (tmp_path / "may" / "config.json").write_text(json.dumps(config.model_dump(mode="json")))
    with pytest.raises(ConfigError, match="was begun without an earlier run"):
        train(config, out=tmp_path / "may", resume=True, workers=1, start=start_from(binary / "april"))


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"party_model": {"width": 5, "hidden": [8]}}, "bank: width of its model: 5 here, 4 in .*; set it back"),
        ({"party_model": {"width": 4, "hidden": [9]}}, r"bank: hidden of its model: \[9\] here, \[8\] in .*"),
        ({"party_model": {"width": 4, "name": "linear"}}, "bank: name of its model: 'linear' here, 'mlp' in .*"),
        ({"server_model": {"name": "mlp", "hidden": [4]}}, "server: name of its model: 'mlp' here, 'linear' in .*"),
        ({"precision": "float64"}, "precision: 'float64' here, 'float32' in .*"),
        ({"privacy": {"clip": 0.5}}, "privacy.clip: 0.5 here, None in .*"),
        ({"first_layer": "parties"}, "first_layer: in .* it was with the server; set first_layer = 'server'"),
    ],
)
def test_another_model_is_refused_by_name(binary: Path, changes: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        train(month(binary, 1000, **changes), start=start_from(binary / "april"), workers=1)


def changed(folder: Path, name: str, table: pa.Table) -> RunConfig:
    return tables.config(tables.write(tables.frames(first=1000) | {name: table}, folder / "may"))


def test_other_columns_and_classes_are_refused_by_name(binary: Path, tmp_path: Path) -> None:
    start, new = start_from(binary / "april"), tables.frames(first=1000)
    bank, shop = new["bank"], new["shop"]
    target = bank.column_names.index("target")
    maybe = ["maybe" if n % 3 else "no" for n in range(tables.ROWS)]
    cases = [
        ("bank", bank.drop_columns("debt"), "missing, but in .*: debt; add what is missing, or train without"),
        ("shop", shop.append_column("age", shop["spent"]), "not in .*: age; add to exclude what is new, or train"),
        ("bank", bank.set_column(target, "target", pa.array(maybe)), "has the classes maybe, no, .* no, yes; take"),
        ("bank", bank.set_column(target, "target", bank["income"]), "is squared, in .* it was binary; take that"),
    ]
    for name, table, line in cases:
        with pytest.raises(DataError, match=line):
            train(changed(tmp_path, name, table), start=start, workers=1)


def test_classes_keep_the_order_of_the_earlier_run(tmp_path: Path) -> None:
    """As of a run that sorted them with case, or that was told which one is positive; a word said now wins."""

    def positive(first: int, name: str) -> RunConfig:
        config = month(tmp_path, first)
        bank = config.party["bank"].model_copy(update={"positive": name})
        return config.model_copy(update={"party": config.party | {"bank": bank}})

    run = train(positive(0, "no"), out=tmp_path / "april", workers=1)
    assert run.summary["classes"] == ["yes", "no"]
    start = start_from(tmp_path / "april")
    loaded = load_data(month(tmp_path, 1000), start=start)
    assert loaded.assembled.classes == ("yes", "no")
    assert loaded.label == "label 'target': 'no' is the positive class, 'yes' the other"
    fresh = load_data(month(tmp_path, 1000))
    assert fresh.assembled.classes == ("no", "yes")
    assert torch.equal(loaded.data.train_labels, 1 - fresh.data.train_labels)
    with pytest.raises(DataError, match=r"has the classes no, yes, in .* there were yes, no; take the same"):
        load_data(positive(1000, "yes"), start=start)


def test_a_party_that_left_is_refused(binary: Path) -> None:
    bank = tables.frames(first=1000)["bank"]
    path = tables.write({"bank": bank}, binary / "alone")["bank"]
    config = tables.config({"bank": path, "shop": path}, party={"bank": {"table": str(path), "label": "target"}})
    with pytest.raises(ConfigError, match=r"party shop of .* is missing; a party may join, but not leave"):
        train(config, start=start_from(binary / "april"), workers=1)


SERVER_MODELS = [
    {"server_model": {"name": "linear"}},
    {"server_model": {"name": "linear"}},
    {"server_model": {"name": "mlp", "hidden": [6]}},
    {"server_model": {"name": "wide_deep", "hidden": [6]}},
    {"server_model": {"name": "sum", "hidden": [6]}},
    {"server_model": {"name": "attention", "hidden": [6]}},
    {"server_model": {"name": "linear"}, "first_layer": "parties"},
]


@pytest.mark.parametrize(("model", "front"), list(zip(SERVER_MODELS, itertools.cycle([False, True]), strict=False)))
def test_a_party_joins(tmp_path: Path, model: dict[str, Any], front: bool) -> None:
    """With its embedding at zero the others' outputs are those of before; its own part is that of a fresh model."""
    train(month(tmp_path, 0, rounds=4, epochs=None, **model), out=tmp_path / "april", workers=1)
    config = joined(tmp_path, 1000, front, rounds=2, epochs=None, **model)
    start = start_from(tmp_path / "april")
    data = load_data(config, start=start).data
    cold = make_federation(recipe_for(config, data), data)
    warm = make_federation(start.warmed(recipe_for(config, data), data), data)
    old = Predictor(read_bundles([tmp_path / "april"]))
    m = data.names.index("clinic")
    own = [dict(one.parties[m].models["clinic"].named_parameters()) for one in (cold, warm)]
    assert all(torch.equal(own[0][key], own[1][key]) for key in own[0])
    rows = {name: x[:20] for name, x in zip(data.names, data.train, strict=True)}
    with torch.no_grad():
        h = {party.holding.name: at_rest(party.model.eval(), rows[party.holding.name]) for party in warm.parties}
        before = {name: old.embeddings(name, rows[name]) for name in old.names}
        assert all(torch.equal(h[name], before[name]) for name in before)
        if model["server_model"]["name"] != "attention":  # whose weights are shared out among all
            silent = [h[name] if name in before else torch.zeros_like(h[name]) for name in data.names]
            outputs = at_rest(warm.server.models["server"].eval(), silent)
            assert torch.allclose(outputs, old.outputs([before[name] for name in old.names]), atol=1e-6)
    assert train(config, start=start, workers=1).summary["completed"]


class Pairs(nn.Module):
    """A server model over two parties, which does not know how to grow."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, embeddings: list[torch.Tensor]) -> torch.Tensor:
        output: torch.Tensor = self.layer(torch.stack(list(embeddings)).prod(0))
        return output


def test_a_server_model_that_cannot_grow_says_so(tmp_path: Path) -> None:
    train(month(tmp_path, 0), out=tmp_path / "april", server_model=Pairs, workers=1)
    start = start_from(tmp_path / "april")
    same = train(month(tmp_path, 1000, **STILL), server_model=Pairs, start=start, workers=1)
    assert same.summary["parameters"]["server"] == start.server.parameters
    with pytest.raises(ConfigError, match=r"server: its model in .* was a module of your own; take the same"):
        train(month(tmp_path, 1000), start=start, workers=1)
    with pytest.raises(ConfigError, match=r"server model: it cannot go on from .*parties bank, shop, with bank, shop"):
        train(joined(tmp_path, 1000), server_model=Pairs, start=start, workers=1)


def test_in_python_a_run_is_enough() -> None:
    frames = [tables.frames(first=first) for first in (0, 1000)]
    april, may = (cvfl.Federation.from_frames(each, id="person", label="bank.target") for each in frames)
    first = april.fit("identity", rounds=3, progress=False)
    second = may.fit("identity", rounds=3, progress=False, start=first)
    assert first.started_from is None
    assert second.started_from is not None
    assert second.parameters != may.fit("identity", rounds=3, progress=False).parameters
    with pytest.raises(ConfigError, match="bank: width of its model: 3 here"):  # before any process is started
        may.fit("identity", runtime="grpc", start=first, party_model={"width": 3})
    tensors = cvfl.Federation.from_tensors(
        {name: torch.randn(60, 2) for name in ("bank", "shop")}, torch.arange(60) % 2
    )
    with pytest.raises(ConfigError, match=r"bank: .* was trained on tables; give its table"):
        tensors.fit("identity", rounds=1, progress=False, start=first)


def test_tensors_go_on_from_tensors() -> None:
    x = torch.from_numpy(stream(1, "tensors").uniform(240)).float().reshape(60, 4)
    rows, labels = {"bank": x[:, :2], "shop": x[:, 2:]}, (x.sum(1) > 2).long()
    federation = cvfl.Federation.from_tensors(rows, labels)
    first = federation.fit("identity", rounds=2, progress=False)
    still = STILL | {"rounds": 1}
    del still["epochs"]
    again = federation.fit("identity", progress=False, start=first, **still)
    assert again.parameters == first.parameters
    wide = cvfl.Federation.from_tensors(rows | {"shop": x}, labels)
    with pytest.raises(DataError, match=r"shop: rows of shape \(4,\), in .* \(2,\); take the same columns"):
        wide.fit("identity", rounds=1, progress=False, start=first)
