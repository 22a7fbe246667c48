"""How good a run is: the same figures on every carrier and after a fault, where the labels are and nowhere else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conformance.cases import SECURE, settings, table_settings, write_tables
from conformance.loop import Loop
from conformance.test_law3_restart import FAULTS
from conformance.threads import threads
from cvfl.config.schema import RunConfig
from cvfl.federation.train import train
from cvfl.report.analysis import write_analysis_page
from cvfl.report.report import write_report
from cvfl.runs.analysis import Analysis, read_analysis

pytestmark = pytest.mark.usefixtures("tidy")
HELD_OUT = {"validation_share": 0.3, "test_share": 0.3}
TABLES: dict[str, dict[str, Any]] = {
    "two classes": {},
    "a quantity": {"label": "income"},
    "stopped": {
        "stopping": {"patience": 2},
        "rounds": 60,
        "step_size": {"eta": 0.3},
        "decision": {"threshold": "youden"},
    },
    "labels at a party": {"privacy": {"labels": "bank"}, "algorithm": 2, "local_iterations": 1},
}


def own_tables(folder: Path, case: str) -> RunConfig:
    write_tables(folder)
    changes = dict(TABLES[case])
    label = changes.pop("label", "y")
    config = table_settings(folder, HELD_OUT, **changes)
    parties = config.party | {"bank": config.party["bank"].model_copy(update={"label": label, "tell_classes": True})}
    return config.model_copy(update={"party": parties})


def in_one_process(config: RunConfig, out: Path) -> Analysis:
    train(config, out=out)
    found = read_analysis(out)
    assert found is not None
    return found


@pytest.mark.parametrize("case", TABLES)
def test_all_carriers_find_the_same(case: str, tmp_path: Path) -> None:
    config = own_tables(tmp_path, case)
    expected = in_one_process(config, tmp_path / "one")
    assert expected.parties is not None
    assert [one.party for one in expected.parties.each] == ["bank", "shop"]
    assert expected.names == (() if case == "a quantity" else ("overdue", "settled"))
    loop = Loop(config, tmp_path / "loop")
    loop.run()
    assert analyses(tmp_path / "loop") == {_place(config): expected}
    classes = json.loads((tmp_path / "loop" / "run" / "summary.json").read_text())["classes"]
    assert classes == ([] if config.privacy.relayed else list(expected.names))  # a server without labels has no names
    if not config.privacy.relayed and expected.names:
        write_report([tmp_path / "loop" / "run"], tmp_path / "page.html")
        assert "decided overdue" in (tmp_path / "page.html").read_text(encoding="utf-8")
    if case in ("stopped", "labels at a party"):
        Loop(config, tmp_path / "faulty").run({loop.delivered - 1: FAULTS["everyone"]})
        assert analyses(tmp_path / "faulty") == {_place(config): expected}


def analyses(folder: Path) -> dict[str, Analysis | None]:
    """By the folder that they are in."""
    return {path.parent.name: read_analysis(path.parent) for path in folder.rglob("analysis.json")}


def _place(config: RunConfig) -> str:
    """Where an analysis is: in the run directory, or at the party that holds the labels."""
    return "models" if config.privacy.relayed else "run"


def test_names_of_classes_leave_a_party_only_if_it_says_so(tmp_path: Path) -> None:
    config = own_tables(tmp_path, "two classes")
    quiet = {"bank": config.party["bank"].model_copy(update={"tell_classes": False})}
    config = config.model_copy(update={"party": config.party | quiet})
    Loop(config, tmp_path / "loop").run()
    found = read_analysis(tmp_path / "loop" / "run")
    assert found is not None
    assert found.names == ()
    assert json.loads((tmp_path / "loop" / "models" / "bank.json").read_text())["classes"] == ["overdue", "settled"]


def test_by_grpc_labels_that_stay_with_a_party_keep_the_analysis_there(tmp_path: Path) -> None:
    config = own_tables(tmp_path, "labels at a party")
    with threads(config, tmp_path / "grpc") as federation:
        federation.start_all()
        federation.outcome()
    found = in_one_process(config, tmp_path / "one")
    assert analyses(tmp_path / "grpc") == {"models": found}
    write_analysis_page(found, "bank, shop", tmp_path / "analysis.html")
    assert "ROC curve" in (tmp_path / "analysis.html").read_text(encoding="utf-8")


def test_the_threshold_and_the_units_are_in_the_summary(tmp_path: Path) -> None:
    chosen = train(own_tables(tmp_path, "two classes")).summary
    assert chosen["threshold"] == chosen["metrics"]["validation"]["threshold"] != 0.5
    income = train(own_tables(tmp_path, "a quantity")).summary
    assert "threshold" not in income
    assert income["units"]["scale"] == pytest.approx(900, rel=0.2)
    assert income["units"]["offset"] == pytest.approx(3000, rel=0.1)
    test = income["metrics"]["test"]
    assert test["rmse"] == pytest.approx(income["units"]["scale"] * test["loss"] ** 0.5)
    assert 0 < test["mae"] <= test["rmse"] < 2000


def test_metrics_of_the_last_evaluation_are_those_of_the_analysis(tmp_path: Path) -> None:
    result = train(own_tables(tmp_path, "stopped"), out=tmp_path / "run")
    found, test = read_analysis(tmp_path / "run"), result.summary["metrics"]["test"]
    assert found is not None
    assert found.two is not None
    assert found.two.roc_auc.value == pytest.approx(test["roc_auc"])
    # Of so few rows cells are hidden, and what the figures are made of is rounded to five of some thirty people.
    assert found.two.f1.value == pytest.approx(test["f1"], abs=0.2)
    assert found.two.accuracy == pytest.approx(test["accuracy"], abs=0.2)
    assert found.decision.threshold == result.summary["threshold"]
    assert result.summary["kept"] + 1 < result.summary["rounds"]


def test_of_a_masked_sum_nobody_can_tell_who_brings_what(tmp_path: Path) -> None:
    found = in_one_process(settings(**SECURE), tmp_path / "run")
    assert found.parties is None
    assert found.many is not None
    assert not found.decision.fitted
    write_report([tmp_path / "run"], tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "cannot be told" in text
    assert "no validation rows" in text
