"""Law 11: predicting the held-out rows of a run gives the outputs of its final evaluation, bit for bit."""

from __future__ import annotations

import pytest
import torch

from cvfl.federation.builder.machines import make_federation
from cvfl.federation.builder.recipe import recipe_for
from cvfl.federation.rows.load import load_data
from cvfl.federation.train import train
from cvfl.protocol import Loss
from cvfl.protocol.outputs import outputs_of
from cvfl.runtime import Meter, one_thread_a_role, rounds
from cvfl.serving.bundles import read_bundles
from cvfl.serving.predict import Predictor
from cvfl.serving.scores import scores_of
from serving import tables

pytestmark = pytest.mark.usefixtures("no_pages")
CASES = [
    ("binary", {"name": "linear"}),
    ("several", {"name": "mlp", "hidden": [8]}),
    ("binary", {"name": "wide_deep", "hidden": [8]}),
    ("several", {"name": "sum", "hidden": [8]}),
    ("quantity", {"name": "attention", "hidden": [8]}),
    ("quantity", {"name": "wide_deep", "hidden": [8]}),
]


def check(config, out):
    """Train twice: once by hand, for what the last evaluation computed, and once for the run directory."""
    loaded = load_data(config)
    federation = make_federation(recipe_for(config, loaded.data), loaded.data)
    for _ in rounds(*federation.roles, Meter(), 1):
        pass
    server, data = federation.server, loaded.data
    assert server.held_out is not None
    with one_thread_a_role(), torch.no_grad():
        expected = outputs_of(server.models["server"].eval(), server.held_out)
    summary = train(config, loaded, out=out, workers=1).summary
    predictor = Predictor(read_bundles([out]))
    phi = []
    for at, name in enumerate(data.names):
        held_out = (*data.validation[at : at + 1], data.test[at])
        phi.append(torch.cat([predictor.embeddings(name, part) for part in held_out]))
    outputs = predictor.outputs(phi)
    assert torch.equal(outputs, expected)
    if data.loss is Loss.BINARY:
        assert predictor.server.decided.threshold == summary["threshold"]
    return predictor, outputs, data


@pytest.mark.parametrize(("kind", "model"), CASES, ids=[f"{kind}-{model['name']}" for kind, model in CASES])
def test_outputs_are_those_of_the_evaluation(kind, model, tmp_path):
    config = tables.config(tables.write(tables.frames(kind), tmp_path / "in"), server_model=model)
    predictor, outputs, data = check(config, tmp_path / "run")
    if kind == "quantity":
        value = scores_of(predictor.server, outputs)["value"].to_numpy()
        assert abs(value.mean() - 1150) < 100  # in the label's own units
        assert data.units.scale > 10


@pytest.mark.parametrize(
    "changes",
    [
        {"server_compressor": "auto", "compressor": "auto", "evaluation_compressor": "identity"},
        {"first_layer": "parties", "server_model": {"name": "mlp", "hidden": [8]}},
        {"optimizer": {"name": "adam", "average": 0.9}},
        {"optimizer": {"name": "adam", "average": 0.9}, "stopping": {"patience": 1}, "epochs": 12},
        {"privacy": {"clip": 0.5}},
        {"privacy": {"labels": "bank"}},
        {"party_model": {"name": "tabular", "width": 4, "hidden": [8]}, "precision": "float64"},
        {"decision": {"calibration": "isotonic", "threshold": "youden"}},
    ],
    ids=["auto", "first layer", "average", "stopping", "clip", "private labels", "tabular", "isotonic"],
)
def test_the_bundle_has_the_model_that_was_evaluated(changes, tmp_path):
    check(tables.config(tables.write(tables.frames(), tmp_path / "in"), **changes), tmp_path / "run")


def test_embedded_categories_are_kept(tmp_path):
    data = {"id": "person", "test_share": 0.2, "validation_share": 0.2, "prepare": {"categories": "embedding"}}
    check(tables.config(tables.write(tables.frames(), tmp_path / "in"), data=data), tmp_path / "run")
