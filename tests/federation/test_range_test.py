"""`step_size.eta = "auto"`: trials on training rows alone, the same every time, and a number for everybody else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cvfl.cli import app
from cvfl.config.files import parse_config
from cvfl.config.schema import RunConfig
from cvfl.errors import ConfigError
from cvfl.federation import range_test
from cvfl.federation.agreement.terms import terms_of
from cvfl.federation.range_test import GRID, find_eta, with_eta
from cvfl.federation.rows.load import load_data
from cvfl.federation.train import train

pytestmark = pytest.mark.usefixtures("no_pages")
AUTO = 'rounds = 4\nbatch_size = 32\n[data]\nname = "wine"\nparties = 2\n[step_size]\neta = "auto"\n'


def config(**changes: Any) -> RunConfig:
    values = {
        "data": {"name": "wine", "parties": 2},
        "rounds": 5,
        "batch_size": 32,
        "optimizer": {"name": "adam"},
        "step_size": {"eta": "auto"},
    }
    return parse_config(values | changes)


def test_a_run_with_the_step_size_that_was_found_is_that_run(tmp_path: Path) -> None:
    settings = config()
    found = train(settings, out=tmp_path / "run")
    tried = found.summary["range_test"]
    assert tried["tried"] == list(GRID)
    assert tried["eta"] == GRID[tried["losses"].index(min(tried["losses"]))]
    assert tried["losses"][0] > min(tried["losses"])
    assert tried["bytes"] > 0
    given = train(with_eta(settings, tried["eta"]))
    assert given.summary["parameters"] == found.summary["parameters"]
    assert given.summary["bytes"] == found.summary["bytes"]  # those of the trials are apart
    assert found.history[0]["step_size"] == tried["eta"]
    assert '"eta": "auto"' in (tmp_path / "run" / "config.json").read_text()


def test_held_out_rows_have_no_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_test, "_STEPS", 20)
    settings = config()
    data = load_data(settings).data
    poisoned = replace(data, test=tuple(1e3 * rows for rows in data.test), test_labels=data.test_labels.flip(0))
    assert find_eta(settings, data) == find_eta(settings, poisoned)


def test_a_step_size_that_diverges_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = config(optimizer={"name": "sgd"}, party_model={"name": "linear", "width": 64}, compressor="identity")
    data = load_data(settings).data
    monkeypatch.setattr(range_test, "GRID", (1e18, 0.01))
    found = find_eta(settings, data)
    assert (found.eta, found.losses[0]) == (0.01, None)
    monkeypatch.setattr(range_test, "GRID", (1e18, 1e20))
    with pytest.raises(ConfigError, match=r"no step size of .* learns; give a number"):
        find_eta(settings, data)


def test_few_rows_are_too_few() -> None:
    data = load_data(config()).data
    few = data.of_training_rows(data.train_labels.argsort()[::4])
    with pytest.raises(ConfigError, match="needs 50 training rows, there are"):
        find_eta(config(), few)


def test_roles_that_are_apart_need_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="'auto' is for `cvfl train` in one process"):
        terms_of(config())
    monkeypatch.chdir(tmp_path)
    Path("fed.toml").write_text(AUTO)
    for command in (
        ["server", "fed.toml", "--insecure"],
        ["train", "fed.toml", "--runtime", "grpc"],
        ["plan", "fed.toml"],
    ):
        result = CliRunner().invoke(app, command)
        assert result.exit_code != 0
        assert "step_size.eta = 'auto' is for `cvfl train` in one process" in result.output, (command, result.output)
    monkeypatch.setattr(range_test, "_STEPS", 20)
    result = CliRunner().invoke(app, ["train", "fed.toml"], env={"COLUMNS": "300"})
    assert result.exit_code == 0, result.output
    assert "the best of 8 in short trials, which would send" in result.output


def test_noise_is_not_spent_on_trials() -> None:
    with pytest.raises(ConfigError, match="each trial would spend of epsilon; give a number"):
        config(privacy={"clip": 1.0, "noise": 1.0}, compressor="scalar:bits=4,low=-2,high=2")
