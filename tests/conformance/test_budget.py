"""A budget is kept on three federations, whatever share it is of what `auto` needs, and never exceeded by over 5%."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from conformance.cases import NAMED, settings, table_settings, write_tables
from conformance.loop import Loop
from conformance.outcome import in_process
from conformance.test_law2_one_trajectory import TABLES
from cvfl.config.files import parse_config
from cvfl.errors import ConfigError
from cvfl.federation.agreement.around import around
from cvfl.federation.agreement.rehearsal import Rehearsal
from cvfl.federation.builder.recipe import recipe_for
from cvfl.federation.rows.load import load_data
from cvfl.federation.train import RunResult, train

pytestmark = pytest.mark.usefixtures("no_pages")
FEDERATIONS: dict[str, dict[str, Any]] = {
    "digits": {"step_size": {"eta": 0.5}, "batch_size": 128},
    "breast_cancer": {"step_size": {"eta": 0.05}, "batch_size": 200},
    "diabetes": {"step_size": {"eta": 0.03}, "batch_size": 128, "rounds": 100},
}


def trained(name: str, budget: int | str | None = None, **changes: Any) -> RunResult:
    values: dict[str, Any] = {
        "data": {"name": name, "parties": 4 if name == "digits" else 3, "split_seed": 1},
        "server_model": {"name": "linear"} if name == "digits" else {"name": "mlp", "hidden": [16]},
        "rounds": 80,
        "evaluate_every": 20,
        "local_iterations": 5,
        "seed": 1,
    }
    kept = {} if budget is None else {"budget": budget}
    return train(parse_config(values | FEDERATIONS[name] | changes | kept), workers=1)


@cache
def needed(name: str) -> int:
    """Bytes of the run without a budget."""
    return int(trained(name).summary["bytes"]["total"])


@pytest.mark.parametrize("share", [0.5, *(pytest.param(share, marks=pytest.mark.slow) for share in (0.6, 0.8))])
@pytest.mark.parametrize(
    "name", ["digits", *(pytest.param(name, marks=pytest.mark.slow) for name in ("breast_cancer", "diabetes"))]
)
def test_the_total_is_within_5_percent_of_the_budget(name: str, share: float) -> None:
    budget = round(share * needed(name))
    sent = trained(name, budget).summary["bytes"]["total"]
    assert 0.95 * budget <= sent <= 1.05 * budget


def test_a_budget_that_is_not_needed_changes_no_bit() -> None:
    """But for the bytes that it takes to agree on it."""
    free, kept = (trained("digits", budget, rounds=20) for budget in (None, "10 MB"))
    assert kept.summary["parameters"] == free.summary["parameters"]
    assert kept.summary["bytes"]["up"] == free.summary["bytes"]["up"]
    assert kept.summary["bytes"]["down"] == free.summary["bytes"]["down"]
    assert 0 < kept.summary["bytes"]["setup"] - free.summary["bytes"]["setup"] < 4 * 25


def test_a_budget_that_cannot_be_kept_ends_the_run_or_is_refused_at_the_start() -> None:
    least = trained("diabetes", round(0.5 * needed("diabetes"))).summary["bytes"]["setup"]
    with pytest.raises(ConfigError, match="budget: 3,000 bytes, but 100 rounds and 5 evaluations take"):
        trained("diabetes", "3 kB")
    with pytest.raises(ConfigError, match=r"are used up after \d+ of 100 rounds; give more, or fewer rounds"):
        trained("diabetes", least + 6000)
    with pytest.raises(ConfigError, match=r"are used up after \d+ of 100 rounds; give more, or fewer rounds"):
        trained("diabetes", round(0.3 * needed("diabetes")))


NAMED_CASES = ["auto", "auto, attention", "auto, budget", "auto, attention, budget"]


@pytest.mark.parametrize("case", NAMED_CASES)
def test_what_is_sent_around_the_rounds_is_foreseen(case: str) -> None:
    config = settings(**NAMED[case])
    loaded = load_data(config)
    foreseen = Rehearsal(config, recipe_for(config, loaded.data), loaded).foreseen()
    assert foreseen == pytest.approx(sum(in_process(config).setup.values()), rel=0.04)


@pytest.mark.parametrize("label", ["y", "income"])
def test_so_are_the_alignment_and_labels_of_tables(label: str, tmp_path: Path) -> None:
    """And room is kept for certificates, which a run in one process has not."""
    write_tables(tmp_path)
    party = table_settings(tmp_path).model_dump(exclude_none=True, exclude_defaults=True)["party"]
    party["bank"]["label"] = label
    config = table_settings(tmp_path, party=party, compressor="auto", server_compressor="auto")
    loaded = load_data(config)
    found, recipe = in_process(config), recipe_for(config, loaded.data)
    foreseen = Rehearsal(config, recipe, loaded).foreseen() - 2 * 3 * 1000
    assert foreseen == pytest.approx(sum(found.setup.values()) + found.bytes["alignment"], rel=0.06)
    assert loaded.aligned is not None
    loop = Loop(config, tmp_path / "loop")
    loop.run()
    at_server = around(config, loop.server.role.facts, loaded.aligned.sizes, recipe.plan.evaluations)
    assert at_server == Rehearsal(config, recipe, loaded).foreseen()


def test_the_budgets_of_the_laws_are_less_than_is_needed(tmp_path: Path) -> None:
    """Or they would say nothing of runs whose level changes."""
    write_tables(tmp_path, unlabelled=(3, 40, 41))
    tables = table_settings(tmp_path, **TABLES["private, budget"])
    for config in (*(settings(**NAMED[case]) for case in NAMED if case.endswith("budget")), tables):
        assert in_process(config).models != in_process(config.model_copy(update={"budget": None})).models
