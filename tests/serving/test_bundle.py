"""What a role needs to predict: written at the end of a run, nothing of another role in it, and refused when mixed."""

from __future__ import annotations

import json
import shutil

import pytest
from torch import nn
from typer.testing import CliRunner

from cvfl.cli import app
from cvfl.errors import DataError
from cvfl.federation.train import train
from cvfl.runs.bundle import MODEL, PartyBundle, party_module, read_bundle, read_preparation, server_module
from cvfl.runs.directory import PARAMETERS, fingerprint
from cvfl.serving.bundles import read_bundles
from cvfl.serving.predict import Predictor
from serving import tables

pytestmark = pytest.mark.usefixtures("no_pages")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run, which tests do not change."""
    folder = tmp_path_factory.mktemp("bundle")
    config = tables.config(tables.write(tables.frames(), folder / "in"))
    return train(config, out=folder / "run", workers=1)


@pytest.fixture
def copied(run, tmp_path):
    """A copy that a test may change."""
    return shutil.copytree(run.path, tmp_path / "run")


def test_every_role_has_one(run):
    found = read_bundles([run.path])
    server, parties = found.everyone()
    assert [party.role for party in parties] == ["bank", "shop"]
    assert len({server.run, *(party.run for party in parties)}) == 1
    assert server.classes == ("no", "yes")
    assert server.decided.threshold == run.summary["threshold"]
    for role, digest in run.summary["parameters"].items():
        bundle, folder = {"server": server, **found.parties}[role], found.folders[role]
        made = party_module(bundle, folder) if isinstance(bundle, PartyBundle) else server_module(bundle, folder)
        assert fingerprint(made) == bundle.parameters == digest


def test_two_models_of_one_role_are_refused_unless_they_are_the_same(run, copied):
    """The last one named must not win."""
    assert read_bundles([run.path, copied]).server == read_bundles([run.path]).server
    for path in (copied / PARAMETERS).glob(f"*{MODEL}"):
        path.write_text(path.read_text().replace(run.summary["run"], "0" * 16))
    for places in ([run.path, copied], [copied, run.path]):
        with pytest.raises(DataError, match=r"bank.model.json: of run .*, and .*: two models of bank"):
            read_bundles(places)
    (copied / PARAMETERS / f"bank{MODEL}").unlink()
    (copied / PARAMETERS / f"server{MODEL}").unlink()
    with pytest.raises(DataError, match="two models of shop; take bundles of one run"):
        read_bundles([run.path, copied])


def test_the_schema_has_kinds_and_categories(run):
    _, (bank, shop) = read_bundles([run.path]).everyone()
    assert {name: str(column.type) for name, column in bank.columns.items()} == {
        "income": "number",
        "debt": "number",
        "since": "date",
    }
    assert shop.columns["branch"].categories == ("10", "20")
    assert bank.table is not None
    assert (bank.table.id, bank.table.label) == (("person",), "target")


def test_a_party_s_bundle_holds_nothing_of_another_role(run, tmp_path):
    """The three files of the shop name no column, value or label of the bank, and nothing of the server model."""
    alone = tmp_path / "shop"
    alone.mkdir()
    for path in (run.path / PARAMETERS).glob("shop.*"):
        shutil.copy(path, alone)
    found = read_bundles([alone])
    bundle = found.parties["shop"]
    assert found.server is None
    assert party_module(bundle, alone)
    text = (alone / f"shop{MODEL}").read_text() + read_preparation(bundle, alone).model_dump_json()
    for foreign in ("income", "debt", "since", "target", "yes", "threshold"):
        assert foreign not in text
    assert bundle.table is not None
    assert (bundle.table.label, bundle.table.classes, bundle.table.units) == (None, (), None)
    assert "spent" in text
    with pytest.raises(DataError, match="the bundle of bank is missing; each party has its own"):
        Predictor(found)


def test_show_prints_it(run):
    shown = CliRunner().invoke(app, ["model", "show", str(run.path)], terminal_width=200)
    assert shown.exit_code == 0, shown.output
    for word in ("bank", "shop", "server", "linear", "branch", "category", "no, yes", "threshold"):
        assert word in shown.output
    lines = CliRunner().invoke(app, ["model", "show", str(run.path), "--json"]).output.splitlines()
    assert [json.loads(line)["role"] for line in lines] == ["bank", "shop", "server"]


def change(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"run": "0" * 16}, "of run 0000000000000000, and that of bank is of run .*; take bundles of one run"),
        ({"terms": "0" * 16}, "shop.model.json: of other terms; that of bank is of run"),
        ({"names": ["bank", "inn"]}, "of the federation bank, inn, not of bank, shop"),
        ({"format": 2}, "shop.model.json: a bundle of format 2; this version of cvfl reads format 1"),
        ({"shape": "wide"}, "shop.model.json: party.shape: "),
        ({"columns": {}}, "shop.preparation: not the preparation that shop.model.json was written with"),
        ({"parameters": "0" * 64}, "shop.safetensors: not the weights that shop.model.json was written with"),
        ({"width": 5, "first_layer": True}, "shop.safetensors: does not hold the weights of the model of shop"),
    ],
)
def test_what_does_not_belong_together_is_refused_in_one_line(copied, values, line):
    change(copied / PARAMETERS / f"shop{MODEL}", **values)
    with pytest.raises(DataError, match=line) as caught:
        Predictor(read_bundles([copied]))
    assert "\n" not in str(caught.value)


def test_damaged_files_are_refused(copied):
    folder = copied / PARAMETERS
    (folder / "shop.safetensors").write_bytes(b"torn")
    with pytest.raises(DataError, match=r"shop\.safetensors: does not hold the weights"):
        Predictor(read_bundles([copied]))
    (folder / "shop.safetensors").unlink()
    with pytest.raises(DataError, match=r"shop\.safetensors: No such file or directory; a bundle needs its weights"):
        Predictor(read_bundles([copied]))
    (folder / f"shop{MODEL}").write_text('{"format": 1, "run')
    with pytest.raises(DataError, match="no bundle, or a damaged one"):
        read_bundle(folder / f"shop{MODEL}")


def test_a_folder_without_any_is_refused(tmp_path):
    with pytest.raises(DataError, match="no bundle is there; name a run directory"):
        read_bundles([tmp_path])


@pytest.mark.parametrize("kind", ["binary", "several", "quantity"])
def test_a_run_of_before_there_were_bundles_predicts_the_same(kind, tmp_path):
    paths = tables.write(tables.frames(kind), tmp_path / "in")
    changes = {"server_model": {"name": "mlp", "hidden": [8]}, "first_layer": "parties"}
    out = train(tables.config(paths, **changes), out=tmp_path / "run", workers=1).path
    new = list(Predictor(read_bundles([out])).of_tables(paths))
    for path in (out / PARAMETERS).glob(f"*{MODEL}"):
        path.unlink()
    assert list(Predictor(read_bundles([out])).of_tables(paths)) == new


def test_one_that_lacks_what_is_needed_says_so(copied):
    for path in (copied / PARAMETERS).glob(f"*{MODEL}"):
        path.unlink()
    change(copied / "summary.json", classes=[])
    with pytest.raises(DataError, match="neither classes nor units of the label; train it again"):
        read_bundles([copied])
    change(copied / "summary.json", classes=["no", "yes"])
    (copied / "analysis.json").unlink()
    with pytest.raises(DataError, match="the calibration of its scores was not kept; train it again"):
        read_bundles([copied])


def test_a_module_of_the_user_cannot_be_made_again(tmp_path):
    from federations import config, data  # noqa: PLC0415

    table = data(M=2)
    makers = [lambda: nn.Sequential(nn.Linear(5, 4), nn.Tanh()).double()] * 2
    result = train(config(), table, out=tmp_path / "run", models=makers, workers=1)
    with pytest.raises(DataError, match="org1: its model was a module of your own"):
        Predictor(read_bundles([result.path]))
    predictor = Predictor(read_bundles([result.path]), result.models)
    rows = dict(zip(table.names, table.test, strict=True))
    assert len(predictor.of_tensors(rows)) == 20
