"""docs/adding-a-model.md and docs/adding-a-data-set.md work as printed: their code is run, what it adds is known."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cvfl.data import load, register
from cvfl.data.sets.catalogue import READERS
from cvfl.errors import ConfigError, DataError
from cvfl.models import party_model, register_party_model, server_model
from cvfl.models.registry import PARTY_MODELS, SERVER_MODELS

pytestmark = pytest.mark.usefixtures("no_pages")
DOCS = Path(__file__).parents[2] / "docs"


def run(page: str, block: int) -> dict[str, Any]:
    """The names that a code block of a page leaves."""
    code = re.findall(r"^```python\n(.*?)^```$", (DOCS / page).read_text(encoding="utf-8"), flags=re.M | re.S)[block]
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(code, page, "exec"), names)
    return names


@pytest.fixture
def models():
    """The page's models are known in these tests alone."""
    yield run("adding-a-model.md", 0)
    del PARTY_MODELS["waves"], SERVER_MODELS["largest"]


@pytest.fixture
def data_sets():
    """The page's data set is known in these tests alone."""
    yield run("adding-a-data-set.md", 0)
    del READERS["sensors"]


def test_a_registered_model_is_one_like_all_others(models):
    h = party_model("waves", (5,), 3, (), torch.float64)()(torch.randn(7, 5, dtype=torch.float64))
    assert (h.shape, h.dtype) == ((7, 3), torch.float64)
    assert float(h.detach().abs().max()) <= 1
    model = server_model("largest", (3, 3), 1, (), torch.float64)()
    assert torch.equal(model([h, h - 1]), model.linear(h))
    with pytest.raises(ConfigError, match="unknown party model 'wave'; did you mean 'waves'"):
        party_model("wave", (5,), 3, (), torch.float64)
    with pytest.raises(ConfigError, match="the party model name 'waves' is taken by"):
        register_party_model("waves", models["Largest"])
    with pytest.raises(ConfigError, match="model 'waves' takes no 'categories'"):
        party_model("waves", (5,), 3, (), torch.float64, categories=(2,))


@pytest.mark.usefixtures("models")
def test_registered_models_train(capsys):
    accuracy = run("adding-a-model.md", 1)["run"].metrics.test.accuracy
    assert f"accuracy {accuracy:.4f}" in capsys.readouterr().out
    assert accuracy > 0.5  # of ten digits


def test_a_registered_data_set_is_one_like_all_others(data_sets, tmp_path, monkeypatch, capsys):
    random = np.random.default_rng(0)
    x = random.normal(size=(300, 7))
    (tmp_path / "data" / "sensors").mkdir(parents=True)
    table = np.column_stack([x, x.sum(1) + random.normal(size=300) / 4 > 0])
    np.savetxt(tmp_path / "data" / "sensors" / "sensors.csv", table, delimiter=",")
    monkeypatch.chdir(tmp_path)
    assert run("adding-a-data-set.md", 1)["run"].metrics.test.roc_auc > 0.8
    assert "roc_auc" in capsys.readouterr().out
    data = load("sensors", path="data/sensors")
    assert data.names == ("site1", "site2", "site3")
    assert (len(data.test_labels), len(data.train_labels)) == (75, 225)
    with pytest.raises(DataError, match=r"sensors\.csv: no such file"):
        load("sensors", path=tmp_path)
    with pytest.raises(ConfigError, match="say where the files of sensors are"):
        load("sensors")
    with pytest.raises(ConfigError, match=r"data\.name: unknown data set 'sensor'; did you mean 'sensors'"):
        load("sensor")
    with pytest.raises(ConfigError, match="the data set name 'sensors' is taken by"):
        register("sensors", READERS["digits"])
