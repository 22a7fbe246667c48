"""Models as ONNX files: onnxruntime gives the same outputs, for any number of rows."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from cvfl.cli import app
from cvfl.federation.rows.load import load_data
from cvfl.federation.train import train
from cvfl.serving.bundles import read_bundles
from cvfl.serving.predict import Predictor
from serving import tables

pytestmark = pytest.mark.usefixtures("no_pages")
onnxruntime = pytest.importorskip("onnxruntime")


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"server_model": {"name": "wide_deep", "hidden": [8]}}, marks=pytest.mark.slow),
        {
            "party_model": {"name": "tabular", "width": 4, "hidden": [8]},
            "server_model": {"name": "attention", "hidden": [8]},
            "privacy": {"clip": 0.5},
            "data": {"id": "person", "test_share": 0.2, "prepare": {"categories": "embedding", "scale": "quantile"}},
        },
    ],
    ids=["mlp", "tabular"],
)
def test_other_systems_compute_the_same(changes, tmp_path):
    config = tables.config(tables.write(tables.frames(), tmp_path / "in"), **changes)
    loaded = load_data(config)
    run = train(config, loaded, out=tmp_path / "run", workers=1).path
    for role in ("server", "bank", "shop"):
        words = ["model", "export", str(run), "--role", role, "--out", str(tmp_path / f"{role}.onnx")]
        exported = CliRunner().invoke(app, words)
        assert exported.exit_code == 0, exported.output
    predictor, phi = Predictor(read_bundles([run])), {}
    for name, rows in zip(loaded.data.names, loaded.data.test, strict=True):
        session = onnxruntime.InferenceSession(tmp_path / f"{name}.onnx", providers=["CPUExecutionProvider"])
        assert json.loads(session.get_modelmeta().custom_metadata_map["cvfl"])["role"] == name
        for count in (1, len(rows)):
            (phi[name],) = session.run(["h"], {"rows": rows[:count].numpy()})
            assert np.abs(phi[name] - predictor.embeddings(name, rows[:count]).numpy()).max() < 1e-5
    session = onnxruntime.InferenceSession(tmp_path / "server.onnx", providers=["CPUExecutionProvider"])
    (outputs,) = session.run(["outputs"], {f"h_{name}": h for name, h in phi.items()})
    expected = predictor.outputs([torch.from_numpy(phi[name]) for name in predictor.names])
    assert np.abs(outputs - expected.numpy()).max() < 1e-5


def test_which_role_must_be_said(tmp_path):
    run = train(tables.config(tables.write(tables.frames(), tmp_path / "in")), out=tmp_path / "run", workers=1).path
    out = ["--out", str(tmp_path / "x.onnx")]
    for words, line in (([], "--role: which one of bank, shop, server?"), (["--role", "bnk"], "did you mean 'bank'?")):
        refused = CliRunner().invoke(app, ["model", "export", str(run), *words, *out])
        assert refused.exit_code == 2
        assert line in refused.output
