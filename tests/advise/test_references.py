"""Usual models beside a federation: on its rows and columns, the same every time, and told in words."""

import json
from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch
from sklearn.metrics import f1_score
from typer.testing import CliRunner

from cvfl.advise.references import fit_references
from cvfl.cli import app
from cvfl.data import VerticalData
from cvfl.errors import ConfigError
from cvfl.protocol import Loss, Units
from cvfl.report.references import gained
from cvfl.rng import stream
from cvfl.runs.record import Summary


def table(loss: Loss, rows: int = 300, validation: bool = True) -> VerticalData:
    """Two parties: one has a number, the other a number and a category of three; the label needs both of them."""
    u = torch.from_numpy(stream(1, "references").uniform(3 * rows).reshape(rows, 3)).float() * 2 - 1
    codes = ((u[:, 2] + 1) * 1.5).floor()
    z = u[:, 0] + u[:, 1] + (codes == 1)
    y = {Loss.BINARY: z > 0.4, Loss.MULTICLASS: (z > 0).int() + (z > 0.8), Loss.SQUARED: z}[loss]
    y = loss.labels(y, torch.float32)
    parties = (u[:, :1], torch.stack([u[:, 1], codes], 1))
    a, b = rows // 2, rows * 3 // 4 if validation else rows // 2
    return VerticalData(
        names=("bank", "shop"),
        train=tuple(x[:a] for x in parties),
        test=tuple(x[b:] for x in parties),
        train_labels=y[:a],
        test_labels=y[b:],
        loss=loss,
        validation=tuple(x[a:b] for x in parties) if validation else (),
        validation_labels=y[a:b],
        categories=((), (3,)),
    )


@pytest.mark.parametrize("loss", Loss)
@pytest.mark.parametrize("validation", [True, False])
def test_the_joined_table_is_better_than_a_party_alone(loss, validation):
    steps = []
    found = fit_references(table(loss, validation=validation), 3, lambda *step: steps.append(step))
    linear = "ridge" if loss is Loss.SQUARED else "logistic"
    named = {(one.party, one.model): one for one in found}
    assert set(named) == {(party, model) for party in (None, "bank", "shop") for model in ("boosting", linear)}
    assert {party: named[party, linear].columns for party in (None, "bank", "shop")} == {None: 3, "bank": 1, "shop": 2}
    scores = {party: named[party, linear].metrics.test["loss"] for party in (None, "bank", "shop")}
    assert scores[None] < min(scores["bank"], scores["shop"])
    assert all(bool(one.metrics.validation) == validation and one.seconds > 0 for one in found)
    assert [step[1:] for step in steps] == [(n, 6) for n in range(6)]


def test_the_same_seed_gives_the_same_figures():
    first, second = (fit_references(table(Loss.BINARY), 3) for _ in range(2))
    assert [one.metrics for one in first] == [one.metrics for one in second]


def test_f1_is_at_the_threshold_that_is_best_on_validation_rows():
    data = table(Loss.BINARY, 600)
    rare = replace(data, train_labels=data.train_labels * (torch.arange(300) % 3 == 0))  # logits are far too low
    (joined,) = (one for one in fit_references(rare, 3) if (one.party, one.model) == (None, "logistic"))
    always = f1_score(data.validation_labels, torch.ones(len(data.validation_labels)))
    assert joined.metrics.validation["f1"] > always  # at 0.5 hardly a row would be positive
    assert joined.metrics.test["f1"] > 0.8
    assert joined.metrics.test["accuracy"] > 0.8  # at the same threshold


def test_quantities_are_in_the_units_of_the_label():
    data = table(Loss.SQUARED)
    plain, scaled = (fit_references(replace(data, units=Units(5.0, scale)), 3) for scale in (1.0, 20.0))
    for one, other in zip(plain, scaled, strict=True):
        assert other.metrics.test["rmse"] == pytest.approx(20 * one.metrics.test["rmse"])


def test_more_classes_than_a_tree_can_tell_apart_are_numbers():
    data = table(Loss.BINARY)
    many = replace(data, categories=((), (300,)))
    assert len(fit_references(many, 0)) == 6


