"""A run that stops by itself: when, with which models, and the same on every carrier and after any fault."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from conformance.cases import AUTO, table_settings, write_tables
from conformance.loop import Loop
from conformance.outcome import Outcome, in_process, same
from conformance.test_law3_restart import FAULTS
from conformance.threads import threads
from cvfl.config.schema import RunConfig
from cvfl.errors import ConfigError
from cvfl.federation.train import train

pytestmark = pytest.mark.usefixtures("tidy")
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "auto": AUTO | {"batch_size": 16},
    "means of weights": AUTO
    | {
        "batch_size": 16,
        "optimizer": {"name": "adamw", "weight_decay": 0.1, "average": 0.8},
        "party_model": {"name": "tabular", "width": 6, "hidden": [8], "dropout": 0.2},
        "server_model": {"name": "wide_deep", "hidden": [8]},
        "class_weight": "balanced",
        "quiet_messages": True,
    },
    "labels at a party": {"privacy": {"labels": "bank"}, "algorithm": 2, "local_iterations": 1},
}


def stopping(folder: Path, case: str = "plain", patience: int | None = 2, **changes: Any) -> RunConfig:
    """Two organisations whose model learns few people by heart."""
    write_tables(folder)
    steps = {"step_size": {"eta": 0.05 if "optimizer" in CASES[case] else 0.3}}
    values = CASES[case] | {"rounds": 60, "evaluate_every": 2, "every": 6} | steps | changes
    return table_settings(folder, {"validation_share": 0.3}, stopping={"patience": patience}, **values)


def best_of(found: Outcome, metric: str = "roc_auc") -> int:
    """The round of the best evaluation by its validation metric, the first of equal ones."""
    lines = [line for line in found.history if "validation" in line]
    return int(max(lines, key=lambda line: line["validation"][metric])["round"])


@pytest.mark.parametrize("case", CASES)
def test_a_run_ends_with_the_models_of_its_best_round(case: str, tmp_path: Path) -> None:
    config = stopping(tmp_path, case)
    found, best = in_process(config), best_of(in_process(config))
    assert len(found.history) == best + 1 + 2 * 2  # two evaluations later
    assert len(found.history) < 60
    # The same as if no more had been planned.
    short = in_process(stopping(tmp_path, case, None, rounds=best + 1))
    assert found.parameters == short.parameters


def test_the_summary_is_of_the_round_that_is_kept(tmp_path: Path) -> None:
    result = train(stopping(tmp_path))
    best = best_of(in_process(stopping(tmp_path)))
    (line,) = [line for line in result.history if line["round"] == best]
    assert result.summary["completed"]
    assert result.summary["metrics"]["test"] == line["test"]
    assert result.summary["best"]["round"] == result.summary["kept"] == best
    assert result.history[-1]["test"] != line["test"]


def test_without_an_early_end_the_best_round_is_kept_all_the_same(tmp_path: Path) -> None:
    best = best_of(in_process(stopping(tmp_path)))
    config = stopping(tmp_path, patience=10, rounds=best + 3)
    found = in_process(config)
    assert len(found.history) == best + 3
    assert found.parameters == in_process(stopping(tmp_path, patience=None, rounds=best + 1)).parameters
    same(Loop(config, tmp_path / "loop").run(), found, setup=True)


@pytest.mark.parametrize("case", CASES)
def test_all_carriers_end_alike(case: str, tmp_path: Path) -> None:
    config = stopping(tmp_path, case)
    expected = in_process(config)
    same(Loop(config, tmp_path / "loop").run(), expected, setup=not config.privacy.keyed)
    same(Loop(config, tmp_path / "other order", random.Random(1)).run(), expected)
    with threads(config, tmp_path / "grpc") as federation:
        federation.start_all()
        same(federation.outcome(), expected)


@pytest.mark.slow  # test_private_model.py has faults at the end of a run that stops, too
@pytest.mark.parametrize(
    ("case", "who"),
    [
        ("plain", "server"),
        ("plain", "everyone"),
        ("labels at a party", "first party"),
        ("plain", "last party"),
        ("labels at a party", "server"),
        ("labels at a party", "last party"),
        ("auto", "everyone"),
    ],
)
def test_a_fault_near_the_end_changes_nothing(case: str, who: str, tmp_path: Path) -> None:
    """At every frame since the last round's embeddings, until after the last role has heard the end."""
    config = stopping(tmp_path, case)
    expected, undisturbed = in_process(config), Loop(config, tmp_path / "undisturbed")
    same(undisturbed.run(), expected)
    for n in range(undisturbed.delivered - 16, undisturbed.delivered + 1):
        same(Loop(config, tmp_path / str(n)).run({n: FAULTS[who]}), expected)


def test_what_cannot_be_stopped_by(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs validation rows"):
        train(stopping(tmp_path).model_copy(update={"data": table_settings(tmp_path).data}))
    unknown = stopping(tmp_path).stopping.model_copy(update={"metric": "rocauc"})
    with pytest.raises(ConfigError, match="there is no 'rocauc' here; did you mean 'roc_auc'"):
        train(stopping(tmp_path).model_copy(update={"stopping": unknown}))
