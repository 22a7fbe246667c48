"""UCI's own layouts, written small here; with CVFL_DATA set, the real files as well."""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from cvfl import load_run
from cvfl.config.files import load_config, parse_config
from cvfl.data import load
from cvfl.data.sets.catalogue import NamedSet, load_named
from cvfl.errors import ConfigError, CvflError, DataError
from cvfl.federation.train import train
from cvfl.protocol import Loss
from publishers import write_adult, write_credit, write_mfeat

pytestmark = pytest.mark.usefixtures("no_pages")


@pytest.mark.parametrize("coded", [True, False])
def test_credit_default(tmp_path, coded):
    table = write_credit(tmp_path, coded=coded)
    data = load("credit_default", path=tmp_path)
    assert data.names == ("bank", "bureau", "shop", "registry")
    assert data.loss is Loss.BINARY
    assert [rows.shape[1] for rows in data.train] == [7, 6, 6, 2 * 3 + 1]
    assert len(data.train_labels) + len(data.test_labels) == 60
    limits = sorted(torch.cat([data.train[0], data.test[0]])[:, 0].tolist())
    order = np.argsort(table[:, 0])
    steps = np.diff(table[order, 0]) > 0
    assert (np.diff(limits) > 1e-6).tolist() == steps.tolist()


def test_the_split_of_credit_default_belongs_to_ids_and_seed(tmp_path):
    write_credit(tmp_path)
    one, two, other = (load("credit_default", path=tmp_path, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one.train[0], two.train[0])
    assert one.train[0].shape != other.train[0].shape or not torch.equal(one.train[0], other.train[0])


def test_adult_keeps_the_publisher_s_split(tmp_path):
    write_adult(tmp_path)
    found = load_named(NamedSet(name="adult", path=tmp_path))
    assert found.data.names == ("employer", "school", "tax-office", "registry")
    assert (len(found.data.train_labels), len(found.data.test_labels)) == (30, 12)
    assert found.classes == ("<=50K", ">50K")
    assert found.data.test_labels.tolist() == [float(i % 3 == 0) for i in range(12)]
    employer = found.preparations["employer"]
    assert employer.kinds == {"workclass": "category", "occupation": "category", "hours-per-week": "number"}
    assert not any("fnlwgt" in preparation.kinds for preparation in found.preparations.values())


def test_a_line_of_adult_that_is_cut(tmp_path):
    write_adult(tmp_path)
    (tmp_path / "adult.test").write_text("|1x3\n25, Private\n")
    with pytest.raises(DataError, match=r"adult\.test: line 2 has 2 values, not 15"):
        load("adult", path=tmp_path)
    (tmp_path / "adult.test").write_text("\n")
    with pytest.raises(DataError, match=r"adult\.test: no rows"):
        load("adult", path=tmp_path)


def test_mfeat_has_six_views(tmp_path):
    write_mfeat(tmp_path)
    data = load("mfeat", path=tmp_path)
    assert [rows.shape[1] for rows in data.train] == [76, 216, 64, 240, 47, 6]
    assert data.outputs == 10
    assert len(data.train_labels) + len(data.test_labels) == 2000
    assert torch.corrcoef(torch.stack([data.train[0][:, 0], data.train_labels.float()]))[0, 1] > 0.999


def test_mfeat_that_is_cut(tmp_path):
    write_mfeat(tmp_path)
    (tmp_path / "mfeat-mor").write_text("1 2 3 4 5 6\n1 2\n")
    with pytest.raises(DataError, match="mfeat-mor"):
        load("mfeat", path=tmp_path)
    (tmp_path / "mfeat-mor").write_text("1 2 3 4 5 6\n")
    with pytest.raises(DataError, match="1 rows, not 2,000"):
        load("mfeat", path=tmp_path)


@pytest.mark.parametrize("name", ["credit_default", "adult", "mfeat"])
def test_what_is_missing_is_named(tmp_path, name):
    with pytest.raises(CvflError, match="is not there"):
        load(name, path=tmp_path)
    with pytest.raises(CvflError, match=r"data\.path: there is no folder"):
        load(name, path=tmp_path / "no")
    with pytest.raises(ConfigError, match=r"data\.path: say where the files"):
        load(name)
    with pytest.raises(ConfigError, match=r"data\.parties: .* parties, not 3"):
        load(name, parties=3, path=tmp_path)


@pytest.mark.parametrize(("name", "write"), [("credit_default", write_credit), ("adult", write_adult)])
def test_a_run_on_them_leaves_models_for_rows_that_are_numbers(tmp_path, name, write):
    write(tmp_path)
    data = {"name": name, "path": str(tmp_path)}
    config = parse_config(
        {"data": data, "epochs": 1, "batch_size": 8, "local_iterations": 1, "step_size": {"eta": 0.1}}, "a test"
    )
    train(config, out=tmp_path / "run")
    run, test = load_run(tmp_path / "run"), load(name, path=tmp_path)
    scores = run.predict(dict(zip(test.names, test.test, strict=True)))
    assert scores.num_rows == len(test.test_labels)
    with pytest.raises(DataError, match="was not trained on tables"):
        run.predict({party: pa.table({"ID": [1]}) for party in test.names})


REAL = Path(os.environ.get("CVFL_DATA", ""))
AUC = {"credit_default": 0.76, "adult": 0.90}


@pytest.mark.slow
@pytest.mark.parametrize("name", AUC)
def test_an_uncompressed_run_on_the_real_table_learns(name):
    if not os.environ.get("CVFL_DATA") or not (REAL / name).is_dir():
        pytest.skip(f"set CVFL_DATA to a folder with {name}")
    config = load_config(Path(__file__).parents[2] / "examples" / f"{name}.toml", [f"data.path={REAL / name}"])
    assert config.compressor == config.server_compressor == "identity"
    assert train(config).summary["metrics"]["test"]["roc_auc"] >= AUC[name]