def test_what_cannot_be_compared_is_refused():
    data = table(Loss.BINARY)
    with pytest.raises(ConfigError, match="needs test rows"):
        fit_references(replace(data, test=tuple(x[:0] for x in data.test), test_labels=data.test_labels[:0]), 0)

    class Read:
        shape = data.train[0].shape

        def __len__(self):
            return len(data.train[0])

    with pytest.raises(ConfigError, match="is for tables"):
        fit_references(replace(data, train=(Read(), data.train[1])), 0)


def summary(metric, own, alone, joined):
    scores = {"bank": alone, None: joined}
    references = [
        {"party": party, "model": "boosting", "columns": 2, "metrics": {"test": {metric: value}}, "seconds": 1.0}
        for party, value in scores.items()
    ]
    values = {"name": "auto", "seed": 0, "rounds": 1, "completed": True, "metric": metric, "seconds": 1.0}
    sent = {"up": 0, "down": 0, "evaluation": 0, "by_party": {}}
    return Summary.model_validate(
        values | {"bytes": sent, "metrics": {"test": {metric: own}}, "references": references}
    )


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("roc_auc", 0.80, 0.75, 0.82), "test ROC AUC 0.8000: 0.0500 better than the best single party (bank, "),
        (("rmse", 0.80, 0.75, 0.82), "test RMSE 0.8000: 0.0500 worse than the best single party (bank, "),
        (("accuracy", 0.80, 0.75, 0.80), "as good as the better joined model (boosting: 0.8000)"),
        (("rmse", 0.80, 0.95, 0.82), "0.0200 better than the better joined model (boosting: 0.8200)"),
    ],
)
def test_what_federation_gains_is_one_sentence(given, told):
    assert told in gained(summary(*given))


@pytest.mark.parametrize(
    "runtime",
    [
        pytest.param("grpc", marks=pytest.mark.slow),
        pytest.param(
            "nvflare",
            marks=[pytest.mark.slow, pytest.mark.skipif(find_spec("nvflare") is None, reason="needs cvfl[nvflare]")],
        ),
    ],
)
def test_other_runtimes_are_compared_with_the_same_figures(tmp_path, runtime):
    """All tables are on this machine, whatever carries the messages."""
    config = tmp_path / "wine.toml"
    config.write_text('rounds = 3\n[data]\nname = "wine"\nparties = 2\n[step_size]\neta = 0.1\n')
    found = []
    for how in ("inprocess", runtime):
        out = tmp_path / how
        command = ["train", str(config), "--compare", "--runtime", how, "--out", str(out)]
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, result.output
        references = json.loads((out / "summary.json").read_text())["references"]
        found.append([{key: value for key, value in one.items() if key != "seconds"} for one in references])
    assert found[0] == found[1] != []


def test_a_run_whose_tables_are_elsewhere_cannot_be_compared(tmp_path):
    config = tmp_path / "bank.toml"
    config.write_text(
        'rounds = 3\n[step_size]\neta = 0.1\n[data]\nid = "ID"\n'
        '[party.bank]\ntable = "bank.csv"\nlabel = "y"\n[party.shop]\n'
    )
    for how in ("inprocess", "grpc"):
        result = CliRunner().invoke(app, ["train", str(config), "--compare", "--runtime", how])
        assert result.exit_code == 2
        assert result.output.splitlines()[-1] == "error: party.shop has no table; give table, or url and query"


def test_a_run_is_compared_when_asked_for(tmp_path):
    config = tmp_path / "small.toml"
    config.write_text(
        'rounds = 6\nlocal_iterations = 2\n[data]\nname = "breast_cancer"\nparties = 2\n[step_size]\neta = 0.1\n'
    )
    result = CliRunner().invoke(app, ["train", str(config), "--compare", "--out", str(tmp_path / "run")])
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "run" / "summary.json").read_text())["references"]
    assert [(one["party"], one["model"]) for one in found[:3]] == [
        (None, "boosting"),
        (None, "logistic"),
        ("hospital", "boosting"),
    ]
    said = " ".join(result.output.split())
    assert "than the best single party (bank, " in said
    assert "bank alone, boosting" in said
    page = (tmp_path / "run" / "report.html").read_text()
    assert "What federation gains" in page
    assert "joined table, logistic" in page
